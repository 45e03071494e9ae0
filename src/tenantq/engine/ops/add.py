"""Add messages."""

from __future__ import annotations

from collections.abc import Sequence

from tenantq.domain import limits
from tenantq.domain.message import AddResult, Caller, NewMessage, check_batch, check_message, is_plain
from tenantq.domain.names import check_queue_name
from tenantq.domain.quotas import NO_QUOTAS
from tenantq.domain.validation import check_field
from tenantq.engine import groups
from tenantq.engine.effects import Effects
from tenantq.engine.operation import BYTES_PER_COST, Operation
from tenantq.engine.queue_state import ADDED, ADDED_BYTES, Level, QueueState, TenantState
from tenantq.engine.quota_checks import RemainingQuota
from tenantq.errors import Conflict, TenantqError, TooLarge
from tenantq.journal.record import column
from tenantq.store.keys import EXPIRES_KEY, EXPIRES_TTL, be64, digest, expiry_key
from tenantq.store.rows import MESSAGE_HEAD, QUEUE_DEFAULT_ATTEMPTS, SEALED, KeyRow, pack_extras, pack_message

_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)
_BATCH = b"\0batch\0"  # no message's key starts like this


_Checked = tuple["list[tuple[NewMessage, bytes] | TenantqError]", int, "int | None", bool]


def _checked(
    messages: Sequence[NewMessage | TenantqError],
) -> _Checked:
    """Return messages with their packed extras, or what is wrong with them, and what holds for the batch.

    That is: the bytes of all; their priority if all are plain and share one; and whether all are encrypted.
    """
    checked: list[tuple[NewMessage, bytes] | TenantqError] = []
    size = 0
    plain = True
    kinds = [message.sealed for message in messages if type(message) is NewMessage]
    sealed = kinds.count(True)
    priority: int | None = None
    for message in messages:
        if not isinstance(message, TenantqError) and is_plain(message):
            size += len(message.body)
            checked.append((message, b""))
            if message.priority != priority:
                plain = plain and priority is None
                priority = message.priority
            continue
        plain = False
        if isinstance(message, TenantqError):
            checked.append(message)
            continue
        try:
            check_message(message)
        except TenantqError as error:
            checked.append(error)
            continue
        size += len(message.body)
        # Packed at once: the caller may change its own mapping while the batch waits in the line.
        checked.append((message, pack_extras(message.group, message.attributes, message.sealed_attributes)))
    whole = sealed == len(kinds)
    return checked, size - sealed * limits.SEAL_BYTES, priority if plain and (whole or not sealed) else None, whole


def _sealed_plain(
    messages: Sequence[NewMessage | TenantqError],
) -> _Checked:
    """Return the same for encrypted messages that are known to be plain and of one priority."""
    checked = [(message, b"") for message in messages if isinstance(message, NewMessage)]
    size = sum([len(message.body) for message, _ in checked]) - len(checked) * limits.SEAL_BYTES
    return [*checked], size, checked[0][0].priority, True


class Add(Operation[list[AddResult]]):
    """Add a batch of messages to one queue, creating it where the tenant allows. Replies one result per message, in order.

    An error in place of a message, from its parser, is the result in its place. The same batch again under the
    same ``batch_key`` adds nothing; one key for a batch costs less than a key for every message.

    For encrypted messages, ``batch_digests`` holds the digest of the batch and others it may have had. With
    ``sealed_plain`` all of them were found to be plain and of one priority before they were encrypted, and are not
    checked again.
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
        sealed_plain: bool = False,
    ) -> None:
        if batch_key is not None:
            check_field("key", batch_key, limits.IdempotencyKey)
        check_queue_name(queue)
        check_batch("messages", messages)
        self.given, size, self._plain_priority, self._sealed = (_sealed_plain if sealed_plain else _checked)(messages)
        if size > limits.BATCH_BYTES_MAX:
            raise TooLarge(f"messages: {size} bytes in one batch, the limit is {limits.BATCH_BYTES_MAX}")
        super().__init__(tenant, caller)
        stored = sum([len(one[0].body) for one in self.given if not isinstance(one, TenantqError)])
        self.cost = len(messages) + stored / BYTES_PER_COST
        self.queue_name = queue
        self.messages: Sequence[tuple[NewMessage, bytes] | TenantqError | AddResult] = self.given
        self.batch_key = batch_key
        self.batch_digests = batch_digests
        self._batch_hash = digest(_BATCH + batch_key.encode()) if batch_key is not None else b""
        self._batch_row: KeyRow | None = None  # the stored row of the batch's key

    def execute(self, effects: Effects) -> None:
        """Write bodies, delivery order, idempotency keys and TTLs."""
        if not self._sealed and self.tenant.config.encryption.enabled:
            raise unsealed(self.tenant.name, self.queue_name)
        room = (
            None if self.tenant.config.quotas == NO_QUOTAS else RemainingQuota(self.tenant, effects.now + effects.wall)
        )
        if self.queue_name not in self.tenant.queues and self._nothing_fits(room):
            self._refuse_all(effects)
            return
        queue = effects.queue_for_write(self.tenant, self.queue_name, self.caller)
        recalled = self.batch_key is not None and self._recall_batch(effects, queue)
        if (
            self._plain_priority is not None
            and not recalled
            and room is None
            and not queue.fifo
            and not queue.config.ttl_ms
        ):
            self._add_plain(effects, queue, self._plain_priority)
            return
        ids = effects.state.ids.take(effects.now, len(self.messages))
        reply: list[AddResult] = []
        added: list[bytes] = []
        sizes: list[int] = []
        priorities: list[int] = []
        store, now, prefix = effects.store, effects.now, queue.prefix
        put, m, vi = effects.batch.put, store.m.handle, store.vi.handle
        level: Level | None = None
        total = 0
        fifo = queue.fifo
        config = queue.config
        for checked, id in zip(self.messages, ids, strict=True):
            if isinstance(checked, TenantqError):
                reply.append(AddResult(_NO_ID, error=checked))
                continue
            if isinstance(checked, AddResult):
                reply.append(checked)
                continue
            message, extras = checked
            if message.raw_id is not None:
                id = message.raw_id  # noqa: PLW2901  # the id it was encrypted for
            if message.key is not None:
                known = self._known(effects, queue, message)
                if known is not None:
                    reply.append(known)
                    continue
            if room is not None:
                refused = room.take(message.size + len(extras), len(added), total)
                if refused is not None:
                    reply.append(AddResult(_NO_ID, error=refused))
                    continue
            if message.key is not None:
                self._note_key(effects, queue, message, id)
            name, body, priority = message.group, message.body, message.priority
            visible_at = now + message.delay_ms
            ttl_ms = message.ttl_ms or config.ttl_ms
            expires_at = visible_at + ttl_ms if ttl_ms else 0
            allowed = QUEUE_DEFAULT_ATTEMPTS if message.max_attempts is None else message.max_attempts
            flags = SEALED if message.sealed else 0
            put(prefix + id, pack_message(priority, allowed, now, visible_at, expires_at, extras, body, flags), m)
            if expires_at:
                put(expiry_key(prefix, expires_at, EXPIRES_TTL, id), b"", store.ex.handle)
                queue.next_expiry = min(queue.next_expiry, expires_at)
            group = queue.group_digest(name) if fifo or name is not None else b""
            if not group or groups.join(effects, queue, group, id, priority, visible_at):
                if level is None or level.priority != priority:
                    level = queue.level(priority)
                suffix = be64(visible_at) + id
                if level.insert(suffix, visible_at, now):
                    queue.ready += 1
                put(level.prefix + suffix, b"", vi)
            added.append(id)
            size = message.size + len(extras)
            total += size
            sizes.append(size)
            priorities.append(priority)
            reply.append(AddResult(id))
        self.reply = reply
        if self.batch_key is not None and added:
            self._remember_batch(effects, queue, reply)
        for code in sorted({one.error.code for one in reply if one.error is not None}):
            count = sum(1 for one in reply if one.error is not None and one.error.code == code)
            effects.log("add", queue, self.caller, outcome="refused", error_code=code, details=f"{count} messages")
        if added:
            self._count(effects, queue, added, sizes, column(priorities))

    def _add_plain(self, effects: Effects, queue: QueueState, priority: int) -> None:
        """Add messages that have only a body, as most batches do."""
        now, prefix, put, store = effects.now, queue.prefix, effects.batch.put, effects.store
        m, vi = store.m.handle, store.vi.handle
        given = [one[0] for one in self.given if isinstance(one, tuple)]
        bodies = [one.body for one in given]
        flags = uncharged = 0
        if self._sealed:
            flags, uncharged = SEALED, limits.SEAL_BYTES
            ids = [one.raw_id for one in given if one.raw_id is not None]
        else:
            ids = effects.state.ids.take(now, len(given))
        head = MESSAGE_HEAD.pack(flags, priority, QUEUE_DEFAULT_ATTEMPTS, now, now, 0)
        level = queue.level(priority)
        waiting = level.prefix + be64(now)
        for id, body in zip(ids, bodies, strict=True):
            put(prefix + id, head + body, m)
            put(waiting + id, b"", vi)
        queue.ready += level.insert_run(be64(now), ids, now)
        self.reply = [AddResult(id) for id in ids]
        if self.batch_key is not None:
            self._remember_batch(effects, queue, self.reply)
        self._count(effects, queue, ids, [len(body) - uncharged for body in bodies], priority)

    def _count(
        self, effects: Effects, queue: QueueState, added: list[bytes], sizes: list[int], priorities: list[int] | int
    ) -> None:
        """Count what was added, for the queue and its tenant, and journal it."""
        total = sum(sizes)
        queue.bytes += total
        queue.totals[ADDED] += len(added)
        queue.totals[ADDED_BYTES] += total
        effects.dirty[queue] = None
        effects.adding[self.tenant] = None
        self.tenant.usage.added(len(added), effects.now + effects.wall)
        queue.count_usage()
        effects.log("add", queue, self.caller, ids=b"".join(added), size=column(sizes), priority=priorities)

    def _nothing_fits(self, room: RemainingQuota | None) -> bool:
        """Replace each message that exceeds a quota by its error; return whether no message is left."""
        if room is not None:
            self.messages = [
                one if isinstance(one, TenantqError) else room.take(one[0].size + len(one[1]), 0, 0) or one
                for one in self.given
            ]
        return all(isinstance(one, TenantqError) for one in self.messages)

    def _refuse_all(self, effects: Effects) -> None:
        """Answer a batch of which nothing can be added, without creating its queue."""
        refusals = [one for one in self.messages if isinstance(one, TenantqError)]
        self.reply = [AddResult(_NO_ID, error=one) for one in refusals]
        effects.log_refusal(self.journal_op, self.tenant, self.caller, refusals[0])

    def _known(self, effects: Effects, queue: QueueState, message: NewMessage) -> AddResult | None:
        """Return the earlier message of the key, or None."""
        assert message.key is not None
        row = effects.key(queue, digest(message.key.encode()))
        if row is None or row.expires_at <= effects.now:
            return None
        differs = (
            row.body_digest and not message.key_alone and row.body_digest not in (message.known_as, _digest(message))
        )
        if differs or len(row.id) != _ID_BYTES:  # an imported row may contain anything
            return AddResult(
                _NO_ID,
                error=Conflict(
                    "key: this idempotency key was used with another body; use a new key for new work",
                    tenant=self.tenant.name,
                    queue=queue.name,
                ),
            )
        return AddResult(row.id, duplicate=True)

    def _recall_batch(self, effects: Effects, queue: QueueState) -> bool:
        """Replace each message by its earlier result; return whether this batch was added before."""
        row = self._batch_row = effects.key(queue, self._batch_hash)
        if row is None or row.expires_at <= effects.now:
            return False
        differs = row.body_digest and row.body_digest not in (self.batch_digests or (self._batch_digest(),))
        if differs or len(row.id) != _ID_BYTES * len(self.messages):  # an imported row may contain anything
            raise Conflict(
                "key: this idempotency key was used with another batch; use a new key for new work",
                tenant=self.tenant.name,
                queue=queue.name,
            )
        earlier = [row.id[at : at + _ID_BYTES] for at in range(0, len(row.id), _ID_BYTES)]
        self.messages = [
            AddResult(id, duplicate=True) if id != _NO_ID else one
            for id, one in zip(earlier, self.messages, strict=True)
        ]
        return True

    def _remember_batch(self, effects: Effects, queue: QueueState, reply: list[AddResult]) -> None:
        """Store the batch's key with the ids of its messages. Refused messages may be added later."""
        ids = b"".join(one.raw_id for one in reply)
        digests = self.batch_digests or (self._batch_digest(),)
        put_key(effects, queue, self._batch_hash, KeyRow(ids, digests[0], self._until(effects, queue)), self._batch_row)

    @staticmethod
    def _until(effects: Effects, queue: QueueState) -> int:
        """Return when a key of this round expires."""
        return effects.now + queue.config.dedup_ms

    def _batch_digest(self) -> bytes:
        """Return the digest of this batch: the number, order and bodies of its messages."""
        return digest(batch_bytes([one[0].body if isinstance(one, tuple) else b"" for one in self.given]))

    def _note_key(self, effects: Effects, queue: QueueState, message: NewMessage, id: bytes) -> None:
        """Store the key of this message."""
        assert message.key is not None
        hashed = digest(message.key.encode())
        row = KeyRow(id, _digest(message), self._until(effects, queue))
        put_key(effects, queue, hashed, row, effects.key(queue, hashed))


def batch_bytes(bodies: list[bytes]) -> bytes:
    """Return the bytes that identify a batch, to be hashed: the number, order and bodies of its messages."""
    return b"".join([len(body).to_bytes(4) + body for body in bodies])


def unsealed(tenant: str, queue: str) -> Conflict:
    """Return the error for plaintext of a tenant whose messages must be encrypted: the last check before the disk."""
    return Conflict(
        "encryption: it is switched on for this tenant, and this is not encrypted", tenant=tenant, queue=queue
    )


def _digest(message: NewMessage) -> bytes:
    """Return the digest of a message that its idempotency key stores."""
    return message.digest if message.digest is not None else digest(message.body)


def put_key(effects: Effects, queue: QueueState, hashed: bytes, row: KeyRow, earlier: KeyRow | None) -> None:
    """Write the row of an idempotency key, replacing an expired one."""
    ex = effects.store.ex.handle
    if earlier is not None:
        effects.batch.delete(expiry_key(queue.prefix, earlier.expires_at, EXPIRES_KEY, hashed), ex)
    effects.put_key(queue, hashed, row)
    effects.batch.put(expiry_key(queue.prefix, row.expires_at, EXPIRES_KEY, hashed), b"", ex)
    queue.next_expiry = min(queue.next_expiry, row.expires_at)
