"""A synthetic journal of any size: seeded, vectorised, with real hash chains, hashes and signatures.

Messages behave as in the engine: added in batches, delivered after a wait, acked, or failed and retried up to three times,
then moved to the dead letters; some expire, some are removed or purged; calls are denied and throttled. A tenant belongs to one
shard. Shards are independent, so a separate process writes each.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.manifest import ExportHead, Manifest, segment_name
from tenantq.journal.record import GENESIS, JournalEntry, Record, encode_record
from tenantq.journal.segment import SCHEMA, to_parquet
from tenantq.journal.signing import SigningKey
from tenantq.pipeline.bronze.segment_check import id_texts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

START_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00:00Z
HOUR_MS: Final = 3_600_000
ROUND_MS: Final = 100
GIANT_SHARE: Final = 0.9
_ROWS_PER_MESSAGE: Final = 3.09  # measured, including refusals
_ATTEMPTS: Final = 3
_FAILURES: Final = 0.04
_PURGE_HOURS: Final = 6
_QUEUES: Final = ("work", "mail", "bulk", "scratch", "work.dead", "mail.dead", "bulk.dead")
_SCRATCH: Final = 3
_DEAD: Final = 4  # from a queue to its dead letters
_AGENTS: Final = ("tenantq-python/0.1", "curl/8.5", "worker/2.3")

_KINDS: Final = (
    # op, outcome, error_code, whether the shard itself did it; in the order within a record
    ("create_tenant", "ok", "", False),
    ("create_queue", "ok", "", False),
    ("lease_expired", "expired", "", True),
    ("dead_letter", "dead", "", True),
    ("nack", "ok", "", False),
    ("expire", "expired", "", True),
    ("add", "ok", "", False),
    ("poll", "ok", "", False),
    ("ack", "ok", "", False),
    ("remove", "ok", "", False),
    ("purge", "ok", "", False),
    ("peek", "denied", "forbidden", False),
    ("add", "throttled", "rate_limited", False),
)
(
    _CREATE_TENANT, _CREATE_QUEUE, _LEASE_EXPIRED, _DEAD_LETTER, _NACK, _EXPIRE, _ADD, _POLL, _ACK, _REMOVE, _PURGE, _DENIED,
    _THROTTLED,
) = range(len(_KINDS))  # fmt: skip

_EVENT: Final = np.dtype(
    [
        ("ts", "i8"), ("kind", "i1"), ("place", "i4"), ("group", "i8"), ("high", "u8"), ("low", "u8"), ("bytes", "i8"),
        ("priority", "i1"), ("attempt", "i1"), ("wait_ms", "i8"), ("process_ms", "i8"), ("count", "i4"),
    ]
)  # fmt: skip
"""An event of a message, or a call without one (``low`` is 0). ``group`` has the rows of one call."""


class WrittenJournal(msgspec.Struct, frozen=True):
    """The written journal."""

    rows: int
    records: int
    segments: int
    bytes: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The journal to write."""

    rows: int
    rows_per_day: int = 10_000_000
    seed: int = 1
    shards: int = 4
    tenants: int = 200  # per shard; sizes follow a power law
    giant: bool = False  # one tenant has 90 % of the rows
    segment_rows: int = 50_000


def make_journal(directory: Path, plan: Plan, processes: int = 2) -> WrittenJournal:
    """Write a journal of about ``plan.rows`` rows to ``directory``. The signing key is in its parent."""
    directory.mkdir(parents=True, exist_ok=True)
    SigningKey.load_or_make(directory.parent)
    shares = [1 / plan.shards] * plan.shards
    if plan.giant:
        shares = [GIANT_SHARE, *[(1 - GIANT_SHARE) / max(1, plan.shards - 1)] * (plan.shards - 1)]
    wanted = [(directory, plan, shard, round(plan.rows * share)) for shard, share in enumerate(shares)]
    if processes == 1:
        return _total([_make_shard(*one) for one in wanted])
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return _total(list(pool.map(_make_shard, *zip(*wanted, strict=True))))


def _total(parts: Sequence[WrittenJournal]) -> WrittenJournal:
    return WrittenJournal(*(sum(column) for column in zip(*map(msgspec.structs.astuple, parts), strict=True)))


def _make_shard(directory: Path, plan: Plan, shard: int, rows: int) -> WrittenJournal:
    hours = max(1, round(plan.rows / plan.rows_per_day * 24))
    traffic, writer = _Traffic(plan, shard), _Writer(directory, plan, shard, SigningKey.load_or_make(directory.parent))
    for hour in range(hours):
        writer.write(traffic.hour(START_MS + hour * HOUR_MS, round(rows / hours / _ROWS_PER_MESSAGE)), traffic)
    return writer.finish()


class _Traffic:
    """The events of one shard by hour. Events after the end of an hour are carried over."""

    def __init__(self, plan: Plan, shard: int) -> None:
        self.random = np.random.default_rng((plan.seed, shard))
        giant = plan.giant and shard == 0
        self.tenants = ["giant"] if giant else [f"tenant-{shard}-{number:04d}" for number in range(plan.tenants)]
        weights = 1 / np.arange(1, len(self.tenants) + 1) ** 1.1
        self._weights = weights / weights.sum()
        self._carried = np.empty(0, _EVENT)
        self._next_low = (2 << 62) | (shard << 48) | 1
        self._next_group = 1
        self._scratch: dict[int, tuple[int, int]] = {}  # messages and bytes since the last purge
        self.purged: dict[int, str] = {}  # by group: the details of its row

    def hour(self, start: int, messages: int) -> NDArray[Any]:
        """Return the events of an hour in the order of rounds."""
        fresh = [self._beginning(start)] if start == START_MS else []
        added, held = self._adds(start, messages)
        fresh += [added, *self._lives(held), self._refusals(start, messages)]
        if (start // HOUR_MS) % _PURGE_HOURS == _PURGE_HOURS - 1:
            fresh.append(self._purges(start))
        events = np.concatenate([self._carried, *fresh])
        now = events["ts"] < start + HOUR_MS
        self._carried, events = events[~now], events[now]
        events["ts"] -= events["ts"] % ROUND_MS
        order: NDArray[Any] = events[np.lexsort((events["low"], events["group"], events["kind"], events["ts"]))]
        return order

    def _beginning(self, start: int) -> NDArray[Any]:
        count = len(self.tenants)
        found = np.zeros(count * (1 + len(_QUEUES)), _EVENT)
        found["ts"], found["count"], found["group"] = start, 1, self._groups(len(found))
        found["kind"][:count], found["kind"][count:] = _CREATE_TENANT, _CREATE_QUEUE
        found["place"][:count] = -1 - np.arange(count)
        found["place"][count:] = np.arange(count * len(_QUEUES))
        return found

    def _adds(self, start: int, messages: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return adds, and the same messages without those that are never polled."""
        sizes = self.random.choice([1, 2, 5, 10, 20], messages // 3 + 20, p=[0.35, 0.25, 0.2, 0.15, 0.05])
        calls = min(len(sizes), int(np.searchsorted(np.cumsum(sizes), messages)) + 1)
        sizes = sizes[:calls]
        tenant = self.random.choice(len(self.tenants), calls, p=self._weights)
        queue = self.random.choice(4, calls, p=[0.6, 0.25, 0.14, 0.01])
        # The first round creates tenants and queues, so nothing is added in it.
        ts = start + ROUND_MS + self.random.integers(0, HOUR_MS - 2 * ROUND_MS, calls)
        at = np.repeat(np.arange(calls), sizes)
        found = np.zeros(len(at), _EVENT)
        found["ts"], found["place"], found["group"] = (
            ts[at],
            (tenant * len(_QUEUES) + queue)[at],
            self._groups(calls)[at],
        )
        found["kind"], found["count"], found["priority"] = _ADD, 1, 5
        found["high"] = (found["ts"].astype("u8") << np.uint64(16)) | np.uint64(0x7000)
        found["low"] = np.uint64(self._next_low) + np.arange(len(found), dtype="u8")
        self._next_low += len(found)
        found["bytes"] = self.random.lognormal(5.5, 1.0, len(found)).astype("i8") + 1
        scratch = found["place"] % len(_QUEUES) == _SCRATCH
        for place in np.unique(found["place"][scratch]):
            mine = found[found["place"] == place]
            count, size = self._scratch.get(int(place), (0, 0))
            self._scratch[int(place)] = (count + len(mine), size + int(mine["bytes"].sum()))
        return found, found[~scratch]

    def _lives(self, messages: NDArray[Any]) -> list[NDArray[Any]]:
        """Return everything that happens to messages after their add."""
        found: list[NDArray[Any]] = []
        expiring = self.random.random(len(messages)) < 0.002
        ended = _copy(messages[expiring], _EXPIRE)
        ended["ts"] += HOUR_MS
        ended["group"] = self._groups(len(ended))
        found.append(ended)
        left = messages[~expiring]
        for attempt in range(1, _ATTEMPTS + 1):
            polls, times = self._polls(left, attempt)
            found.append(polls)
            failing = self.random.random(len(polls)) < _FAILURES * attempt * attempt
            found.append(self._settled(polls[~failing], times[~failing], _ACK))
            failed, spent = polls[failing], times[failing]
            expired = self.random.random(len(failed)) < 0.2
            back = [
                self._settled(failed[expired], np.full(int(expired.sum()), 30_000), _LEASE_EXPIRED),
                self._settled(failed[~expired], spent[~expired], _NACK),
            ]
            found += back
            left = np.concatenate(back)
        return [*found, *self._buried(left)]

    def _polls(self, messages: NDArray[Any], attempt: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return deliveries, grouped by call, and their processing times."""
        calls, at = np.unique(messages["group"], return_inverse=True)
        waits = (self.random.lognormal(6.5, 1.6, len(calls)).astype("i8") + 2 * ROUND_MS)[at]
        times = (self.random.lognormal(5.0, 1.2, len(calls)).astype("i8") + 2 * ROUND_MS)[at]
        found = _copy(messages, _POLL)
        found["ts"] += waits
        found["wait_ms"], found["attempt"], found["process_ms"] = waits, attempt, 0
        found["group"] = self._groups(len(calls))[at]
        return found, times

    def _settled(self, polls: NDArray[Any], times: NDArray[Any], kind: int) -> NDArray[Any]:
        found = _copy(polls, kind)
        found["ts"] += times
        found["process_ms"], found["wait_ms"], found["priority"] = times, 0, 0
        calls, at = np.unique(found["group"], return_inverse=True)
        found["group"] = self._groups(len(calls))[at]
        return found

    def _buried(self, failed: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the moves to dead letters, in the round of the last failure, and the removal of some."""
        letters = _copy(failed, _DEAD_LETTER)
        letters["process_ms"], letters["group"] = 0, self._groups(len(letters))
        removed = _copy(letters[self.random.random(len(letters)) < 0.3], _REMOVE)
        removed["ts"] += self.random.integers(ROUND_MS * 2, 3 * HOUR_MS, len(removed))
        removed["place"] += _DEAD
        removed["attempt"], removed["group"] = 0, self._groups(len(removed))
        return [letters, removed]

    def _refusals(self, start: int, messages: int) -> NDArray[Any]:
        found = np.zeros(max(1, messages // 100), _EVENT)
        tenant = self.random.choice(len(self.tenants), len(found), p=self._weights)
        found["ts"] = start + self.random.integers(0, HOUR_MS, len(found))
        found["place"] = tenant * len(_QUEUES) + self.random.integers(0, 3, len(found))
        found["kind"] = np.where(self.random.random(len(found)) < 0.5, _DENIED, _THROTTLED)
        found["count"], found["group"] = self.random.geometric(0.5, len(found)), self._groups(len(found))
        return found

    def _purges(self, start: int) -> NDArray[Any]:
        """Purge the queues that are never polled, in the last round of the hour."""
        found = np.zeros(len(self._scratch), _EVENT)
        found["ts"], found["kind"], found["count"] = start + HOUR_MS - ROUND_MS, _PURGE, 1
        found["place"] = list(self._scratch)
        found["bytes"] = [size for _, size in self._scratch.values()]
        found["group"] = self._groups(len(found))
        self.purged = {
            int(group): f"{count} messages: nightly"
            for group, (count, _) in zip(found["group"], self._scratch.values(), strict=True)
        }
        self._scratch.clear()
        return found

    def _groups(self, count: int) -> NDArray[Any]:
        self._next_group += count
        return np.arange(self._next_group - count, self._next_group)


def _copy(events: NDArray[Any], kind: int) -> NDArray[Any]:
    found = events.copy()
    found["kind"] = kind
    return found


class _Writer:
    """Encodes events as records, one per round with events, and writes them as segments."""

    def __init__(self, directory: Path, plan: Plan, shard: int, key: SigningKey) -> None:
        self._target, self._plan, self._key, self._shard = DirectoryTarget(directory), plan, key, str(shard)
        self._seq, self._link = 0, GENESIS
        self._rows = self._segments = self._bytes = 0

    def finish(self) -> WrittenJournal:
        """Write the head and return the totals."""
        head = ExportHead(shard=self._shard, last_seq=self._seq, last_link=self._link.hex(), key_id=self._key.public.id)
        head = msgspec.structs.replace(head, signature=self._key.sign(head.signed_text()))
        self._target.write(head.name, msgspec.json.encode(head, order="sorted"))
        return WrittenJournal(self._rows, self._seq, self._segments, self._bytes)

    def write(self, events: NDArray[Any], traffic: _Traffic) -> None:
        """Write the events of an hour."""
        starts = np.append(np.flatnonzero(np.diff(events["ts"], prepend=-1)), len(events))
        begin = 0
        while begin < len(starts) - 1:
            most = starts[begin] + self._plan.segment_rows
            end = max(begin + 1, int(np.searchsorted(starts, most, "right")) - 1)
            self._write_segment(events[starts[begin] : starts[end]], starts[begin : end + 1] - starts[begin], traffic)
            begin = end

    def _write_segment(self, events: NDArray[Any], rounds: NDArray[Any], traffic: _Traffic) -> None:
        calls = _Calls(events, traffic, self._shard)
        first, before = self._seq + 1, self._link
        links, payloads = self._seal(
            calls, np.searchsorted(calls.starts, rounds).tolist(), events["ts"][rounds[:-1]].tolist()
        )
        data = to_parquet(calls.table(self._shard, first, rounds, links, payloads))
        ts = (int(events["ts"][0]), int(events["ts"][-1]))
        manifest = Manifest(
            shard=self._shard, first_seq=first, last_seq=self._seq, records=len(links), rows=len(events), size=len(data),
            sha256=hashlib.sha256(data).hexdigest(), previous_link=before.hex(), last_link=self._link.hex(), min_ts=ts[0],
            max_ts=ts[1], file=segment_name(self._shard, ts[0], first, self._seq), key_id=self._key.public.id,
        )  # fmt: skip
        manifest = msgspec.structs.replace(manifest, signature=self._key.sign(manifest.signed_text()))
        self._target.write(manifest.file, data)
        self._target.write(manifest.name, msgspec.json.encode(manifest, order="sorted"))
        self._rows += len(events)
        self._segments += 1
        self._bytes += len(data)

    def _seal(self, calls: _Calls, bounds: list[int], times: list[int]) -> tuple[list[bytes], list[bytes]]:
        links, payloads = [], []
        for number, ts in enumerate(times):
            self._seq += 1
            entries = calls.entries[bounds[number] : bounds[number + 1]]
            self._link, value = encode_record(self._link, Record(self._shard, self._seq, ts, ts, b"", entries))
            links.append(self._link)
            payloads.append(value[32:])
        return links, payloads


class _Calls:
    """The calls of one segment: the values that all rows of a call share, and the entries of the records."""

    def __init__(self, events: NDArray[Any], traffic: _Traffic, shard: str) -> None:
        self._events = events
        self.starts: NDArray[Any] = np.flatnonzero(np.diff(events["group"], prepend=-1))
        self._sizes = np.diff(np.append(self.starts, len(events)))
        one = events[self.starts]
        named = [_KINDS[kind] for kind in one["kind"].tolist()]
        places = [_place(place, traffic.tenants) for place in one["place"].tolist()]
        groups = one["group"].tolist()
        tenants = np.maximum(one["place"], -1 - one["place"] * len(_QUEUES)) // len(_QUEUES)
        keys = [f"key:{number % 3 + 1}" for number in tenants.tolist()]
        hosts = [
            f"10.{number % 200}.{number // 200}.{group % 7 + 1}"
            for number, group in zip(tenants.tolist(), groups, strict=True)
        ]
        own = [kind[3] for kind in named]
        self.columns: dict[str, list[Any]] = {
            "op": [kind[0] for kind in named],
            "tenant": [place[0] for place in places],
            "queue": [place[1] for place in places],
            "principal": ["system" if mine else key for mine, key in zip(own, keys, strict=True)],
            "remote": ["" if mine else host for mine, host in zip(own, hosts, strict=True)],
            "request_id": ["" if mine else f"{shard}-{group:012x}" for mine, group in zip(own, groups, strict=True)],
            "outcome": [kind[1] for kind in named],
            "error_code": [kind[2] for kind in named],
            "details": [
                _details(kind, place[1], group, traffic)
                for kind, place, group in zip(one["kind"].tolist(), places, groups, strict=True)
            ],
            "count": one["count"].tolist(),
            "user_agent": ["" if mine else _AGENTS[number % 3] for mine, number in zip(own, tenants.tolist(), strict=True)],
        }  # fmt: skip
        self.ids = np.stack([events["high"], events["low"]], axis=1).astype(">u8").tobytes()
        self.entries = self._entries()

    def _entries(self) -> list[JournalEntry]:
        events, columns, ids = self._events, self.columns, self.ids
        bounds = [*self.starts.tolist(), len(events)]
        numbers = [events[name].tolist() for name in ("bytes", "priority", "attempt", "wait_ms", "process_ms")]
        same = [np.minimum.reduceat(events[name], self.starts) == np.maximum.reduceat(events[name], self.starts) for name in ("bytes", "priority", "attempt", "wait_ms", "process_ms")]  # fmt: skip
        short = [[None if not flag else column[at] for flag, at in zip(flags.tolist(), bounds, strict=False)] for flags, column in zip(same, numbers, strict=True)]  # fmt: skip
        named = (events["low"][self.starts] != 0).tolist()
        texts = zip(
            *[columns[name] for name in ("op", "tenant", "queue", "principal", "remote", "request_id")], strict=True
        )
        rest = zip(
            *[columns[name] for name in ("outcome", "error_code", "details", "count", "user_agent")], strict=True
        )
        found = []
        for number, (front, back) in enumerate(zip(texts, rest, strict=True)):
            a, b = bounds[number], bounds[number + 1]
            values = [
                column[a:b] if one[number] is None else one[number] for one, column in zip(short, numbers, strict=True)
            ]
            fields: list[Any] = [*front, ids[16 * a : 16 * b] if named[number] else b"", *values, *back]
            found.append(JournalEntry(*fields))
        return found

    def table(
        self, shard: str, first_seq: int, rounds: NDArray[Any], links: list[bytes], payloads: list[bytes]
    ) -> pa.Table:
        """Return the rows of the segment."""
        events, count = self._events, len(self._events)
        sizes = np.diff(rounds)
        of_record = np.repeat(np.arange(len(sizes)), sizes)
        of_call = pa.array(np.repeat(np.arange(len(self.starts)), self._sizes))
        without = events["low"] == 0
        ids = id_texts(self.ids)
        leads = np.full(count, -1)
        leads[rounds[:-1]] = np.arange(len(links))
        lead = pa.array(leads, mask=leads < 0)
        made: dict[str, Any] = {
            "shard": pa.array([shard]).take(pa.array(np.zeros(count, "i4"))),
            "seq": of_record + first_seq,
            "n": np.arange(count) - rounds[of_record],
            "ts": events["ts"],
            "message_id": pa.compute.if_else(pa.array(without), "", ids) if without.any() else ids,
            "link": pa.array(links, pa.binary(32)).take(lead),
            "payload": pa.array(payloads, pa.binary()).take(lead),
        }
        made |= {name: pa.array(values).take(of_call) for name, values in self.columns.items()}
        made |= {name: events[name] for name in ("bytes", "priority", "attempt", "wait_ms", "process_ms")}
        return pa.table([_as(made[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def _as(column: Any, kind: pa.DataType) -> pa.Array:
    array = column if isinstance(column, pa.Array) else pa.array(np.ascontiguousarray(column))
    return array if array.type == kind else array.cast(kind)


def _place(place: int, tenants: Sequence[str]) -> tuple[str, str]:
    """Return tenant and queue. A negative number is a tenant without a queue."""
    if place < 0:
        return tenants[-1 - place], ""
    return tenants[place // len(_QUEUES)], _QUEUES[place % len(_QUEUES)]


def _details(kind: int, queue: str, group: int, traffic: _Traffic) -> str:
    if kind == _DEAD_LETTER:
        return f"to {queue}.dead: MAX_ATTEMPTS"
    if kind == _PURGE:
        return traffic.purged[group]
    if kind == _CREATE_TENANT:
        return 'version 1: {"messages_per_day":1000000}'
    return "failed" if kind == _NACK else ""
