"""Bronze ``bronze``: the journal's rows as they were written, each once, by date and hour."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from tenantq.pipeline.arrow_columns import (
    TIME,
    Vocabulary,
    by_part,
    group_starts,
    numbers,
    ordered,
    record_hashes,
    whole,
)
from tenantq.pipeline.arrow_shuffle import ArrowShuffle, FileRows, Sender, SentRows, joined
from tenantq.pipeline.lake.pieces import HOUR_US, Pieces
from tenantq.pipeline.schemas import JOURNAL, KNOWN_OPS, TEXT

BRONZE: Final = StructType([*JOURNAL.fields, StructField("date", TEXT), StructField("hour", TEXT)])

FUTURE_MS = 86_400_000
"""How far a row may be ahead of the pipeline's clock, because clocks of machines differ."""
NOT_NEGATIVE = ("seq", "n", "bytes", "priority", "attempt", "wait_ms", "process_ms", "count")
_REQUIRED = ("shard", "seq", "n", "ts", "tenant", "queue", "op", "outcome")


class RowRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows enter bronze."""

    now_ms: int | None = None  # None: every row is known to be valid
    unique: bool = False  # segments do not overlap, so no row occurs twice; this saves a shuffle
    deleted_dates: tuple[str, ...] = ()  # days that retention has deleted
    erased: tuple[tuple[str, int], ...] = ()  # tenants, each with the time up to which its rows stay out

    @property
    def accept_all(self) -> bool:
        """Whether every row enters bronze."""
        return self.now_ms is None and self.unique and not self.erased


def row_fault(rules: RowRules) -> Column:
    """Return the reason why a row cannot be processed, or an empty string."""
    if rules.now_ms is None:
        return f.lit("")
    negative = f.lit(False)
    for name in NOT_NEGATIVE:
        negative |= f.col(name) < 0
    missing = f.lit(False)
    for name in _REQUIRED:
        missing |= f.col(name).isNull()
    deleted = f.date_format("ts", "yyyy-MM-dd").isin(*rules.deleted_dates) if rules.deleted_dates else f.lit(False)
    return (
        f.when(missing, "missing_value")
        .when(~f.col("op").isin(sorted(KNOWN_OPS)), "unknown_op")
        .when(negative, "negative_value")
        .when(f.unix_millis("ts") > rules.now_ms + FUTURE_MS, "future_timestamp")
        .when(deleted, "past_retention")
        .otherwise("")
    )


def valid_rows(rows: DataFrame, rules: RowRules) -> DataFrame:
    """Return the valid rows, each (shard, seq, n) once, with the date and hour they belong to."""
    valid = rows if rules.now_ms is None else rows.where(row_fault(rules) == "")
    for tenant, until_ms in rules.erased:
        valid = valid.where((f.col("tenant") != tenant) | (f.unix_millis("ts") > until_ms))
    if not rules.unique:
        valid = valid.dropDuplicates(["shard", "seq", "n"])
    return valid.select(
        *BRONZE.names[:-2],
        f.date_format("ts", "yyyy-MM-dd").alias("date"),
        f.date_format("ts", "HH").alias("hour"),
    )


def bronze(rows: DataFrame | FileRows, known: DataFrame | FileRows | None, pieces: Pieces) -> ArrowShuffle:
    """Return the ``known`` rows of some hours, if any, and new valid ``rows``, in the files that ``pieces`` describe."""
    sender = Sender(tuple(JOURNAL.names), partial(_send, pieces=pieces))
    inputs = [SentRows(one, sender) for one in (rows, known) if one is not None]
    return ArrowShuffle(rows.sparkSession, inputs, pieces.count, _merged, BRONZE)


def hour_places(rows: pa.Table) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return when the hour of each row begins, in microseconds, and the hash by which a large hour is split."""
    us = numbers(rows["ts"])
    return us - us % HOUR_US, record_hashes(rows["shard"], numbers(rows["seq"]))


def _send(rows: pa.Table, pieces: Pieces) -> Iterator[tuple[int, int, pa.Table]]:
    at = rows.column_names.index("ts")
    rows = rows.set_column(at, "ts", whole(rows["ts"]).cast(TIME))
    for part, sent in by_part(pieces.parts(*hour_places(rows)), rows):
        yield part, 0, sent


def _merged(_: int, sent: list[list[pa.Table]]) -> pa.Table:
    """Return the rows of a file in the order of the table."""
    rows = joined(sent[0])
    tenants, shards = Vocabulary(rows["tenant"]), Vocabulary(rows["shard"])
    tenant, shard, seq, n = tenants.ranks[0], shards.ranks[0], numbers(rows["seq"]), numbers(rows["n"])
    order = ordered([tenant, shard, seq, n])
    assert len(group_starts(tenant[order], shard[order], seq[order], n[order])) == len(order), "a row occurs twice"
    return rows.take(pa.array(order)) if (np.diff(order) != 1).any() else rows
