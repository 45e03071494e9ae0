"""Silver ``queue_hours``: the operations of a queue in an hour, and how they changed the queue's levels.

Levels (messages stored, bytes, leases) are sums of changes since the last reset of the queue. Each reset begins an ``epoch``.
An hour has its own changes and their peak above its start. Hours can therefore be computed independently, and
``usage_hourly`` adds them up.

Tasks first add up the rows of a file by queue and by round. So a large queue is spread over the tasks, and the merge of
an hour needs memory for its rounds only.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

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
from tenantq.pipeline.schemas import BYTE_MS, INT, LONG, TEXT, table_columns
from tenantq.pipeline.silver.queue_changes import (
    CALL,
    COUNTS,
    LEASE_REMOVED,
    LEASES,
    MESSAGES,
    MOVED_IN,
    MOVES,
    PURGED,
    TARGET,
    change_table,
    selected_table,
)  # fmt: skip
from tenantq.pipeline.silver.queue_resets import ResetIndex
from tenantq.pipeline.silver.removed_leases import removed_leases

QUEUE_HOURS: Final = table_columns(
    tenant=TEXT, queue=TEXT, shard=TEXT, epoch=INT, operations=LONG, messages_in=LONG, messages_out=LONG,
    bytes_in=LONG, bytes_out=LONG, acked=LONG, nacked=LONG, lease_expired=LONG, dead=LONG, expired=LONG,
    removed=LONG, healed=LONG, refused=LONG, throttled=LONG, denied=LONG, messages_net=LONG, bytes_net=LONG,
    in_flight_net=LONG, backlog_top=LONG, in_flight_top=LONG, byte_ms=BYTE_MS, date=TEXT, hour=TEXT,
)  # fmt: skip

_HOUR_MS: Final = 3_600_000
_PART_BYTES: Final = 32_000_000  # of rows whose rounds are merged by one task
_LIMB_BITS: Final = 12
"""Byte-milliseconds are added up in two integers: an hour of petabytes or a billion rows fits into each."""
_KEY: Final = ("tenant", "queue", "shard", "epoch", "hour")
_SUMS: Final = ("rows", "calls", "bytes", "purged", "high", "low")
_SUMMED, _ROUNDS, _SUMMED_LEASES, _ROUNDS_OF_LEASES = range(4)  # kinds of sent tables; leases of removed messages


def queue_hours(rows: DataFrame | FileRows, lives: DataFrame | FileRows, resets: DataFrame) -> DataFrame:
    """Return rows of QUEUE_HOURS. ``rows`` (bronze) must have whole hours.

    ``lives`` says which removed messages were leased; the journal row of a remove does not.
    """
    return hour_exchange(rows, lives, resets).frame()


def hour_exchange(rows: DataFrame | FileRows, lives: DataFrame | FileRows, resets: DataFrame) -> ArrowShuffle:
    """Return the shuffle that computes ``queue_hours``."""
    parts = PeriodParts.by_hour(rows, _PART_BYTES)
    index = ResetIndex.of(resets)
    changes = Sender.reducing(CHANGES, partial(_send, parts=parts, kinds=(_SUMMED, _ROUNDS)), resets=index)
    leases = Sender.reducing(LEASES_OF_REMOVED, partial(_send_removed, resets=index, parts=parts))
    inputs = (SentRows(rows, changes), SentRows(lives, leases))
    return ArrowShuffle(rows.sparkSession, inputs, parts.count, _merged, QUEUE_HOURS, kinds=4)


class _QueueEffects:
    """Effects of rows on queues, a row each."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns
        self.tenants, self.queues, self.shards, self.ops, self.outcomes = (
            Vocabulary(columns[name]) for name in ("tenant", "queue", "shard", "op", "outcome")
        )
        self.op, self.outcome = self.ops.ranks[0], self.outcomes.ranks[0]
        self.seq, self.n, self.ms = columns["seq"], columns["n"], columns["us"] // 1_000
        self.hour = self.ms // _HOUR_MS

    def place(self, resets: ResetIndex) -> None:
        """Find the epoch of each row, and the milliseconds until it or the hour ends."""
        around = resets.around(
            (self.shards, self.shards.ranks[0]), (self.tenants, self.tenants.ranks[0]), (self.queues, self.queues.ranks[0]),
            self.seq, self.n, tie_passed=False,
        )  # fmt: skip
        end_ms = (self.hour + 1) * _HOUR_MS
        end_ms = np.where(around.next_at >= 0, np.minimum(end_ms, around.next_at // 1_000), end_ms)
        self.epoch, self.left_ms = around.passed, end_ms - self.ms
        ranks = (self.tenants, self.queues, self.shards)
        self.key = combined(
            [*[one.ranks[0] for one in ranks], self.epoch, self.hour - self.hour.min()],
            [*[len(one.words) for one in ranks], int(self.epoch.max()) + 1, int(np.ptp(self.hour)) + 1],
        )

    def sums(self) -> pa.Table:
        """Add up the rows of each queue, hour, op and outcome. What a row counts for depends on nothing else."""
        size, asked = self._columns["bytes"], self._columns["asked"]
        kind = (self.op * (len(self.outcomes.words) + 1) + self.outcome + 1) * 2 + asked
        key = combined([self.key, kind], [int(self.key.max()) + 1, int(kind.max()) + 1])
        order = in_order(key)
        starts = group_starts(key[order])
        high, low = size >> _LIMB_BITS, size & ((1 << _LIMB_BITS) - 1)
        values = (np.ones(len(size), "i8"), self._columns["count"], size, self._columns["purged"], high * self.left_ms, low * self.left_ms)  # fmt: skip
        first = order[starts]
        return pa.table({
            **self._named(first), "op": self.ops.array(self.op[first]), "outcome": self.outcomes.array(self.outcome[first]),
            "asked": pa.array(asked[first]),
            **{name: np.add.reduceat(one[order], starts) for name, one in zip(_SUMS, values, strict=True)},
        })  # fmt: skip

    def rounds(self) -> pa.Table:
        """Return how each round changed the levels of queues.

        A round is one point in time: what it adds and delivers at once never waited.
        """
        messages = change_table(self.ops.words, self.outcomes.words, MESSAGES)[self.op, self.outcome]
        leases = change_table(self.ops.words, self.outcomes.words, LEASES)[self.op, self.outcome]
        rows = np.flatnonzero((messages != 0) | (leases != 0))
        key, ms, seq = self.key[rows], self.ms[rows], self.seq[rows]
        order, starts = _in_rounds(key, ms, seq)
        rows = rows[order]
        first = rows[starts]
        if not len(rows):
            starts = starts[:0]
        return pa.table({
            **self._named(first), "ms": self.ms[first], "seq": self.seq[first],
            "backlog": _summed((messages - leases)[rows], starts), "in_flight": _summed(leases[rows], starts),
        })  # fmt: skip

    def _named(self, rows: NDArray[Any]) -> dict[str, Any]:
        """Return the columns of _KEY for some rows."""
        return {
            "tenant": self.tenants.array(self.tenants.ranks[0][rows]), "queue": self.queues.array(self.queues.ranks[0][rows]),
            "shard": self.shards.array(self.shards.ranks[0][rows]), "epoch": self.epoch[rows], "hour": self.hour[rows],
        }  # fmt: skip


def _reduced(rows: pa.Table, resets: ResetIndex) -> list[pa.Table]:
    """Add up the effects of rows of bronze."""
    return _added_up(_QueueEffects(_effects(rows)), resets) if rows.num_rows else []


def _added_up(effects: _QueueEffects, resets: ResetIndex) -> list[pa.Table]:
    effects.place(resets)
    return [effects.sums(), effects.rounds()]


def _send(
    sums: pa.Table, rounds: pa.Table, parts: PeriodParts, kinds: tuple[int, int]
) -> Iterator[tuple[int, int, pa.Table]]:
    for kind, table in zip(kinds, (sums, rounds), strict=True):
        found = parts.parts(numbers(table["hour"]), table["tenant"], table["queue"])
        for part, sent in by_part(found, table):
            yield part, kind, sent


def _effects(rows: pa.Table) -> dict[str, Any]:
    """Return the effects of rows: on their own queue, and of moves on the target queue.

    The call that starts a redrive has a row without a message; only the rows of its messages remove them.
    """
    own: dict[str, Any] = {name: numbers(rows[name]) for name in ("seq", "n", "bytes", "count")}
    own |= {name: whole(rows[name]) for name in ("shard", "tenant", "queue", "op", "outcome")}
    own["us"] = numbers(rows["ts"])
    principals, ops, outcomes = Vocabulary(rows["principal"]), Vocabulary(own["op"]), Vocabulary(own["outcome"])
    op = ops.ranks[0]
    own["asked"] = ~principals.marked(principals.ranks[0], ("system",)) & (principals.ranks[0] >= 0)
    moves = ops.marked(op, MOVES)
    unnamed = np.zeros(len(op), "?")
    if moves.any():
        unnamed = pc.equal(whole(rows["message_id"]), "").fill_null(True).to_numpy(zero_copy_only=False)
    calls = unnamed & ops.marked(op, ("redrive",))
    if calls.any():
        own["op"] = pc.if_else(pa.array(calls), CALL, ops.array(op).cast(pa.string()))
    own["purged"] = np.zeros(len(op), "i8")
    purges = np.flatnonzero(ops.marked(op, ("purge",)))
    own["purged"][purges] = [int(one or 0) for one in _matches(PURGED, rows["details"], purges)]
    moved = np.flatnonzero(moves & ~unnamed & outcomes.marked(outcomes.ranks[0], ("ok", "dead")))
    if not len(moved):
        return own
    targets = pa.array(_matches(TARGET, rows["details"], moved), pa.string())
    return {
        name: np.concatenate([column, column[moved] if name in {"seq", "n", "us", "bytes"} else np.zeros(len(moved), column.dtype)])
        if isinstance(column, np.ndarray)
        else pa.chunked_array([_plain(column), _moved_in(name, column, targets, moved)])
        for name, column in own.items()
    }  # fmt: skip


def _moved_in(name: str, column: pa.Array, targets: pa.Array, moved: NDArray[Any]) -> pa.Array:
    """Return a text column of what moves add to their target queue."""
    if name == "queue":
        return targets
    if name == "op":
        return pa.repeat(MOVED_IN, len(moved))
    return pa.nulls(len(moved), pa.string()) if name == "outcome" else _plain(column.take(pa.array(moved)))


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _matches(pattern: str, details: pa.ChunkedArray, rows: NDArray[Any]) -> list[str]:
    """Return the first group of a pattern in the details of some rows; empty if they do not match."""
    found = (re.search(pattern, one or "") for one in whole(details).take(pa.array(rows)).to_pylist())
    return [one.group(1) if one else "" for one in found]


def _removed(lives: pa.Table) -> list[pa.Table]:
    found = removed_leases(lives.select(LEASES_OF_REMOVED.columns))
    return [found] if found.num_rows else []


def _send_removed(removed: pa.Table, resets: ResetIndex, parts: PeriodParts) -> Iterator[tuple[int, int, pa.Table]]:
    """Send the leases that ended because their message was removed, at the place of the remove."""
    last = whole(removed["last"])
    none = np.zeros(len(last), "i8")
    effects = _QueueEffects({
        "tenant": whole(removed["tenant"]), "queue": last.field("queue"), "shard": last.field("shard"),
        "op": pa.repeat(LEASE_REMOVED, len(last)), "outcome": pa.nulls(len(last), pa.string()),
        "seq": numbers(last.field("seq")), "n": numbers(last.field("place")), "us": numbers(last.field("at")),
        "bytes": none, "count": none, "purged": none, "asked": none.astype("?"),
    })  # fmt: skip
    sums, rounds = _added_up(effects, resets)
    yield from _send(sums, rounds, parts, (_SUMMED_LEASES, _ROUNDS_OF_LEASES))


def _merged(_: int, sent: list[list[pa.Table]]) -> pa.Table:
    """Return the hours of a part."""
    tables = [[decoded(one) for one in some] for some in sent]
    tables[_ROUNDS].append(_NO_ROUNDS)
    if not tables[_SUMMED]:
        return _NONE  # leases that ended in other hours than those of the rows
    hours_of_rows = pa.array(np.unique(np.concatenate([numbers(one["hour"]) for one in tables[_SUMMED]])))
    summed, changes = (
        pa.concat_tables(
            [*tables[of_rows], *(one.filter(pc.is_in(one["hour"], hours_of_rows)) for one in tables[of_leases])]
        ).combine_chunks()
        for of_rows, of_leases in ((_SUMMED, _SUMMED_LEASES), (_ROUNDS, _ROUNDS_OF_LEASES))
    )
    names = ("tenant", "queue", "shard")
    words = {name: Vocabulary(summed[name], changes[name]) for name in names}
    hours, epochs = ([numbers(one[name]) for one in (summed, changes)] for name in ("hour", "epoch"))
    first = int(hours[0].min())
    spans = [*[len(words[name].words) for name in names], max(int(one.max(initial=0)) for one in epochs) + 1, int(np.ptp(hours[0])) + 1]  # fmt: skip
    columns = [*[words[name].ranks for name in names], epochs, [one - first for one in hours]]
    keys = combined([np.concatenate(one) for one in columns], spans)
    of_summed, of_changes = keys[: len(summed)], keys[len(summed) :]
    tops = _tops(changes, of_changes, np.unique(of_summed))
    return _hours(summed, of_summed, tops, [(name, words[name]) for name in names], epochs[0], hours[0])


def _hours(
    summed: pa.Table, key: NDArray[Any], tops: dict[str, NDArray[Any]], words: list[tuple[str, Vocabulary]],
    epochs: NDArray[Any], hours: NDArray[Any],
) -> pa.Table:  # fmt: skip
    """Add up the sums of all ops and outcomes of each queue and hour."""
    order = in_order(key)
    starts = group_starts(key[order])
    first = order[starts]
    ops, outcomes = Vocabulary(summed["op"]), Vocabulary(summed["outcome"])
    kind = (ops.ranks[0], outcomes.ranks[0])
    asked = whole(summed["asked"]).to_numpy(zero_copy_only=False)
    values = {name: numbers(summed[name]) for name in _SUMS}

    def added(column: NDArray[Any]) -> NDArray[Any]:
        return np.add.reduceat(column[order], starts)

    def counted(name: str) -> NDArray[Any]:
        found = np.zeros(len(key), "i8")
        for rule in COUNTS[name]:
            chosen = selected_table(ops.words, outcomes.words, rule)[kind] * (asked if rule.asked else 1)
            found += chosen * values[rule.value]
        return added(found)

    sign, leases = (change_table(ops.words, outcomes.words, one)[kind] for one in (MESSAGES, LEASES))
    begins = hours[first].astype("datetime64[h]")
    return pa.table({
        **{name: one.array(one.ranks[0][first]) for name, one in words},
        "epoch": pa.array(epochs[first], pa.int32()),
        **{name: counted(name) for name in COUNTS},
        "messages_net": added(sign * values["rows"]), "bytes_net": added(sign * values["bytes"]),
        "in_flight_net": added(leases * values["rows"]), **tops,
        "byte_ms": _byte_ms(added(sign * values["high"]), added(sign * values["low"])),
        "date": [str(one)[:10] for one in begins], "hour": [str(one)[11:13] for one in begins],
    })  # fmt: skip


def _tops(changes: pa.Table, key: NDArray[Any], wanted: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the highest rise of each level above the start of the hour, at least 0: if it only fell, the start was the peak."""
    ms, seq = numbers(changes["ms"]), numbers(changes["seq"])
    order, starts = _in_rounds(key, ms, seq)
    found = {}
    keys = key[order][starts]
    of_key = group_starts(keys)
    at = np.searchsorted(wanted, keys[of_key])
    for name in ("backlog", "in_flight"):
        top = np.zeros(len(wanted), "i8")
        level = np.cumsum(_summed(numbers(changes[name])[order], starts))
        if len(of_key):
            before = np.concatenate([np.zeros(1, "i8"), level])[of_key]
            top[at] = np.maximum(np.maximum.reduceat(level, of_key) - before, 0)
        found[f"{name}_top"] = top
    return found


def _in_rounds(key: NDArray[Any], ms: NDArray[Any], seq: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the order of changes by key and time, and where each round begins. Most are in order within their key."""
    order = in_order(key)
    sorted_key, sorted_ms, sorted_seq = key[order], ms[order], seq[order]
    later = (sorted_ms[1:] > sorted_ms[:-1]) | ((sorted_ms[1:] == sorted_ms[:-1]) & (sorted_seq[1:] >= sorted_seq[:-1]))
    if not (later | (sorted_key[1:] != sorted_key[:-1])).all():
        order = ordered([key, ms, seq])
        sorted_key, sorted_ms, sorted_seq = key[order], ms[order], seq[order]
    return order, group_starts(sorted_key, sorted_ms, sorted_seq)


def _summed(values: NDArray[Any], starts: NDArray[Any]) -> NDArray[Any]:
    return np.add.reduceat(values, starts) if len(starts) else np.zeros(0, "i8")


def _byte_ms(high: NDArray[Any], low: NDArray[Any]) -> pa.Array:
    wide = pa.decimal128(19, 0)
    base = pa.scalar(1 << _LIMB_BITS, pa.decimal128(4, 0))
    found = pc.add(pc.multiply(pa.array(high).cast(wide), base), pa.array(low).cast(wide))
    return found.cast(pa.decimal128(38, 0))


_NO_ROUNDS: Final = pa.table(
    {
        name: pa.array([], pa.string() if name in _KEY[:3] else pa.int64())
        for name in (*_KEY, "ms", "seq", "backlog", "in_flight")
    }
)
_NONE: Final = to_arrow_schema(QUEUE_HOURS, timezone="UTC").empty_table()
CHANGES: Final = Reduction(
    ("shard", "seq", "n", "ts", "tenant", "queue", "op", "message_id", "principal", "bytes", "outcome", "count", "details"),
    _reduced, ("resets",),
)  # fmt: skip
"""Reduces rows of bronze."""
LEASES_OF_REMOVED: Final = Reduction(("tenant", "outcome", "leased_at_end", "last"), _removed)
"""Reduces message lives."""
