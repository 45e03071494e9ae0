"""Merges the events of messages, and lives that are known from earlier runs, into one row per message.

The events of a life are ordered by record; if they are on two shards, by time.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tenantq.pipeline.arrow_columns import TIME, Vocabulary, group_starts, in_order, numbers, ordered, times, whole
from tenantq.pipeline.arrow_shuffle import joined
from tenantq.pipeline.silver.life_days import DAY_US, date_texts, life_days
from tenantq.pipeline.silver.queue_resets import ResetIndex

OPEN: Final = ("waiting", "in_flight", "dead")
"""Outcomes of messages that are still in a queue."""
STATES: Final = {
    "add": "waiting", "poll": "in_flight", "nack": "waiting", "release": "waiting", "lease_expired": "waiting",
    "ack": "acked", "remove": "removed", "expire": "expired", "dead_letter": "dead", "redrive": "waiting",
}  # fmt: skip
SETTLES: Final = ("ack", "nack", "release", "lease_expired")
ENDS_OF_LEASES: Final = ("nack", "release", "lease_expired")
"""These refer to an earlier record, so they come first in their own record, regardless of their number there."""
EVENTS: Final = (
    "tenant", "message_id", "shard", "queue", "bytes", "priority", "seq", "n", "ts", "op", "wait_ms", "process_ms",
    "target",
)  # fmt: skip
LIVES: Final = (
    "tenant", "message_id", "shard", "queue", "bytes", "priority", "added_at", "dead_letters", "redrives", "deliveries",
    "settlements", "last",
)  # fmt: skip
_NEVER: Final = np.iinfo("i8").max


class _LifeColumns(msgspec.Struct):
    """Events and known lives as arrays, a row each. Texts are ranks in the vocabularies; ``group`` is the life."""

    known: NDArray[Any]  # whether the row is a known life
    key: NDArray[Any]
    op: NDArray[Any]  # rank; of no op for known lives
    seq: NDArray[Any]
    place: NDArray[Any]
    state: NDArray[Any]
    at: NDArray[Any]
    end_queue: NDArray[Any]
    end_shard: NDArray[Any]
    shard: NDArray[Any]
    queue: NDArray[Any]

    def in_journal_order(self) -> NDArray[Any]:
        """Return all rows in the order of what happened to each life on one shard. Most come in this order."""
        order = in_order(self.key)
        key, seq, place = self.key[order], self.seq[order], self.place[order]
        later = (seq[1:] > seq[:-1]) | ((seq[1:] == seq[:-1]) & (place[1:] > place[:-1]))
        wrong = key[1:][(key[1:] == key[:-1]) & ~later]
        if len(wrong):
            again = np.flatnonzero(np.isin(key, wrong))
            order[again] = self.order(order[again], by_time=False)
        return order

    def order(self, rows: NDArray[Any], *, by_time: bool) -> NDArray[Any]:
        """Return rows in the order of what happened to each life."""
        keys = [self.seq, self.place, self.state, self.end_queue, self.at, self.end_shard]
        keys = [self.key, *([self.at] if by_time else []), *keys]
        found: NDArray[Any] = rows[ordered([one[rows] for one in keys])]
        return found


class _Lists(msgspec.Struct):
    """Deliveries or settlements of all lives: the first of each life in ``offsets``, and their columns."""

    offsets: NDArray[Any]
    columns: dict[str, NDArray[Any]]

    @property
    def counts(self) -> NDArray[Any]:
        return np.diff(self.offsets)

    def total(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum per life."""
        sums = np.concatenate([np.zeros(1, "i8"), np.cumsum(values.astype("i8"))])
        found: NDArray[Any] = sums[self.offsets[1:]] - sums[self.offsets[:-1]]
        return found


def merge_lives(events: pa.Table, known: pa.Table, resets: ResetIndex) -> pa.Table:
    """Return rows of MESSAGE_LIVES from ``events`` (columns EVENTS) and ``known`` lives (columns LIVES)."""
    return _LifeMerge(events, known, resets).table()


class _LifeMerge:
    """One merge."""

    def __init__(self, events: pa.Table, known: pa.Table, resets: ResetIndex) -> None:
        self._events, self._known, self._resets = events, known, resets
        self._last = _fields(known["last"])
        self._lists = {name: _flattened(known[name]) for name in ("deliveries", "settlements")}
        given, gone = (self._lists[name][1] for name in ("deliveries", "settlements"))
        last_shard = pc.coalesce(self._last["shard"], known["shard"].cast(pa.string()))
        self._tenants = Vocabulary(events["tenant"], known["tenant"])
        self._shards = Vocabulary(events["shard"], known["shard"], last_shard)
        self._queues = Vocabulary(
            events["queue"], events["target"], known["queue"], self._last["queue"], given["queue"], gone["queue"]
        )
        self._ops = Vocabulary(events["op"], gone["op"])
        self._states = Vocabulary(pa.array(sorted({*STATES.values()})), self._last["state"])
        ids = whole(pa.chunked_array([whole(events["message_id"]).cast(pa.string()), whole(known["message_id"]).cast(pa.string())]))  # fmt: skip
        encoded = ids.dictionary_encode()
        self._ids, self._id_of = encoded.dictionary, numbers(encoded.indices)
        self._parts = self._arranged()
        self._group()

    def _arranged(self) -> _LifeColumns:
        events, known, last = self._events, self._known, self._last
        shard, known_shard, last_shard = self._shards.ranks
        queue, target, known_queue, last_queue = self._queues.ranks[:4]
        op, n = self._ops.ranks[0], numbers(events["n"])
        states = np.array([self._states.rank.get(STATES.get(word), -1) for word in self._ops.words] + [-1], "i8")
        place = np.where(self._ops.marked(op, ENDS_OF_LEASES), -1, n)
        rank = np.empty(len(self._ids), "i8")
        rank[pc.sort_indices(self._ids).to_numpy()] = np.arange(len(rank))
        tenant = np.concatenate(self._tenants.ranks)
        return _LifeColumns(
            known=np.repeat([False, True], [len(events), len(known)]),
            key=tenant * len(rank) + rank[self._id_of],
            op=np.concatenate([op, np.full(len(known), -1)]),
            seq=np.concatenate([numbers(events["seq"]), numbers(last["seq"])]),
            place=np.concatenate([place, numbers(last["place"])]),
            state=np.concatenate([states[op], self._states.ranks[1]]),
            at=np.concatenate([numbers(events["ts"]), numbers(last["at"])]),
            end_queue=np.concatenate([np.where(target >= 0, target, queue), last_queue]),
            end_shard=np.concatenate([shard, last_shard]),
            shard=np.concatenate([shard, known_shard]),
            queue=np.concatenate([queue, known_queue]),
        )

    def _group(self) -> None:
        """Find the rows of each life, its last event, and whether it was on two shards."""
        parts = self._parts
        order = parts.in_journal_order()
        self._order, self._starts = order, group_starts(parts.key[order])
        sizes = np.diff(np.append(self._starts, len(order)))
        self._of = np.empty(len(order), "i8")  # the life of each row
        self._of[order] = np.repeat(np.arange(len(sizes)), sizes)
        self._end = order[self._starts + sizes - 1]
        self._shard = self._reduced(np.minimum, parts.shard)
        self._moved = self._shard != self._reduced(np.maximum, np.maximum(parts.shard, parts.end_shard))
        apart = self._reduced(np.minimum, parts.end_shard) != self._reduced(np.maximum, parts.end_shard)
        if apart.any():
            rows = parts.order(np.flatnonzero(apart[self._of]), by_time=True)
            self._end[self._of[rows]] = rows  # the last one stays

    def _reduced(self, function: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        return function.reduceat(values[self._order], self._starts)

    def _marked(self, *ops: str) -> NDArray[Any]:
        return self._ops.marked(self._parts.op, ops)

    def table(self) -> pa.Table:
        """Return the lives in the order of the table: by tenant and id."""
        parts, first = self._parts, self._order[self._starts]
        deliveries = self._listed("deliveries", self._marked("poll"), "wait_ms")
        settlements = self._listed("settlements", self._marked(*SETTLES), "process_ms")
        added = self._marked("add")
        added_at = self._least(
            np.where(added, parts.at, self._joined(_NEVER, numbers(self._known["added_at"], _NEVER)))
        )
        queue = self._reduced(np.maximum, np.where(added | parts.known, parts.queue, -1))
        end = self._end
        cut_at, cut_op = self._cuts(end, first)
        is_open = self._states.marked(parts.state[end], OPEN)
        state = self._states.array(parts.state[end]).cast(pa.string())
        outcome = pc.if_else(pa.array(cut_at >= 0), pa.array(cut_op, pa.string()), state)
        ended_at = np.where(cut_at >= 0, cut_at, parts.at[end])
        waits, op = deliveries.columns["wait_ms"], settlements.columns["op"]
        count = {name: settlements.total(self._ops.marked(op, [name])) for name in ENDS_OF_LEASES}
        given = deliveries.counts > 0
        ids = self._ids.take(pa.array(self._id_of[first]))
        made = {
            "tenant": self._tenants.array(np.concatenate(self._tenants.ranks)[first]),
            "message_id": ids,
            "shard": self._shards.array(self._shard),
            "queue": self._queues.array(queue),
            "bytes": self._most("bytes", pa.int64()),
            "priority": self._most("priority", pa.int32()),
            "added_at": times(added_at, added_at != _NEVER),
            "first_wait_ms": pa.array(_taken(waits, deliveries.offsets[:-1]), pa.int64(), mask=~given),
            "wait_ms": deliveries.total(waits),
            "process_ms": settlements.total(settlements.columns["process_ms"]),
            "attempts": deliveries.counts - count["release"],
            "nacks": count["nack"],
            "lease_expiries": count["lease_expired"],
            "releases": count["release"],
            "dead_letters": self._counted("dead_letter", "dead_letters"),
            "redrives": self._counted("redrive", "redrives"),
            "outcome": outcome,
            "ended_at": times(ended_at, (cut_at >= 0) | ~is_open),
            "leased_at_end": pa.array(deliveries.counts > settlements.counts),
            "deliveries": self._array(deliveries, ("seq", "at", "queue", "wait_ms")),
            "settlements": self._array(settlements, ("seq", "at", "queue", "op", "process_ms")),
            "last": pa.StructArray.from_arrays(
                [
                    pa.array(parts.seq[end]), pa.array(parts.place[end], pa.int32()), state,
                    self._queues.array(parts.end_queue[end]).cast(pa.string()), times(parts.at[end]),
                    self._shards.array(parts.end_shard[end]).cast(pa.string()),
                ],
                ["seq", "place", "state", "queue", "at", "shard"],
            ),
            "date": date_texts(life_days(ids) * DAY_US),
        }  # fmt: skip
        return pa.table(made)

    def _joined(self, of_events: Any, of_known: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([np.broadcast_to(np.asarray(of_events, "i8"), len(self._events)), of_known])

    def _least(self, values: NDArray[Any]) -> NDArray[Any]:
        return self._reduced(np.minimum, values)

    def _most(self, name: str, kind: pa.DataType) -> pa.Array:
        values = self._joined(numbers(self._events[name]), numbers(self._known[name]))
        return pa.array(self._reduced(np.maximum, values), kind)

    def _counted(self, op: str, column: str) -> NDArray[Any]:
        return self._reduced(np.add, self._marked(op) + self._joined(0, numbers(self._known[column])))

    def _listed(self, name: str, rows: NDArray[Any], value: str) -> _Lists:
        """Return the deliveries or settlements of each life, in order."""
        lengths, flat = self._lists[name]
        new = np.flatnonzero(rows)
        queues = self._queues.ranks[4 if name == "deliveries" else 5]
        columns = {
            "seq": np.concatenate([self._parts.seq[new], numbers(flat["seq"])]),
            "at": np.concatenate([self._parts.at[new], numbers(flat["at"])]),
            "queue": np.concatenate([self._parts.queue[new], queues]),
            **({"op": np.concatenate([self._parts.op[new], self._ops.ranks[1]])} if name == "settlements" else {}),
            value: np.concatenate([numbers(self._events[value])[new], numbers(flat[value])]),
        }
        group = np.concatenate([self._of[new], np.repeat(self._of[len(self._events) :], lengths)])
        order = in_order(group)
        counts = np.bincount(group, minlength=len(self._starts))
        several = np.flatnonzero((counts > 1)[group[order]])
        if len(several):  # most lives have one
            some = order[several]
            by_time = np.where(self._moved[group[some]], columns["at"][some], 0)
            order[several] = some[ordered([group[some], by_time, *(one[some] for one in columns.values())])]
        offsets = np.concatenate([np.zeros(1, "i8"), np.cumsum(counts)])
        return _Lists(offsets, {key: one[order] for key, one in columns.items()})

    def _array(self, lists: _Lists, names: tuple[str, ...]) -> pa.Array:
        vocabularies = {"queue": self._queues, "op": self._ops}
        fields = [
            vocabularies[name].array(lists.columns[name]).cast(pa.string())
            if name in vocabularies
            else times(lists.columns[name])
            if name == "at"
            else pa.array(lists.columns[name])
            for name in names
        ]
        return pa.ListArray.from_arrays(pa.array(lists.offsets, pa.int32()), pa.StructArray.from_arrays(fields, names))

    def _cuts(self, end: NDArray[Any], first: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return when a reset of its queue ended each open life, else -1, and what the life became by it."""
        at, what = np.full(len(end), -1), np.full(len(end), None)
        parts = self._parts
        rows = np.flatnonzero(self._states.marked(parts.state[end], OPEN))
        ends = end[rows]
        tenant = np.concatenate(self._tenants.ranks)[first[rows]]
        found = self._resets.around(
            (self._shards, parts.end_shard[ends]), (self._tenants, tenant), (self._queues, parts.end_queue[ends]),
            parts.seq[ends], parts.place[ends], tie_passed=True,
        )  # fmt: skip
        cut = found.next_at >= 0
        at[rows[cut]] = found.next_at[cut]
        what[rows[cut]] = np.where(found.next_purges[cut], "purged", "dropped")
        return at, what


def _taken(values: NDArray[Any], at: NDArray[Any]) -> NDArray[Any]:
    """Return values at places, which may be one behind the end."""
    found: NDArray[Any] = np.append(values, 0)[at]
    return found


def _fields(column: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return the fields of a struct. Lives of older lakes have no shard of their last event."""
    found = whole(column)
    names = [found.type.field(at).name for at in range(found.type.num_fields)]
    fields = dict(zip(names, found.flatten(), strict=True))
    return {"shard": pa.nulls(len(found), pa.string()), **fields}


def _flattened(column: pa.ChunkedArray) -> tuple[NDArray[Any], dict[str, pa.Array]]:
    """Return the lengths of lists, and the fields of all their elements."""
    found = whole(column)
    return numbers(pc.list_value_length(found)), _fields(pa.chunked_array([found.flatten()]))


def empty_events() -> pa.Table:
    """Return no events."""
    text, number = pa.string(), pa.int64()
    kinds = {"ts": TIME, **dict.fromkeys(("bytes", "priority", "seq", "n", "wait_ms", "process_ms"), number)}
    return pa.table({name: pa.array([], kinds.get(name, text)) for name in EVENTS})


def in_one(tables: list[pa.Table], empty: pa.Table) -> pa.Table:
    """Return the rows of all tables."""
    return joined(tables) if tables else empty
