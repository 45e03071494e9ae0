"""A snapshot of a tenant between two rounds, which exports read while the shard keeps working."""

from collections.abc import Iterator
from typing import Final

import msgspec

from tenantq.domain.config import QueueConfig, TenantConfig
from tenantq.domain.message import DeadLetter, HistoryEntry, Result
from tenantq.engine.queue_state import QueueState, Status, TenantState, TenantStatus
from tenantq.engine.restrictions import Hold
from tenantq.engine.state import ShardState
from tenantq.store.keys import after, tenant_prefix
from tenantq.store.rows import (
    QUEUE_DEFAULT_ATTEMPTS,
    LeaseRow,
    MessageRow,
    unpack_key,
    unpack_lease,
    unpack_message,
    unpack_result,
)

_FAMILIES: Final = ("m", "le", "re", "ik")


class QueueCopy(msgspec.Struct, frozen=True):
    """A queue as it was."""

    name: str
    prefix: bytes
    config: QueueConfig
    status: Status
    system_made: bool


class MessageCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A message with everything that an export keeps: wall-clock times, no lease."""

    raw_id: bytes
    body: bytes
    priority: int
    attributes: dict[str, str]
    group: str | None
    max_attempts: int | None  # None: the queue's default
    added_at: int
    visible_at: int
    expires_at: int | None
    attempts: int = 0  # deliveries that ended; a current one does not count
    history: tuple[HistoryEntry, ...] = ()
    dead: DeadLetter | None = None
    encrypted: bool = False  # the body is encrypted
    encrypted_attributes: bytes = b""

    def origin(self, queue: str) -> str:
        """Return the queue that its encryption is bound to, given that it is in ``queue``."""
        return self.dead.source if self.dead is not None else queue


class StoredResult(msgspec.Struct, frozen=True):
    """A result and when it expires (wall clock)."""

    raw_id: bytes
    result: Result
    expires_at: int


class StoredIdempotencyKey(msgspec.Struct, frozen=True):
    """A stored idempotency key; only its hash is stored, never the key itself."""

    hashed: bytes
    ids: bytes  # of its messages, 16 bytes each
    body_digest: bytes  # empty: not compared, because it depends on the secret of another server
    expires_at: int  # wall clock


class TenantSnapshot:
    """A snapshot of one tenant, or of one queue of it. What is frozen looks the same in every snapshot.

    One thread at a time may read it. Close it, since it keeps outdated files of the store.
    """

    def __init__(self, state: ShardState, tenant: TenantState, seq: int, queue: QueueState | None = None) -> None:
        self.name = tenant.name
        self.id = tenant.id
        self.queue_id = queue.id if queue is not None else None
        frozen = queue.frozen if queue is not None else tenant.frozen
        # Wall-clock times use the offset of that time: the clock may have been set since.
        self._wall = state.shard_clock.wall_offset_ms() if frozen is None else frozen.at - frozen.engine_ms
        self._now = state.shard_clock.now_ms() if frozen is None else frozen.engine_ms
        self.seq = seq if frozen is None else frozen.seq  # the last journal record that it includes
        self.since = tenant.since
        self.at = self._now + self._wall
        self.config: TenantConfig = tenant.config
        self.status: TenantStatus = tenant.status
        self.version = tenant.version
        self.hold: Hold | None = tenant.hold
        self.queues = [
            QueueCopy(queue.name, queue.prefix, queue.config, queue.status, queue.system_made)
            for queue in (sorted(tenant.queues.values(), key=lambda one: one.id) if queue is None else [queue])
        ]
        self.messages_total = sum(tenant.queues[one.name].messages for one in self.queues)
        lower = tenant_prefix(tenant.id) if queue is None else queue.prefix
        self._snapshot = state.store.snapshot(lower, after(lower), *_FAMILIES)

    def close(self) -> None:
        """Release the store's old files."""
        self._snapshot.close()

    def messages(self, queue: QueueCopy) -> Iterator[MessageCopy]:
        """Iterate over a queue's messages by id, without expired ones."""
        leases = self._snapshot.walk("le", queue.prefix)
        lease_key, lease_value = next(leases, (b"", b""))
        for key, value in self._snapshot.walk("m", queue.prefix):
            while lease_key and lease_key < key:
                lease_key, lease_value = next(leases, (b"", b""))
            message = unpack_message(value)
            lease = unpack_lease(lease_value) if lease_key == key else None
            stored = self._stored(key[len(queue.prefix) :], message, lease)
            if stored.expires_at is None or stored.expires_at - self._wall > self._now:
                yield stored

    def results(self, queue: QueueCopy) -> Iterator[StoredResult]:
        """Iterate over a queue's results that have not expired."""
        for key, value in self._snapshot.walk("re", queue.prefix):
            row = unpack_result(value)
            if row.expires_at > self._now:
                yield StoredResult(key[len(queue.prefix) :], row.result, row.expires_at + self._wall)

    def idempotency(self, queue: QueueCopy) -> Iterator[StoredIdempotencyKey]:
        """Iterate over a queue's idempotency keys that have not expired."""
        for key, value in self._snapshot.walk("ik", queue.prefix):
            row = unpack_key(value)
            if row.expires_at > self._now:
                yield StoredIdempotencyKey(
                    key[len(queue.prefix) :], row.id, row.body_digest, row.expires_at + self._wall
                )

    def _stored(self, id: bytes, message: MessageRow, lease: LeaseRow | None) -> MessageCopy:
        history = lease.unpack_history() if lease is not None else None
        expires_at = lease.expires_at if lease is not None else message.expires_at
        attempts = 0
        if lease is not None:
            attempts = lease.attempts - 1 if lease.token else lease.attempts
        return MessageCopy(
            raw_id=id,
            body=message.body,
            priority=message.priority,
            attributes=message.attributes,
            group=message.group,
            max_attempts=None if message.max_attempts == QUEUE_DEFAULT_ATTEMPTS else message.max_attempts,
            added_at=message.added_at + self._wall,
            visible_at=(lease.visible_at if lease is not None else message.visible_at) + self._wall,
            expires_at=expires_at + self._wall if expires_at else None,
            attempts=attempts,
            history=tuple(history.entries) if history is not None else (),
            dead=history.dead if history is not None else None,
            encrypted=message.encrypted,
            encrypted_attributes=message.encrypted_attributes,
        )
