"""One record per round, with one entry per operation. Reading expands them to one row per message.

On disk: sha256(previous hash + payload), then the payload. The chain starts from 32 zero bytes.
"""

import hashlib
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from tenantq.domain.message import Caller
from tenantq.errors import StoreDamaged
from tenantq.runtime.randomness import id_text

GENESIS: Final = bytes(32)
ANCHOR_KEY: Final = b"journal_anchor"
"""Row in meta: seq (be64), hash, time (be64) and last id of the last trimmed record."""

JournalPosition = tuple[int, int]
"""``seq`` and ``n`` of a row."""

HASH_BYTES: Final = 32
_ID_BYTES: Final = 16


class JournalEntry(msgspec.Struct, array_like=True):
    """One operation in one round. A column is a list with a value per message, or one value for all."""

    op: str
    tenant: str
    queue: str
    principal: str
    remote: str = ""
    request_id: str = ""
    ids: bytes = b""  # message ids, 16 bytes each
    size: list[int] | int = 0
    priority: list[int] | int = 0
    attempt: list[int] | int = 0
    wait_ms: list[int] | int = 0
    process_ms: list[int] | int = 0
    outcome: str = "ok"
    error_code: str = ""
    details: str = ""
    count: int = 1  # calls this entry represents; more than one only for coalesced refusals
    user_agent: str = ""

    @property
    def rows(self) -> int:
        """How many rows it has: one per message, or one without messages."""
        return max(1, len(self.ids) // _ID_BYTES)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """All entries of one round."""

    shard: str
    seq: int
    ts: int  # wall clock
    engine_ms: int  # the shard's clock, which never goes back
    last_id: bytes  # the greatest message id issued so far
    entries: list[JournalEntry]


class JournalRow(msgspec.Struct, frozen=True):
    """One row of the journal, as the pipeline reads it."""

    shard: str
    seq: int
    n: int
    ts: int
    tenant: str
    queue: str
    op: str
    message_id: str
    principal: str
    bytes: int
    priority: int
    attempt: int
    wait_ms: int
    process_ms: int
    outcome: str
    error_code: str
    remote: str
    request_id: str
    details: str
    count: int
    user_agent: str


def entry_of(op: str, tenant: str, caller: Caller, details: str, queue: str = "") -> JournalEntry:
    """Return the entry of an action that concerns no messages."""
    return JournalEntry(
        op, tenant, queue, caller.principal, caller.remote, caller.request_id, details=details,
        user_agent=caller.user_agent,
    )  # fmt: skip


def column(values: list[int]) -> list[int] | int:
    """Return a column in its short form: one value if all are equal."""
    first = values[0]
    return first if len(values) == 1 or values.count(first) == len(values) else values


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def encode_record(previous: bytes, record: Record) -> tuple[bytes, bytes]:
    """Return the record's hash and the value to store."""
    try:
        payload = _encode(record)
    except UnicodeEncodeError:
        payload = _encode(_without_surrogates(record))
    link = hashlib.sha256(previous + payload).digest()
    return link, link + payload


def _without_surrogates(record: Record) -> Record:
    """Replace lone surrogates in texts of the caller, because the operation must be journaled in any case."""
    for entry in record.entries:
        for field in ("tenant", "queue", "principal", "remote", "request_id", "details", "user_agent"):
            setattr(entry, field, without_surrogates(getattr(entry, field)))
    return record


def without_surrogates(text: str) -> str:
    """Replace lone surrogates in a text."""
    return text.encode("utf-8", "replace").decode()


def decode_record(value: bytes, previous: bytes | None = None) -> tuple[bytes, Record]:
    """Return the hash and the record of a stored value; with ``previous`` also check the chain. Raises StoreDamaged."""
    link, payload = value[:HASH_BYTES], value[HASH_BYTES:]
    if previous is not None and hashlib.sha256(previous + payload).digest() != link:
        raise StoreDamaged("journal: a record does not match the hash chain: it or its predecessor was changed")
    try:
        return link, _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"journal: cannot read a record: {error}") from error


def parse_anchor(anchor: bytes | None) -> tuple[int, bytes]:
    """Return number and hash of the last trimmed record; 0 and GENESIS if nothing was trimmed."""
    return (int.from_bytes(anchor[:8]), anchor[8 : 8 + HASH_BYTES]) if anchor else (0, GENESIS)


def rows(record: Record) -> Iterator[JournalRow]:
    """Expand a record to one row per message, or one per entry without messages."""
    n = 0
    for entry in record.entries:
        columns = [
            column if isinstance(column, list) else [column] * entry.rows
            for column in (entry.size, entry.priority, entry.attempt, entry.wait_ms, entry.process_ms)
        ]
        for i, (size, priority, attempt, wait_ms, process_ms) in enumerate(zip(*columns, strict=True)):
            raw_id = entry.ids[i * _ID_BYTES : (i + 1) * _ID_BYTES]
            yield JournalRow(
                record.shard,
                record.seq,
                n,
                record.ts,
                entry.tenant,
                entry.queue,
                entry.op,
                id_text(raw_id) if raw_id else "",
                entry.principal,
                size,
                priority,
                attempt,
                wait_ms,
                process_ms,
                entry.outcome,
                entry.error_code,
                entry.remote,
                entry.request_id,
                entry.details,
                entry.count,
                entry.user_agent,
            )
            n += 1


class LiveJournal(Protocol):
    """The journal of a running shard."""

    @property
    def synced_span(self) -> tuple[int, int]:
        """The first record that is kept and the last that is durable."""

    def scan(self, first_seq: int, last_seq: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to ``limit`` existing records in order, as they are stored. Thread-safe."""
