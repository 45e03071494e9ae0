"""Import a part of an export: messages and results as they were in the exported queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tenantq.domain.limits import BODY_BYTES_MAX, ENCRYPTION_BYTES, TTL_MS_MAX
from tenantq.engine import dead_letter, groups
from tenantq.engine.arguments import QueueArgument
from tenantq.engine.effects import Effects
from tenantq.engine.operation import BYTES_PER_COST, Operation
from tenantq.engine.ops.add import not_encrypted, put_key
from tenantq.engine.queue_state import QueueState
from tenantq.engine.quota_checks import RemainingQuota
from tenantq.engine.reservation import Reservation
from tenantq.engine.tenant_snapshot import MessageCopy, StoredIdempotencyKey, StoredResult
from tenantq.engine.work_counters import ADDED, ADDED_BYTES
from tenantq.errors import Conflict, Draining
from tenantq.journal.record import column
from tenantq.store.interface import Store
from tenantq.store.keys import EXPIRES_TTL, after, expiry_key
from tenantq.store.rows import (
    ENCRYPTED,
    QUEUE_DEFAULT_ATTEMPTS,
    DeliveryHistory,
    KeyRow,
    LeaseRow,
    pack_extras,
    pack_history,
    pack_message,
)

IMPORT_ROW: Final = b"import/"
"""meta: import/<P><export id> -> the last part of that export that the queue has imported."""


class ImportedPart(msgspec.Struct, frozen=True):
    """The outcome of importing one part."""

    part: int
    duplicate: bool = False  # it was imported before; nothing was done
    messages: int = 0
    results: int = 0
    there: int = 0  # messages whose ids the queue already has
    expired: int = 0  # messages and results that have expired
    digest: str = ""  # of all messages of the part, with their bodies


@dataclass(eq=False)
class ImportPart(Operation[ImportedPart]):
    """Import one part of an export into a queue with ids, order, times, attempts and history. Each part once, in order.

    A message whose idempotency key comes in the same part is imported only if the queue does not know the key.
    """

    queue: QueueArgument
    export: bytes
    part: int
    messages: Sequence[MessageCopy]
    results: Sequence[StoredResult]
    idempotency: Sequence[StoredIdempotencyKey] = ()
    reservation: Reservation | None = None
    journal_op = "add"
    stores_messages = True

    def __post_init__(self) -> None:
        super().__post_init__()
        size = sum(len(one.body) for one in self.messages) + sum(len(one.ids) for one in self.idempotency)
        self.cost = len(self.messages) + len(self.results) + len(self.idempotency) + size / BYTES_PER_COST

    def execute(self, effects: Effects) -> None:
        """Write the messages, results and idempotency keys, and that the part was imported."""
        queue = effects.state.catalog.queue(self.tenant, self.queue)
        queue.check_undamaged()
        queue.check_fills()
        if queue.status == "draining":
            raise Draining(tenant=self.tenant.name, queue=queue.name)
        if self.tenant.config.encryption.enabled and not self._is_encrypted():
            raise not_encrypted(self.tenant.name, queue.name)
        last = last_imported_part(effects.store, queue, self.export)
        if self.part <= last:
            self.reply = ImportedPart(self.part, duplicate=True)
            return
        if self.part != last + 1:
            raise Conflict(
                f"part: out of order ({self.part}, expected: {last + 1}). Import the parts in order.",
                tenant=self.tenant.name,
                queue=queue.name,
            )
        now, wall = effects.now, effects.wall
        known = self._known_ids(effects, queue)
        missing = [
            one for one in self.messages if one.raw_id not in known and not _is_there(effects, queue, one.raw_id)
        ]
        fresh = [one for one in missing if one.expires_at is None or one.expires_at - wall > now]
        extras = [pack_extras(one.group, one.attributes, one.encrypted_attributes) for one in fresh]
        sizes = [
            len(one.body) + len(extra) - (ENCRYPTION_BYTES if one.encrypted else 0)
            for one, extra in zip(fresh, extras, strict=True)
        ]
        room = RemainingQuota(self.tenant, now + wall, self.reservation)
        for size in sizes:
            refused = room.take(size)
            if refused is not None:
                raise refused
        effects.batch.put(IMPORT_ROW + queue.prefix + self.export, self.part.to_bytes(8), effects.store.meta.handle)
        for one, extra, size in zip(fresh, extras, sizes, strict=True):
            _put(effects, queue, one, extra, size)
        living = [one for one in self.results if one.expires_at - wall > now]
        for result in living:
            dead_letter.write_result(effects, queue, result.raw_id, result.result, result.expires_at - wall)
        for key in self.idempotency:
            earlier = effects.key(queue, key.hashed)
            if key.expires_at - wall > now and (earlier is None or earlier.expires_at <= now):
                row = KeyRow(key.ids, key.body_digest, min(key.expires_at - wall, now + TTL_MS_MAX))
                put_key(effects, queue, key.hashed, row)
        if fresh:
            self._count(effects, queue, fresh, sizes)
        else:
            effects.log("import", queue, self.caller, details=self._details(len(living)))
        effects.touch(queue)
        self.reply = ImportedPart(
            self.part,
            messages=len(fresh),
            results=len(living),
            there=len(self.messages) - len(missing),
            expired=len(missing) - len(fresh) + len(self.results) - len(living),
        )

    def _known_ids(self, effects: Effects, queue: QueueState) -> set[bytes]:
        """Return the messages of this part whose idempotency keys the queue knows: they were imported under another id."""
        found: set[bytes] = set()
        for key in self.idempotency if self.messages else ():
            earlier = effects.key(queue, key.hashed)
            if earlier is not None and earlier.expires_at > effects.now:
                found.update(key.ids[at : at + 16] for at in range(0, len(key.ids), 16))
        return found

    def _count(self, effects: Effects, queue: QueueState, fresh: Sequence[MessageCopy], sizes: list[int]) -> None:
        total = sum(sizes)
        queue.grow(total, BODY_BYTES_MAX)
        queue.work.totals[ADDED] += len(fresh)
        queue.work.totals[ADDED_BYTES] += total
        effects.tenants_with_adds[self.tenant] = None
        self.tenant.usage.added(len(fresh), effects.now + effects.wall)
        queue.count_usage()
        effects.log(
            "add", queue, self.caller, ids=b"".join(one.raw_id for one in fresh), size=column(sizes),
            priority=column([one.priority for one in fresh]), details=self._details(len(self.results)),
        )  # fmt: skip

    def _is_encrypted(self) -> bool:
        return all(one.encrypted for one in self.messages) and all(one.result.encrypted for one in self.results)

    def _details(self, results: int) -> str:
        return f"part {self.part} of export {self.export.hex()}, with {results} results"


def _is_there(effects: Effects, queue: QueueState, id: bytes) -> bool:
    return queue.prefix + id in effects.imported or effects.locate(queue, id) is not None


def _put(effects: Effects, queue: QueueState, one: MessageCopy, extras: bytes, size: int) -> None:
    """Write a message with its place in the delivery order, its TTL and its history."""
    store, wall, id = effects.store, effects.wall, one.raw_id
    allowed = QUEUE_DEFAULT_ATTEMPTS if one.max_attempts is None else one.max_attempts
    added_at, visible_at = min(effects.now, max(0, one.added_at - wall)), max(0, one.visible_at - wall)
    expires_at = one.expires_at - wall if one.expires_at is not None else 0
    flags = ENCRYPTED if one.encrypted else 0
    value = pack_message(one.priority, allowed, added_at, visible_at, expires_at, extras, one.body, flags)
    effects.batch.put(queue.prefix + id, value, store.m.handle)
    effects.imported.add(queue.prefix + id)
    group = queue.group_digest(one.group)
    before = bool(one.attempts or one.history or one.dead is not None)
    if before:
        history = pack_history(DeliveryHistory(list(one.history), one.dead))
        row = LeaseRow(one.attempts, 0, 0, 0, visible_at, expires_at, size, one.priority, allowed, group, history)
        effects.put_lease(queue, id, row)
    if expires_at:
        effects.batch.put(expiry_key(queue.prefix, expires_at, EXPIRES_TTL, id), b"", store.ex.handle)
        queue.note_expiry(expires_at)
    if not group or groups.join(effects, queue, group, id, one.priority, visible_at, delivered_before=before):
        effects.insert_waiting(queue, id, one.priority, visible_at, delivered_before=before)


def last_imported_part(store: Store, queue: QueueState, export: bytes) -> int:
    """Return the last part of an export that a queue has imported, or 0."""
    stored = store.get(store.meta, IMPORT_ROW + queue.prefix + export)
    return int.from_bytes(stored) if stored is not None else 0


def forget_imports(effects: Effects, prefix: bytes) -> None:
    """Delete the notes of which parts the queues under ``prefix`` have imported."""
    effects.batch.delete_range(IMPORT_ROW + prefix, IMPORT_ROW + after(prefix), effects.store.meta.handle)
