"""An independent recount of a store at rest: all rows of all families, compared with the counters and each other.

It shares only the row formats with the engine. It reads the store without altering it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from tenantq.doctor.store_check import open_embedded
from tenantq.engine.catalog import QUEUE_ROW, TENANT_ROW, QueueRow, TenantRow
from tenantq.engine.work_counters import TOTALS
from tenantq.journal.record import JournalRow, Record, decode_record, rows
from tenantq.store.keys import (
    EXPIRES_KEY,
    EXPIRES_TTL,
    ID_BYTES,
    be64,
    digest,
    expiry_key,
    from_be64,
    split_deadline_key,
    split_expiry_key,
    split_waiting_key,
)
from tenantq.store.rows import unpack_counters, unpack_key, unpack_lease, unpack_message, unpack_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.store.interface import Store
    from tenantq.store.rows import CountersRow

JOURNAL_ANCHOR = b"journal_anchor"
_END = b"\xff" * 64
_TOTAL_OF = {
    ("add", "ok"): "added", ("poll", "ok"): "delivered", ("ack", "ok"): "acked", ("nack", "ok"): "nacked",
    ("lease_expired", "expired"): "lease_expired", ("dead_letter", "dead"): "dead", ("expire", "expired"): "expired",
    ("remove", "ok"): "removed", ("heal", "healed"): "healed",
}  # fmt: skip


class Stored(msgspec.Struct, frozen=True):
    """One message as the store has it."""

    tenant: str
    queue: str
    id: bytes
    body: bytes
    state: str


class Recount(msgspec.Struct):
    """What a store holds, and all inconsistencies."""

    messages: list[Stored]
    drift: list[str]
    journal: list[JournalRow]  # the rows of the requested records
    seq: int  # of the last journal record
    link: bytes  # its hash
    rows_by_family: dict[str, int]


class JournalTally:
    """Follows the journal through restarts and trims, and computes the totals of every queue."""

    def __init__(self) -> None:
        self.seq = 0
        self.link = bytes(32)
        self.totals: Counter[tuple[str, str, str]] = Counter()

    def take(self, found: Recount) -> None:
        """Continue after what ``found`` has read."""
        self.seq, self.link = found.seq, found.link
        for row in found.journal:
            name = _TOTAL_OF.get((row.op, row.outcome))
            if name is not None:
                self.totals[row.tenant, row.queue, name] += 1
                if name == "added":
                    self.totals[row.tenant, row.queue, "added_bytes"] += row.bytes


def dump(store: Store) -> dict[str, dict[bytes, bytes]]:
    """Return every row of every family; a damaged one raises."""
    contents: dict[str, dict[bytes, bytes]] = {}
    for name in ("meta", "m", "vi", "le", "li", "gr", "ik", "re", "ex", "qc", "jn"):
        family, lower = store.family(name), b""
        found: dict[bytes, bytes] = {}
        while page := store.scan_items(family, lower, _END, 5_000):
            found.update(page)
            lower = page[-1][0] + b"\0"
        contents[name] = found
    return contents


def recount(directory: Path, tally: JournalTally, open_store: Callable[[Path], Store] = open_embedded) -> Recount:
    """Open the store read-only, recount it, follow its journal, and close it."""
    store = open_store(directory)
    try:
        contents = dump(store)
    finally:
        store.close()
    drift: list[str] = []
    found = Recount([], drift, [], tally.seq, tally.link, {name: len(family) for name, family in contents.items()})
    newest_ms = _follow_journal(contents, found)
    tally.take(found)
    tenants = {
        int.from_bytes(key[len(TENANT_ROW) :]): msgspec.msgpack.decode(value, type=TenantRow).name
        for key, value in contents["meta"].items()
        if key.startswith(TENANT_ROW)
    }
    known: set[bytes] = set()
    for key, value in contents["meta"].items():
        if key.startswith(QUEUE_ROW):
            prefix = key[len(QUEUE_ROW) :]
            known.add(prefix)
            name = msgspec.msgpack.decode(value, type=QueueRow).name
            one = _Queue(tenants[int.from_bytes(prefix[:4])], name, prefix, contents, found, newest_ms)
            one.check(tally)
    for family, all_rows in contents.items():
        if family not in {"meta", "jn"}:
            orphans = {key[:8] for key in all_rows} - known
            drift += [f"{family}: rows under {prefix.hex()}, which is no queue" for prefix in orphans]
    return found


def _follow_journal(contents: dict[str, dict[bytes, bytes]], found: Recount) -> int:
    """Check the chain from where the last recount ended; return the shard time of the newest record."""
    journal, drift = contents["jn"], found.drift
    seqs = sorted(from_be64(key) for key in journal)
    anchor = contents["meta"].get(JOURNAL_ANCHOR)
    first = from_be64(anchor) + 1 if anchor else 1
    if seqs != list(range(first, first + len(seqs))):
        drift.append(f"journal: gap or stray record between {seqs[:1]} and {seqs[-1:]}, it should start at {first}")
        return 0
    last = seqs[-1] if seqs else first - 1
    if last < found.seq:
        drift.append(f"journal: ends at {last}, was at {found.seq} before")
    newest_ms = from_be64(anchor[40:]) if anchor else 0
    if first > found.seq + 1:
        drift.append(f"journal: trimmed up to {first - 1}, but only {found.seq} was read")
        return newest_ms
    for seq in seqs:
        value = journal[be64(seq)]
        link, record = decode_record(value)
        newest_ms = max(newest_ms, record.engine_ms)
        if seq > found.seq:
            if hashlib.sha256(found.link + value[32:]).digest() != link:
                drift.append(f"journal: record {seq} does not follow from the one before")
            found.seq, found.link = seq, link
            found.journal += _rows(record)
    return newest_ms


def _rows(record: Record) -> list[JournalRow]:
    return list(rows(record))


class _Queue:
    """The rows of one queue, compared with each other."""

    def __init__(
        self,
        tenant: str,
        name: str,
        prefix: bytes,
        contents: dict[str, dict[bytes, bytes]],
        found: Recount,
        newest_ms: int,
    ) -> None:
        self.tenant, self.name, self.prefix, self.found, self.newest_ms = tenant, name, prefix, found, newest_ms
        self.rows = {
            family: {key: value for key, value in all_rows.items() if key.startswith(prefix)}
            for family, all_rows in contents.items()
            if family not in {"meta", "jn"}
        }
        self.messages = {key[8:]: unpack_message(value) for key, value in self.rows["m"].items()}
        self.leases = {key[8:]: unpack_lease(value) for key, value in self.rows["le"].items()}
        self.held = {id for id, lease in self.leases.items() if lease.token}
        self.waiting = {split_waiting_key(key)[3]: split_waiting_key(key)[1:3] for key in self.rows["vi"]}

    def wrong(self, text: str) -> None:
        self.found.drift.append(f"{self.tenant}/{self.name}: {text}")

    def check(self, tally: JournalTally) -> None:
        heads, members = self._groups()
        blocked = {id for _, id in members} - set(heads.values())
        for id, message in self.messages.items():
            states = [
                state
                for state, ids in (("waiting", self.waiting), ("in_flight", self.held), ("blocked", blocked))
                if id in ids
            ]
            if len(states) != 1:
                self.wrong(f"message {id.hex()} is {' and '.join(states) or 'nowhere'}")
            self.found.messages.append(Stored(self.tenant, self.name, id, message.body, "+".join(states)))
        for what, ids in (("vi", set(self.waiting)), ("le", set(self.leases)), ("gr", {id for _, id in members})):
            for id in ids - set(self.messages):
                self.wrong(f"{what}: row of {id.hex()}, which has no body")
        if len(self.waiting) != len(self.rows["vi"]):
            self.wrong("vi: a message stands in it twice")
        self._check_deadlines()
        self._check_expiries()
        counters = self.rows["qc"].get(self.prefix)
        if counters is None:
            if self.messages:
                self.wrong("qc: no counters")
            return
        self._check_counters(unpack_counters(counters), len(blocked), tally)

    def _groups(self) -> tuple[dict[bytes, bytes], set[tuple[bytes, bytes]]]:
        heads: dict[bytes, bytes] = {}
        members: set[tuple[bytes, bytes]] = set()
        for key, value in self.rows["gr"].items():
            rest = key[8:]
            if len(rest) == ID_BYTES:
                heads[rest] = value
            else:
                members.add((rest[:ID_BYTES], rest[ID_BYTES:]))
        for group, head in heads.items():
            if (group, head) not in members:
                self.wrong(f"gr: the head {head.hex()} is no member of its group")
        for group, id in members:
            if group not in heads:
                self.wrong(f"gr: member {id.hex()} of a group without a head")
            message = self.messages.get(id)
            named = digest((message.group or "").encode()) if message is not None else group
            if named != group:
                self.wrong(f"gr: {id.hex()} is in another group than its message says")
        grouped = {id for _, id in members}
        for id, message in self.messages.items():
            if (message.group is not None or self.name.endswith(".fifo")) and id not in grouped:
                self.wrong(f"gr: {id.hex()} has a group but is in none")
        return heads, members

    def _check_deadlines(self) -> None:
        stored = {(deadline, id) for _, deadline, id in map(split_deadline_key, self.rows["li"])}
        wanted = {(self.leases[id].deadline, id) for id in self.held}
        for deadline, id in stored ^ wanted:
            self.wrong(
                f"li: lease of {id.hex()} until {deadline} is {'orphaned' if (deadline, id) in stored else 'missing'}"
            )

    def _check_expiries(self) -> None:
        keys = {key[8:]: unpack_key(value) for key, value in self.rows["ik"].items()}
        results = {key[8:]: unpack_result(value) for key, value in self.rows["re"].items()}
        for key in self.rows["ex"]:
            _, expires_at, kind, ref = split_expiry_key(key)
            if kind == EXPIRES_TTL:
                if ref not in self.messages or self._expires_at(ref) != expires_at:
                    self.wrong(f"ex: lifetime of {ref.hex()}, which is gone or has another")
            elif kind == EXPIRES_KEY:
                if ref not in keys or keys[ref].expires_at != expires_at:
                    self.wrong(f"ex: idempotency key {ref.hex()}, which is gone or has another end")
            elif ref not in results:
                self.wrong(f"ex: result of {ref.hex()}, which is gone")
        for id in self.messages:
            at = self._expires_at(id)
            if at > self.newest_ms and expiry_key(self.prefix, at, EXPIRES_TTL, id) not in self.rows["ex"]:
                self.wrong(f"ex: no row for the lifetime of {id.hex()}")
        for ref, row in keys.items():
            if expiry_key(self.prefix, row.expires_at, EXPIRES_KEY, ref) not in self.rows["ex"]:
                self.wrong(f"ex: no row for idempotency key {ref.hex()}")

    def _expires_at(self, id: bytes) -> int:
        lease = self.leases.get(id)
        return lease.expires_at if lease is not None else self.messages[id].expires_at

    def _check_counters(self, counters: CountersRow, blocked: int, tally: JournalTally) -> None:
        horizons = {level.priority: level.horizon for level in counters.levels}
        ready: Counter[int] = Counter()
        delayed: Counter[int] = Counter()
        for id, (priority, visible_at) in self.waiting.items():
            suffix = be64(visible_at) + id
            (ready if suffix <= horizons.get(priority, b"") else delayed)[priority] += 1
        for level in counters.levels:
            if (level.ready, level.delayed) != (ready[level.priority], delayed[level.priority]):
                self.wrong(
                    f"qc: priority {level.priority} counts {level.ready} ready, {level.delayed} delayed;"
                    f" there are {ready[level.priority]}, {delayed[level.priority]}"
                )
            for id, (priority, visible_at) in self.waiting.items():
                if priority != level.priority:
                    continue
                suffix = be64(visible_at) + id
                if suffix < level.cursor:
                    self.wrong(f"qc: {id.hex()} lies before the cursor of priority {priority}")
                if suffix > level.horizon and visible_at < level.next_due:
                    self.wrong(f"qc: {id.hex()} is due at {visible_at}, before the next_due {level.next_due}")
        for priority in (set(ready) | set(delayed)) - set(horizons):
            self.wrong(f"qc: messages of priority {priority}, which is not counted")
        size = sum(message.size for message in self.messages.values())
        for what, counted, there in (
            ("blocked", counters.blocked, blocked),
            ("in_flight", counters.in_flight, len(self.held)),
            ("bytes", counters.bytes, size),
        ):
            if counted != there:
                self.wrong(f"qc: {what} counted {counted}, there are {there}")
        if any(split_deadline_key(key)[1] < counters.next_lease for key in self.rows["li"]):
            self.wrong("qc: a lease ends before next_lease")
        if any(split_expiry_key(key)[1] < counters.next_expiry for key in self.rows["ex"]):
            self.wrong("qc: something expires before next_expiry")
        for name, counted in zip(TOTALS, counters.totals, strict=False):
            journaled = tally.totals[self.tenant, self.name, name]
            if counted != journaled:
                self.wrong(f"qc: {name}_total is {counted}, the journal tells of {journaled}")
        if counters.totals[TOTALS.index("healed")]:
            self.wrong("qc: rows were healed, so some had been wrong")
