"""The waiting and processing times of each queue and day, and the age of its oldest message, computed on Arrow tables.

Tasks first count how often each time occurred in a file. Percentiles are exact, so the merge needs memory for the
different times of a queue and day.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from tenantq.pipeline.arrow_columns import (
    Vocabulary,
    by_part,
    combined,
    decoded,
    group_starts,
    in_order,
    numbers,
    ordered,
    whole,
)
from tenantq.pipeline.arrow_shuffle import ArrowShuffle, FileRows, PeriodParts, Sender, SentRows
from tenantq.pipeline.reduction import Reduction
from tenantq.pipeline.silver.life_days import DAY_MS, DAY_US, date_texts

WAIT, ACKED, FAILED, DEAD, EXPIRED = range(5)
_KINDS: Final = {
    ("poll", "ok"): WAIT, ("ack", "ok"): ACKED, ("nack", "ok"): FAILED, ("dead_letter", "dead"): DEAD,
    ("expire", "expired"): EXPIRED,
}  # fmt: skip
_OTHER: Final = 5  # counts for nothing, but the queue has a row
_OPS: Final = ("poll", "ack", "nack", "lease_expired", "dead_letter", "expire")
_PART_BYTES: Final = 32_000_000  # of rows whose times are merged by one task
_PERCENTILES: Final = (0.5, 0.95, 0.99)
_TIMES, _AGES = range(2)  # kinds of sent tables
_long, _list = LongType(), ArrayType(DoubleType())
_COLUMNS: Final = StructType(
    [StructField(name, StringType()) for name in ("tenant", "queue", "date")]
    + [StructField(name, _long) for name in ("deliveries", "settled", "acked", "dead", "expired", "slow")]
    + [StructField(name, _long) for name in ("wait_max_ms", "process_max_ms", "oldest_age_ms")]
    + [StructField(name, _list) for name in ("waits", "times")]
)


def service_times(rows: DataFrame | FileRows, lives: DataFrame | FileRows, as_of_ms: int, slow_ms: int) -> DataFrame:
    """Return counts, percentiles, maxima and the age of the oldest message, by tenant, queue and date.

    ``rows`` is bronze. Ages, from ``lives``, are those at the end of the day, or at ``as_of_ms``.
    """
    return time_exchange(rows, lives, as_of_ms, slow_ms).frame()


def time_exchange(rows: DataFrame | FileRows, lives: DataFrame | FileRows, as_of_ms: int, slow_ms: int) -> ArrowShuffle:
    """Return the shuffle that computes ``service_times``."""
    parts = PeriodParts.by_date(rows, _PART_BYTES)
    times = Sender.reducing(TIMES, partial(_sent, kind=_TIMES, parts=parts))
    ages = Sender.reducing(STAYS, partial(_send_ages, parts=parts, as_of_ms=as_of_ms))
    inputs = (SentRows(rows, times), SentRows(lives, ages))
    return ArrowShuffle(rows.sparkSession, inputs, parts.count, partial(_merged, slow_ms=slow_ms), _COLUMNS, kinds=2)


def _times(rows: pa.Table) -> list[pa.Table]:
    """Count how often each time occurred in a queue and day."""
    ops, queues = Vocabulary(rows["op"]), Vocabulary(rows["queue"])
    wanted = ops.marked(ops.ranks[0], _OPS) & ~queues.marked(queues.ranks[0], ("",)) & (queues.ranks[0] >= 0)
    if not wanted.any():
        return []
    outcomes, tenants = Vocabulary(rows["outcome"]), Vocabulary(rows["tenant"])
    kinds = np.array([[_kind(op, outcome) for outcome in (*outcomes.words, None)] for op in ops.words])
    kind = kinds[ops.ranks[0], outcomes.ranks[0]][wanted]
    wait, process = numbers(rows["wait_ms"])[wanted], numbers(rows["process_ms"])[wanted]
    value = np.select([kind == WAIT, (kind == ACKED) | (kind == FAILED)], [wait, process], 0)
    columns = [tenants.ranks[0][wanted], queues.ranks[0][wanted], numbers(rows["ts"])[wanted] // DAY_US, kind, value]
    lows = [int(one.min()) for one in columns]
    spans = [int(one.max()) - low + 1 for one, low in zip(columns, lows, strict=True)]
    key = combined([one - low for one, low in zip(columns, lows, strict=True)], spans)
    order = in_order(key)
    starts = group_starts(key[order])
    first, counts = order[starts], np.diff(np.append(starts, len(order)))
    tenant, queue, day, kind, value = (one[first] for one in columns)
    return [pa.table({
        "tenant": tenants.array(tenant), "queue": queues.array(queue), "day": day, "kind": kind, "value": value, "calls": counts,
    })]  # fmt: skip


def _kind(op: str, outcome: str | None) -> int:
    return FAILED if op == "lease_expired" else _KINDS.get((op, outcome or ""), _OTHER)


def _stays(lives: pa.Table) -> list[pa.Table]:
    """Return the messages that were in a queue at the end of a day, or are still: when they were added and left, or -1."""
    gone = pc.if_else(
        pc.equal(whole(lives["outcome"]), "dead"), whole(lives["last"]).field("at"), whole(lives["ended_at"])
    )
    known = pc.and_(pc.is_valid(whole(lives["queue"])), pc.is_valid(whole(lives["added_at"])))
    added, left = numbers(lives["added_at"]) // 1_000, numbers(gone, -1)
    held = ((left < 0) | (left // DAY_US > added // DAY_MS)) & known.to_numpy(zero_copy_only=False)
    if not held.any():
        return []
    found = decoded(lives.select(["tenant", "queue"]).filter(pa.array(held)))
    return [found.append_column("added", pa.array(added[held])).append_column("left", pa.array(left[held]))]


def _send_ages(stays: pa.Table, parts: PeriodParts, as_of_ms: int) -> Iterator[tuple[int, int, pa.Table]]:
    """Find the oldest message in each queue at the end of each day."""
    added, left = numbers(stays["added"]), numbers(stays["left"])
    first = added // DAY_MS
    last = np.where(left >= 0, left // DAY_US - 1, as_of_ms // DAY_MS)
    held = np.flatnonzero(last >= first)
    if not len(held):
        return
    days = (last - first + 1)[held]
    rows = np.repeat(held, days)
    day = first[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(days) - days, days)
    age = np.maximum(np.minimum((day + 1) * DAY_MS, as_of_ms) - added[rows], 0)
    found = stays.select(["tenant", "queue"]).take(pa.array(rows)).append_column("day", pa.array(day))
    oldest = found.append_column("age", pa.array(age)).group_by(["tenant", "queue", "day"], use_threads=False)
    yield from _sent(oldest.aggregate([("age", "max")]), _AGES, parts)


def _sent(rows: pa.Table, kind: int, parts: PeriodParts) -> Iterator[tuple[int, int, pa.Table]]:
    """Send the rows of a queue and day to the same part."""
    found = parts.parts(numbers(rows["day"]), rows["tenant"], rows["queue"])
    for part, sent in by_part(found, rows):
        yield part, kind, sent


def _merged(_: int, sent: list[list[pa.Table]], slow_ms: int) -> pa.Table:
    times, ages = (
        pa.concat_tables(map(decoded, some)) if some else none for some, none in zip(sent, _NONE, strict=True)
    )
    tenants, queues = (Vocabulary(times[name], ages[name]) for name in ("tenant", "queue"))
    days = np.concatenate([numbers(times["day"]), numbers(ages["day"])])
    spans = [len(tenants.words), len(queues.words), int(np.ptp(days)) + 1]
    key = combined([np.concatenate(tenants.ranks), np.concatenate(queues.ranks), days - days.min()], spans)
    order = in_order(key)
    starts = group_starts(key[order])
    found, first = key[order][starts], order[starts]
    group = np.empty(len(order), "i8")
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    of_times, of_ages = group[: len(times)], group[len(times) :]
    oldest = np.zeros(len(found), "i8")
    np.maximum.at(oldest, of_ages, numbers(ages["age_max"]))
    return pa.table({
        "tenant": tenants.array(np.concatenate(tenants.ranks)[first]),
        "queue": queues.array(np.concatenate(queues.ranks)[first]),
        "date": date_texts(days[first] * DAY_US),
        "oldest_age_ms": oldest,
        **_statistics(of_times, len(found), numbers(times["kind"]), numbers(times["value"]), numbers(times["calls"]), slow_ms),
    })  # fmt: skip


def _statistics(
    group: NDArray[Any], count: int, kind: NDArray[Any], value: NDArray[Any], calls: NDArray[Any], slow_ms: int
) -> dict[str, Any]:
    """Return what the times of each group say."""

    def counted(which: NDArray[Any]) -> NDArray[Any]:
        total = np.zeros(count, "i8")
        np.add.at(total, group[which], calls[which])
        return total

    waits, settled = kind == WAIT, (kind == ACKED) | (kind == FAILED)
    wait, process = (_percentiles(group[one], count, value[one], calls[one]) for one in (waits, settled))
    return {
        "deliveries": counted(waits), "settled": counted(settled), "acked": counted(kind == ACKED),
        "dead": counted(kind == DEAD), "expired": counted(kind == EXPIRED), "slow": counted(waits & (value > slow_ms)),
        "wait_max_ms": wait[1], "process_max_ms": process[1], "waits": wait[0], "times": process[0],
    }  # fmt: skip


def _percentiles(
    group: NDArray[Any], count: int, value: NDArray[Any], calls: NDArray[Any]
) -> tuple[pa.Array, pa.Array]:
    """Return the interpolated percentiles and the maximum of each group; null for groups without values."""
    order = ordered([group, value])
    starts = group_starts(group[order])
    groups = group[order][starts]
    there = np.zeros(count, "?")
    there[groups] = True
    values, until = value[order], np.cumsum(calls[order])
    totals = np.add.reduceat(calls[order], starts) if len(starts) else calls
    before = (until[np.append(starts[1:], len(order)) - 1] - totals) if len(starts) else totals
    found = np.zeros((count, len(_PERCENTILES)))
    for at, share in enumerate(_PERCENTILES):
        position = (totals - 1) * share
        low, high = np.floor(position), np.ceil(position)
        below, above = (
            values[np.searchsorted(until, before + one.astype("i8"), "right")].astype("f8") for one in (low, high)
        )
        same = (low == high) | (below == above)
        found[groups, at] = np.where(same, below, below + (above - below) * (position - low))
    highest = np.zeros(count, "i8")
    highest[groups] = np.maximum.reduceat(values, starts) if len(starts) else values
    offsets = pa.array(np.arange(count + 1) * len(_PERCENTILES), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array(found.reshape(-1)), mask=pa.array(~there))
    return lists, pa.array(highest, mask=~there)


_PLACE: Final = {
    "tenant": pa.array([], pa.string()),
    "queue": pa.array([], pa.string()),
    "day": pa.array([], pa.int64()),
}
_NONE: Final = (
    pa.table({**_PLACE, **{name: pa.array([], pa.int64()) for name in ("kind", "value", "calls")}}),
    pa.table({**_PLACE, "age_max": pa.array([], pa.int64())}),
)
TIMES: Final = Reduction(("tenant", "queue", "op", "outcome", "wait_ms", "process_ms", "ts"), _times)
"""Reduces rows of bronze."""
STAYS: Final = Reduction(("tenant", "queue", "added_at", "ended_at", "outcome", "last"), _stays)
"""Reduces message lives."""
