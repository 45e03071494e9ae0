"""Silver ``places_daily``: the networks from which each principal called, by day."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.arrow_columns import (
    Vocabulary,
    by_part,
    combined,
    decoded,
    group_starts,
    in_order,
    numbers,
    ordered,
    times,
)
from tenantq.pipeline.arrow_shuffle import ArrowShuffle, FileRows, PeriodParts, Sender, SentRows
from tenantq.pipeline.reduction import Reduction
from tenantq.pipeline.schemas import LONG, TEXT, TIME, table_columns
from tenantq.pipeline.silver.life_days import DAY_US, date_texts

PLACES_DAILY: Final = table_columns(
    tenant=TEXT, principal=TEXT, network=TEXT, calls=LONG, first_at=TIME, evidence=TEXT, date=TEXT
)

_PART_BYTES: Final = 128_000_000  # of rows whose sums are merged by one task


def offset(row: str = "") -> Column:
    """Return a row's place in the journal as people cite it: shard:seq.n. ``row`` is a prefix such as ``first.``."""
    return f.format_string("%s:%d.%d", f.col(f"{row}shard"), f.col(f"{row}seq"), f.col(f"{row}n"))


def places_daily(rows: DataFrame | FileRows) -> DataFrame:
    """Return the networks (/24, /48) that each principal called from with success."""
    parts = PeriodParts.by_date(rows, _PART_BYTES)
    sent = SentRows(rows, Sender.reducing(PLACES, partial(_send, parts=parts)))
    return ArrowShuffle(rows.sparkSession, [sent], parts.count, _merged, PLACES_DAILY).frame()


def _reduced(rows: pa.Table) -> list[pa.Table]:
    """Find the first call from each address."""
    words = {name: Vocabulary(rows[name]) for name in ("remote", "principal", "outcome")}
    wanted = words["outcome"].marked(words["outcome"].ranks[0], ("ok",))
    for name, without in (("remote", ""), ("principal", "system")):
        ranks = words[name].ranks[0]
        wanted &= (ranks >= 0) & ~words[name].marked(ranks, (without,))
    return [_first_calls(rows.filter(pa.array(wanted)), "remote", numbers(rows["count"])[wanted])]


def _send(found: pa.Table, parts: PeriodParts) -> Iterator[tuple[int, int, pa.Table]]:
    for part, sent in by_part(parts.parts(numbers(found["us"]) // DAY_US, found["tenant"]), found):
        yield part, 0, sent


def _first_calls(rows: pa.Table, place: str, calls: NDArray[Any]) -> pa.Table:
    """Return per tenant, principal, place and day the calls, and the first one's time, shard, record and row."""
    words = [Vocabulary(rows[name]) for name in ("tenant", "principal", place, "shard")]
    us, seq, n = numbers(rows["us" if "us" in rows.column_names else "ts"]), numbers(rows["seq"]), numbers(rows["n"])
    day = us // DAY_US
    if not len(us):
        key = day
    else:
        key = combined(
            [*[one.ranks[0] for one in words[:3]], day - day.min()],
            [*[len(one.words) for one in words[:3]], int(np.ptp(day)) + 1],
        )
    order = in_order(key)
    starts = group_starts(key[order])
    sizes = np.diff(np.append(starts, len(order)))
    sums = np.add.reduceat(calls[order], starts) if len(starts) else calls
    first_us = np.minimum.reduceat(us[order], starts) if len(starts) else us
    candidates = order[us[order] == np.repeat(first_us, sizes)]  # few; of these, the first in the journal
    ranked = candidates[ordered([one[candidates] for one in (key, words[3].ranks[0], seq, n)])]
    first = ranked[group_starts(key[ranked])]
    names = ("tenant", "principal", place, "shard")
    texts = {name: one.array(one.ranks[0][first]) for name, one in zip(names, words, strict=True)}
    return pa.table({**texts, "calls": sums, "us": us[first], "seq": seq[first], "n": n[first]})


def _merged(_: int, sent: list[list[pa.Table]]) -> pa.Table:
    rows = pa.concat_tables(map(decoded, sent[0])).combine_chunks()
    networks = pa.array([network(one) for one in rows["remote"].to_pylist()], pa.string())
    found = _first_calls(rows.append_column("network", networks), "network", numbers(rows["calls"]))
    us = numbers(found["us"])
    offsets = zip(*(found[name].to_pylist() for name in ("shard", "seq", "n")), strict=True)
    return found.append_column("first_at", times(us)).append_column("date", date_texts(us)).append_column(
        "evidence", pa.array([f"{shard}:{seq}.{n}" for shard, seq, n in offsets], pa.string())
    )  # fmt: skip


def network(remote: str) -> str:
    """Return the network of an address with or without a port: /24, /48, or the text itself if it is not an address."""
    host = re.sub(r":[0-9]+$", "", remote)
    if v4 := re.search(r"^([0-9]+\.[0-9]+\.[0-9]+)\.[0-9]+$", host):
        return f"{v4.group(1)}.0/24"
    v6 = re.search(r"^\[?((?:[0-9a-fA-F]+:){3})", remote)
    return f"{v6.group(1)}:/48" if v6 else host


PLACES: Final = Reduction(("tenant", "principal", "remote", "outcome", "count", "shard", "seq", "n", "ts"), _reduced)
"""Reduces rows of bronze."""
