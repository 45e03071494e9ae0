"""Journals for tests: records written by hand or by a seeded model of a queue, hashed, signed and laid out like the exporter's."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tenantq.journal.manifest import ExportHead, Manifest, segment_name
from tenantq.journal.record import GENESIS, JournalEntry, Record, encode_record
from tenantq.journal.segment import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.journal.export_target import DirectoryTarget
    from tenantq.journal.signing import SigningKey

START = 1_767_225_600_000  # 2026-01-01T00:00:00Z
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def message_id(number: int, ms: int = START) -> bytes:
    """Return an ID that was generated at ``ms``."""
    return ((ms << 80) | 7 << 76 | 2 << 62 | number).to_bytes(16)


class ChainedRecord(NamedTuple):
    """One record with its hash and its encoded payload."""

    link: bytes
    payload: bytes
    record: Record


def encode_chained(records: Sequence[ChainedRecord]) -> tuple[bytes, int]:
    """Return the bytes of a segment and its number of rows."""
    return encode([one.link + one.payload for one in records])


class JournalWriter:
    """Writes one shard's segments."""

    def __init__(self, target: DirectoryTarget, key: SigningKey | None = None, shard: str = "0") -> None:
        self.target, self.key, self.shard = target, key, shard
        self.seq, self.link = 0, GENESIS
        self.records: list[ChainedRecord] = []
        self.files: list[Manifest] = []
        self._written = 0

    def record(self, ts: int, *entries: JournalEntry) -> None:
        """Append a record."""
        self.seq += 1
        record = Record(self.shard, self.seq, ts, ts, b"", list(entries))
        self.link, value = encode_record(self.link, record)
        self.records.append(ChainedRecord(self.link, value[32:], record))

    def segment(self, *, write: bool = True) -> Manifest:
        """Write the records appended since the last segment as one segment with its manifest."""
        records = self.records[self._written :]
        self._written = len(self.records)
        return self.write(records, write=write)

    def write(self, records: Sequence[ChainedRecord], *, write: bool = True, **changes: object) -> Manifest:
        """Write any range of records as a segment."""
        data, rows = encode_chained(records)
        first, last = records[0].record, records[-1].record
        previous = self.records[first.seq - 2].link if first.seq > 1 else GENESIS
        times = [one.record.ts for one in records]
        manifest = Manifest(
            shard=self.shard, first_seq=first.seq, last_seq=last.seq, records=len(records), rows=rows, size=len(data),
            sha256=hashlib.sha256(data).hexdigest(), previous_link=previous.hex(), last_link=records[-1].link.hex(),
            min_ts=min(times), max_ts=max(times), file=segment_name(self.shard, first.ts, first.seq, last.seq),
            key_id=self.key.public.id if self.key else "",
        )  # fmt: skip
        manifest = msgspec.structs.replace(manifest, **changes)
        if self.key:
            manifest = manifest.signed(self.key)
        if write:
            self.put(manifest, data)
        self.files.append(manifest)
        return manifest

    def put(self, manifest: Manifest, data: bytes) -> None:
        """Store a segment, its manifest and the head."""
        self.target.write(manifest.file, data)
        self.target.write(manifest.name, msgspec.json.encode(manifest, order="sorted"))
        head = ExportHead(shard=self.shard, last_seq=manifest.last_seq, last_link=manifest.last_link)
        self.target.write(head.name, msgspec.json.encode(head, order="sorted"))


def entry(op: str, tenant: str = "acme", queue: str = "work", **columns: object) -> JournalEntry:
    """Return an entry."""
    principal = str(columns.pop("principal", "key:1"))
    return JournalEntry(op, tenant, queue, principal, **columns)  # type: ignore[arg-type]


_ACTS = ("add", "add", "poll", "poll", "ack", "ack", "nack", "release", "expired", "remove", "purge", "deny", "redrive")


class QueueModel:
    """A seeded model of tenants: every entry could have been written by the engine, in this order."""

    def __init__(self, writer: JournalWriter, seed: int, tenants: Sequence[str] = ("acme", "umbrella")) -> None:
        self.writer, self.random, self.tenants = writer, random.Random(seed), tenants
        self.waiting: dict[tuple[str, str], list[tuple[bytes, int, int]]] = {}  # id, size, deliveries
        self.leased: dict[tuple[str, str], list[tuple[bytes, int, int]]] = {}
        self.number = 0
        self.known: set[tuple[str, str]] = set()

    def round(self, ts: int) -> None:
        """Append one record with a few operations."""
        entries: list[JournalEntry] = []
        places = [(tenant, queue) for tenant in self.tenants for queue in ("work", "mail")]
        for tenant, queue in self.random.sample(places, self.random.randint(1, min(3, len(places)))):
            entries += self.act(self.random.choice(_ACTS), tenant, queue, ts)
        # One operation of a round uses an ID: a receipt is unknown until the round that creates it has ended.
        self.writer.record(ts, *(entries or [entry("collect", principal="system", details="1 expiry entries")]))

    def act(self, op: str, tenant: str, queue: str, ts: int) -> list[JournalEntry]:
        """Perform one operation and return its journal entry."""
        place = (tenant, queue)
        waiting, leased = self.waiting.setdefault(place, []), self.leased.setdefault(place, [])
        made = [] if place in self.known else [entry("create_queue", tenant, queue)]
        self.known.add(place)
        if op == "add":
            fresh = []
            for _ in range(self.random.randint(1, 4)):
                self.number += 1
                fresh.append((message_id(self.number, ts), self.random.randint(1, 500), 0))
            waiting += fresh
            return [*made, entry("add", tenant, queue, ids=_ids(fresh), size=[one[1] for one in fresh], priority=5)]
        if op == "deny":
            return [
                *made,
                entry("peek", tenant, queue, outcome="denied", error_code="forbidden", count=self.random.randint(1, 9)),
            ]
        if op == "purge" and self.random.random() < 0.3:
            everything = [*waiting, *leased]
            self.waiting[place], self.leased[place] = [], []
            size = sum(one[1] for one in everything)
            return [*made, entry("purge", tenant, queue, size=size, details=f"{len(everything)} messages: a test")]
        if op == "redrive":
            return made + self._redrive(tenant, queue)
        source = waiting if op == "poll" or (op == "remove" and self.random.random() < 0.5) else leased
        if not source or op == "purge":
            return made
        taken = [source.pop(0) for _ in range(min(len(source), self.random.randint(1, 3)))]
        sizes = [one[1] for one in taken]
        if op == "poll":
            leased += [(id, size, count + 1) for id, size, count in taken]
            waits = [self.random.randint(0, 90_000) for _ in taken]
            return [*made, entry("poll", tenant, queue, ids=_ids(taken), size=sizes, priority=5, attempt=[one[2] + 1 for one in taken], wait_ms=waits)]  # fmt: skip
        if op in {"ack", "remove"}:
            return [*made, entry(op, tenant, queue, ids=_ids(taken), size=sizes, process_ms=[] if op == "remove" else [self.random.randint(0, 9_000) for _ in taken]) if op == "ack" else entry(op, tenant, queue, ids=_ids(taken), size=sizes)]  # fmt: skip
        times = [self.random.randint(0, 9_000) for _ in taken]
        if op == "release":
            waiting += [(id, size, count - 1) for id, size, count in taken]
            return [*made, entry("release", tenant, queue, ids=_ids(taken), size=sizes, process_ms=times)]
        buried: list[JournalEntry] = []
        for id, size, count in taken:
            if count >= 2 and not queue.endswith(".dead"):
                target = (tenant, f"{queue}.dead")
                if target not in self.known:
                    self.known.add(target)
                    buried.append(entry("create_queue", *target, principal="system"))
                self.waiting.setdefault(target, []).append((id, size, 0))
                buried.append(entry("dead_letter", tenant, queue, principal="system", ids=id, size=size, attempt=count, outcome="dead", details=f"to {target[1]}: MAX_ATTEMPTS"))  # fmt: skip
            else:
                waiting.append((id, size, count))
        if op == "nack":
            return [
                *made,
                *buried,
                entry("nack", tenant, queue, ids=_ids(taken), size=sizes, process_ms=times, details="failed"),
            ]
        return [*made, *buried, entry("lease_expired", tenant, queue, principal="system", ids=_ids(taken), size=sizes, process_ms=times, outcome="expired")]  # fmt: skip

    def _redrive(self, tenant: str, queue: str) -> list[JournalEntry]:
        letters = self.waiting.get((tenant, f"{queue}.dead"), [])
        if not letters:
            return []
        id, size, _ = letters.pop(0)
        self.waiting[tenant, queue].append((id, size, 0))
        return [entry("redrive", tenant, f"{queue}.dead", ids=id, size=[size], details=f"to {queue}")]


def _ids(messages: Sequence[tuple[bytes, int, int]]) -> bytes:
    return b"".join(one[0] for one in messages)


def write_history(
    target: DirectoryTarget, *, seed: int = 1, rounds: int = 200, every_ms: int = 11 * MINUTE, key: SigningKey | None = None,
    tenants: Sequence[str] = ("acme", "umbrella"), shard: str = "0",
) -> JournalWriter:  # fmt: skip
    """Write a history of ``rounds`` records, one segment per hour."""
    writer = JournalWriter(target, key, shard)
    model = QueueModel(writer, seed, tenants)
    ts = START
    for number in range(rounds):
        model.round(ts)
        following = ts + every_ms
        if following // HOUR != ts // HOUR or number == rounds - 1:
            writer.segment()
        ts = following
    return writer
