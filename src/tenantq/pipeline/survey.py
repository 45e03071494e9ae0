"""A first look at new rows: what is wrong with some, which hours and which days of lives they touch, and how many they are."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import functions as f

from tenantq.pipeline.bronze import fault
from tenantq.pipeline.silver_message_lives import life_date, tells_of_life

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame

_HOUR_MS: Final = 3_600_000


class Survey(msgspec.Struct, frozen=True):
    """What was seen. Partitions are named by their directories."""

    rows: int  # that can be processed
    faulty: bool  # whether there are others
    hours: dict[str, int]  # partition of bronze -> rows
    days: dict[str, int]  # partition of message_lives -> lives that begin; also those where none does, but one goes on


def survey(rows: DataFrame, now_ms: int, gone: Collection[str] = ()) -> Survey:
    """Look at rows of the journal once; each must be there once."""
    hour = f.floor(f.unix_millis("ts") / _HOUR_MS).alias("hour")
    day = f.when(tells_of_life(), life_date())
    begins = tells_of_life() & (f.col("op") == "add")
    looked_at = rows.select(fault(now_ms, gone).alias("reason"), hour, day.alias("day"), begins.alias("begins"))
    seen = looked_at.groupBy("reason", "hour", "day").agg(f.count("*"), f.count_if("begins")).collect()
    hours, days = Counter[str](), Counter[str]()
    for reason, number, date, count, adds in seen:
        if not reason:
            hours[f"{datetime.fromtimestamp(number * _HOUR_MS // 1_000, UTC):date=%Y-%m-%d/hour=%H}"] += count
            if date is not None:
                days[f"date={date}"] += adds
    return Survey(hours.total(), any(row[0] for row in seen), dict(hours), dict(days))
