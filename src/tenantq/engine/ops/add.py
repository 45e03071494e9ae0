"""Add messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import AddResult, Caller, NewMessage, check_batch, checked_message, is_plain
from tenantq.domain.names import check_queue_name
from tenantq.domain.quotas import NO_QUOTAS
from tenantq.domain.validation import check_field
from tenantq.engine import groups
from tenantq.engine.effects import Effects
from tenantq.engine.operation import BYTES_PER_COST, Operation
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.quota_checks import RemainingQuota
from tenantq.engine.reservation import Reservation
from tenantq.engine.work_counters import ADDED, ADDED_BYTES
from tenantq.errors import Conflict, TenantqError, TooLarge
from tenantq.journal.record import column
from tenantq.store.keys import EXPIRES_KEY, EXPIRES_TTL, ID_BYTES, be64, digest, expiry_key
from tenantq.store.rows import ENCRYPTED, MESSAGE_HEAD, QUEUE_DEFAULT_ATTEMPTS, KeyRow, pack_extras, pack_message

_NO_ID = bytes(ID_BYTES)
_BATCH = b"\0batch\0"  # no message's key starts like this


class _ValidatedBatch(msgspec.Struct, gc=False):
    """A validated batch."""

    messages: list[NewMessage | TenantqError]  # an invalid message is replaced by its error
    extras: list[bytes]  # group and attributes of each message, packed
    size: int  # bytes of all bodies in plaintext
    encrypted: bool  # every valid message is
    plain_priority: int | None  # the priority of all messages, if each of them is just a body


def _validate(messages: Sequence[NewMessage | TenantqError]) -> _ValidatedBatch:
    """Return the batch with an error in place of each invalid message."""
    if all(map(is_plain, messages)):
        return _plain(messages)
    checked = [checked_message(one) for one in messages]
    valid = [one for one in checked if isinstance(one, NewMessage)]
    # Packed here, because the caller may change its mapping while the batch waits in the line.
    extras = [
        pack_extras(one.group, one.attributes, one.encrypted_attributes) if isinstance(one, NewMessage) else b""
        for one in checked
    ]
    return _ValidatedBatch(checked, extras, sum([one.size for one in valid]), all(one.encrypted for one in valid), None)


def _plain(messages: Sequence[NewMessage | TenantqError]) -> _ValidatedBatch:
    """Return a batch of messages that are known to be just bodies."""
    given: list[NewMessage] = list(messages)  # type: ignore[arg-type]  # errors are not plain
    if len(given) == 1:
        (one,) = given
        return _ValidatedBatch([one], [b""], one.size, one.encrypted, one.priority)
    count, encrypted = len(given), sum([one.encrypted for one in given])
    is_uniform = encrypted in (0, count) and len({one.priority for one in given}) == 1
    size = sum([len(one.body) for one in given]) - encrypted * limits.ENCRYPTION_BYTES
    return _ValidatedBatch([*given], [b""] * count, size, encrypted == count, given[0].priority if is_uniform else None)


class Add(Operation[list[AddResult]]):
    """Add a batch of messages to one queue, which is created if the tenant allows. Replies one result per message, in order.

    An error in place of a message, from its parser, is the result in its place. The same batch again under the
    same ``batch_key`` adds nothing; one key for a batch costs less than a key for every message.

    For encrypted messages, ``batch_digests`` holds the digest of the batch and others it may have had.
    ``encrypted_plain``: all of them were found to be plain and of one priority before the encryption, and are not
    checked again. An operation that adds a part of a batch gets the position of the part as ``start`` and the number of
    messages in the whole batch as ``total``.
    """

    journal_op = "add"
    stores_messages = True

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue: str,
        messages: Sequence[NewMessage | TenantqError],
        *,
        batch_key: str | None = None,
        batch_digests: tuple[bytes, ...] = (),
        encrypted_plain: bool = False,
        start: int = 0,
        total: int | None = None,
        reservation: Reservation | None = None,
    ) -> None:
        if batch_key is not None:
            check_field("key", batch_key, limits.IdempotencyKey)
        check_queue_name(queue)
        check_batch("messages", messages)
        batch = self._batch = (_plain if encrypted_plain else _validate)(messages)
        check_batch_bytes(batch.size)
        super().__init__(tenant, caller)
        self._reservation = reservation
        self.cost = len(messages) + (batch.size + sum(map(len, batch.extras))) / BYTES_PER_COST
        self.queue_name = queue
        self.batch_key = batch_key
        self.batch_digests = batch_digests
        self._start, self._total = start, len(messages) if total is None else total
        self._batch_ids = b""  # of the whole batch, as stored with its key

    def execute(self, effects: Effects) -> None:
        """Write bodies, delivery order, idempotency keys and TTLs."""
        tenant, batch = self.tenant, self._batch
        if not batch.encrypted and tenant.config.encryption.enabled:
            raise not_encrypted(tenant.name, self.queue_name)
        quotas = tenant.config.quotas
        if tenant.part is not None:
            effects.state.catalog.check_queue_here(tenant, self.queue_name)
        reserved = self._reservation
        room = None if quotas == NO_QUOTAS else RemainingQuota(tenant, effects.now + effects.wall, reserved)
        if reserved is not None:
            reserved.added(len(batch.messages), batch.size + sum(map(len, batch.extras)))
        if self.queue_name not in tenant.queues and self._refuse_all(effects, room):
            return
        queue = effects.queue_for_write(tenant, self.queue_name, self.caller)
        hashed = digest(_BATCH + self.batch_key.encode()) if self.batch_key is not None else b""
        earlier = self._earlier_batch(effects, queue, hashed) if hashed else None
        priority = batch.plain_priority
        is_uniform = earlier is None and not queue.fifo and not queue.config.ttl_ms
        fits = room is None or room.has_room(len(batch.messages), batch.size)
        if priority is not None and is_uniform and fits:
            added: _AddedColumns | None = self._add_plain(effects, queue, priority)
        else:
            added = self._add_each(effects, queue, room, earlier)
        if added:
            if hashed:
                ids = bytearray(self._batch_ids or bytes(ID_BYTES * self._total))
                ids[self._part] = b"".join([one.raw_id for one in self.reply])
                put_key(effects, queue, hashed, KeyRow(bytes(ids), self._batch_digests()[0], _until(effects, queue)))
            self._count(effects, queue, *added)

    def _add_plain(self, effects: Effects, queue: QueueState, priority: int) -> _AddedColumns:
        """Add messages that have only a body, as most batches do."""
        now, prefix, put, store = effects.now, queue.prefix, effects.batch.put, effects.store
        m, vi = store.m.handle, store.vi.handle
        given: list[NewMessage] = self._batch.messages  # type: ignore[assignment]  # a plain batch has no errors
        bodies = [one.body for one in given]
        sizes = [len(body) for body in bodies]
        if self._batch.encrypted:
            flags, ids = ENCRYPTED, [one.raw_id or _NO_ID for one in given]
            sizes = [size - limits.ENCRYPTION_BYTES for size in sizes]
        else:
            flags, ids = 0, effects.state.ids.take(now, len(given))
        head = MESSAGE_HEAD.pack(flags, priority, QUEUE_DEFAULT_ATTEMPTS, now, now, 0)
        level = queue.level(priority)
        stamp = be64(now)
        waiting = level.prefix + stamp
        for id, body in zip(ids, bodies, strict=True):
            put(prefix + id, head + body, m)
            put(waiting + id, b"", vi)
        queue.ready += level.insert_run(stamp, ids, now)
        self.reply = [AddResult(id) for id in ids]
        return ids, sizes, priority

    def _add_each(
        self, effects: Effects, queue: QueueState, room: RemainingQuota | None, earlier: list[AddResult | None] | None
    ) -> _AddedColumns | None:
        """Add messages one by one, except those that are invalid, exceed a quota or were added before."""
        batch = self._batch
        reply: list[AddResult] = []
        ids: list[bytes] = []
        sizes: list[int] = []
        priorities: list[int] = []
        new_ids = effects.state.ids.take(effects.now, len(batch.messages))
        for message, extras, id, before in zip(batch.messages, batch.extras, new_ids, earlier or repeat(None)):  # noqa: B905  # repeat() has no end
            if before is not None:
                reply.append(before)
                continue
            if isinstance(message, TenantqError):
                reply.append(AddResult(_NO_ID, error=message))
                continue
            if message.raw_id is not None:
                id = message.raw_id  # noqa: PLW2901  # the id it was encrypted for
            hashed = digest(message.key.encode()) if message.key is not None else b""
            known = self._earlier_message(effects, queue, message, hashed) if hashed else None
            if known is not None:
                reply.append(known)
                continue
            size = message.size + len(extras)
            refused = room.take(size) if room is not None else None
            if refused is not None:
                reply.append(AddResult(_NO_ID, error=refused))
                continue
            if hashed:
                put_key(effects, queue, hashed, KeyRow(id, _digest(message), _until(effects, queue)))
            _put_message(effects, queue, id, message, extras)
            ids.append(id)
            sizes.append(size)
            priorities.append(message.priority)
            reply.append(AddResult(id))
        self.reply = reply
        codes = [one.error.code for one in reply if one.error is not None]
        if codes:
            for one in reply:
                if one.error is not None:
                    self.tenant.counters.count_quota(one.error)
        for code in sorted(set(codes)):
            details = f"{codes.count(code)} messages"
            effects.log("add", queue, self.caller, outcome="refused", error_code=code, details=details)
        return (ids, sizes, column(priorities)) if ids else None

    def _count(
        self, effects: Effects, queue: QueueState, ids: list[bytes], sizes: list[int], priorities: list[int] | int
    ) -> None:
        """Count and journal the added messages, for the queue and its tenant."""
        total = sum(sizes)
        queue.grow(total, max(sizes))
        effects.moved_bytes += total
        queue.work.totals[ADDED] += len(ids)
        queue.work.totals[ADDED_BYTES] += total
        effects.dirty[queue] = None
        effects.tenants_with_adds[self.tenant] = None
        self.tenant.usage.added(len(ids), effects.now + effects.wall)
        if self.tenant.config.quotas != NO_QUOTAS:
            queue.count_usage()  # for the next operations of the round; its end counts the rest
        effects.log("add", queue, self.caller, ids=b"".join(ids), size=column(sizes), priority=priorities)

    def _refuse_all(self, effects: Effects, room: RemainingQuota | None) -> bool:
        """Refuse a batch of which no message can be added; its queue is not created. Return whether that was so."""
        refusals: list[TenantqError] = []
        for message, extras in zip(self._batch.messages, self._batch.extras, strict=True):
            if isinstance(message, TenantqError):
                refusals.append(message)
                continue
            refused = room.refusal(message.size + len(extras)) if room is not None else None
            if refused is None:
                return False
            refusals.append(refused)
        self.reply = [AddResult(_NO_ID, error=one) for one in refusals]
        effects.log_refusal(self.journal_op, self.tenant, self.caller, refusals[0])
        for one in refusals[1:]:
            self.tenant.counters.count_quota(one)
        return True

    def _earlier_message(
        self, effects: Effects, queue: QueueState, message: NewMessage, hashed: bytes
    ) -> AddResult | None:
        """Return the result of the message that was added before under the same key, or None."""
        row = effects.key(queue, hashed)
        if row is None or row.expires_at <= effects.now:
            return None
        differs = (
            row.body_digest and not message.key_alone and row.body_digest not in (message.known_as, _digest(message))
        )
        if differs or len(row.id) != ID_BYTES:  # an imported row may contain anything
            return AddResult(_NO_ID, error=self._key_conflict("body"))
        return AddResult(row.id, duplicate=True)

    def _earlier_batch(self, effects: Effects, queue: QueueState, hashed: bytes) -> list[AddResult | None] | None:
        """Return the results of a batch that was added before under the same key, or None. Refused messages have none."""
        row = effects.key(queue, hashed)
        if row is None or row.expires_at <= effects.now:
            return None
        differs = row.body_digest and row.body_digest not in self._batch_digests()
        if differs or len(row.id) != ID_BYTES * self._total:  # an imported row may contain anything
            raise self._key_conflict("batch")
        self._batch_ids, part = row.id, row.id[self._part]
        if not any(part):
            return None
        ids = [part[at : at + ID_BYTES] for at in range(0, len(part), ID_BYTES)]
        return [AddResult(id, duplicate=True) if id != _NO_ID else None for id in ids]

    @property
    def _part(self) -> slice:
        """Where the ids of this operation are among those of the whole batch."""
        return slice(ID_BYTES * self._start, ID_BYTES * (self._start + len(self._batch.messages)))

    def _key_conflict(self, what: str) -> Conflict:
        return Conflict(
            f"key: this idempotency key was used with another {what}; use a new key for new work",
            tenant=self.tenant.name,
            queue=self.queue_name,
        )

    def _batch_digests(self) -> tuple[bytes, ...]:
        """Return the digest of this batch, and others it may have been stored with."""
        return self.batch_digests or (digest(batch_bytes(self.bodies)),)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of its messages, empty for invalid ones."""
        return [one.body if isinstance(one, NewMessage) else b"" for one in self._batch.messages]


_AddedColumns = tuple[list[bytes], list[int], "list[int] | int"]  # ids, sizes and priorities of the added messages


def _put_message(effects: Effects, queue: QueueState, id: bytes, message: NewMessage, extras: bytes) -> None:
    """Write a message, its TTL and its place in the delivery order or in its group."""
    store, put, priority = effects.store, effects.batch.put, message.priority
    visible_at = effects.now + message.delay_ms
    ttl_ms = message.ttl_ms or queue.config.ttl_ms
    expires_at = visible_at + ttl_ms if ttl_ms else 0
    attempts = QUEUE_DEFAULT_ATTEMPTS if message.max_attempts is None else message.max_attempts
    flags = ENCRYPTED if message.encrypted else 0
    row = pack_message(priority, attempts, effects.now, visible_at, expires_at, extras, message.body, flags)
    put(queue.prefix + id, row, store.m.handle)
    if expires_at:
        put(expiry_key(queue.prefix, expires_at, EXPIRES_TTL, id), b"", store.ex.handle)
        queue.note_expiry(expires_at)
    group = queue.group_digest(message.group) if queue.fifo or message.group is not None else b""
    if not group or groups.join(effects, queue, group, id, priority, visible_at):
        effects.insert_waiting(queue, id, priority, visible_at, delivered_before=False)


def batch_bytes(bodies: list[bytes]) -> bytes:
    """Return the bytes that identify a batch, to be hashed: the number, order and bodies of its messages."""
    return b"".join([len(body).to_bytes(4) + body for body in bodies])


def digest_of_batch(adds: list[Add]) -> bytes:
    """Return the digest of a batch that is added by these operations. For a thread."""
    return digest(batch_bytes([body for add in adds for body in add.bodies]))


def refused_add(error: TenantqError) -> AddResult:
    """Return the result of a message that was not added."""
    return AddResult(_NO_ID, error=error)


def check_batch_bytes(size: int) -> None:
    """Raise TooLarge if a batch has more bytes than one call can add."""
    if size > limits.BATCH_BYTES_MAX:
        raise TooLarge(
            f"messages: too many bytes in one batch ({size}, allowed: {limits.BATCH_BYTES_MAX}). Send fewer."
        )


def stored_bytes(message: NewMessage | TenantqError) -> int:
    """Return about how many bytes a message takes, valid or not."""
    if not isinstance(message, NewMessage) or type(message.body) is not bytes:
        return 0
    if not message.attributes or not isinstance(message.attributes, dict):
        return len(message.body) + len(message.encrypted_attributes)
    attributes = sum(len(str(name)) + len(str(value)) for name, value in message.attributes.items())
    return len(message.body) + len(message.encrypted_attributes) + attributes


def not_encrypted(tenant: str, queue: str) -> Conflict:
    """Return the error for plaintext of an encrypted tenant. This is the last check before the store."""
    return Conflict(
        "encryption: enabled for this tenant, but the data is not encrypted. Try again.", tenant=tenant, queue=queue
    )


def _digest(message: NewMessage) -> bytes:
    """Return the digest of a message that its idempotency key stores."""
    return message.digest if message.digest is not None else digest(message.body)


def _until(effects: Effects, queue: QueueState) -> int:
    """Return when a key of this round expires."""
    return effects.now + queue.config.dedup_ms


def put_key(effects: Effects, queue: QueueState, hashed: bytes, row: KeyRow) -> None:
    """Write the row of an idempotency key, replacing an expired one."""
    ex, earlier = effects.store.ex.handle, effects.key(queue, hashed)
    if earlier is not None:
        effects.batch.delete(expiry_key(queue.prefix, earlier.expires_at, EXPIRES_KEY, hashed), ex)
    effects.put_key(queue, hashed, row)
    effects.batch.put(expiry_key(queue.prefix, row.expires_at, EXPIRES_KEY, hashed), b"", ex)
    queue.note_expiry(row.expires_at)
