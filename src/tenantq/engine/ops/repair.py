"""Repair a queue in which an inconsistent row was found: trust the rows, and recount them."""

import logging
from collections.abc import Iterator
from typing import Final

from tenantq.domain.message import SYSTEM
from tenantq.engine import groups
from tenantq.engine.effects import Effects
from tenantq.engine.level import NEVER
from tenantq.engine.operation import ADVANCE, Operation
from tenantq.engine.queue_state import QueueState
from tenantq.store.interface import Family
from tenantq.store.keys import SUFFIX_BYTES, split_waiting_key
from tenantq.store.row_pages import rows_under
from tenantq.store.rows import MessageRow, unpack_message

log = logging.getLogger("tenantq")

_MESSAGES_MAX: Final = 200_000
_HEAD_BYTES: Final = 24


class Repair(Operation[None]):
    """Recount one queue from its rows, and unblock groups whose messages are missing. Rare, so it takes one round."""

    journal_op = "mend"
    phase = ADVANCE

    def __init__(self, queue: QueueState) -> None:
        super().__init__(queue.tenant, SYSTEM)
        self.queue = queue
        queue.suspect = False

    def execute(self, effects: Effects) -> None:
        """Count waiting, leased and blocked messages and bytes. A queue too large for that is left to the doctor."""
        queue, store = self.queue, effects.store
        if queue.tenant.queues.get(queue.name) is not queue:
            return  # it was deleted, or is on its way to another shard
        if queue.messages > _MESSAGES_MAX:
            log.warning(
                "queue %s/%s is too large to recount while serving: stop and run tenantq doctor",
                queue.tenant.name,
                queue.name,
                extra=queue.log_fields(),
            )
            return
        bodies = {key[8:]: unpack_message(value) for key, value in self._rows(effects, store.m)}
        queue.bytes = sum(body.size for body in bodies.values())
        leased = {key[-16:] for key, _ in self._rows(effects, store.li)}
        queue.in_flight = len(leased)
        placed = leased | self._count_waiting(effects) | self._repair_groups(effects, bodies, leased)
        for id in bodies.keys() - placed:
            # No index row refers to the message: make it available again.
            lease = effects.lease(queue, id)
            if lease is not None:
                lease.token, lease.deadline, lease.visible_at = 0, 0, effects.now
                effects.put_lease(queue, id, lease)
            visible_at = lease.visible_at if lease is not None else bodies[id].visible_at
            effects.insert_waiting(queue, id, bodies[id].priority, visible_at, delivered_before=lease is not None)
            effects.heal(queue, id, "message without an index row")
        queue.suspect = False
        effects.touch(queue)
        effects.log("mend", queue, SYSTEM, details=f"{queue.messages} messages recounted")

    def _rows(self, effects: Effects, family: Family) -> Iterator[tuple[bytes, bytes]]:
        return rows_under(effects.store, family, self.queue.prefix)

    def _count_waiting(self, effects: Effects) -> set[bytes]:
        """Count the waiting rows; return the ids that have one."""
        queue = self.queue
        found: set[bytes] = set()
        for level in queue.levels:
            level.ready = level.delayed = 0
            level.next_due = NEVER
        for key, _ in self._rows(effects, effects.store.vi):
            _, priority, visible_at, id = split_waiting_key(key)
            found.add(id)
            level = queue.level(priority)
            suffix = key[-SUFFIX_BYTES:]
            level.cursor = min(level.cursor, suffix)
            if suffix <= level.horizon:
                level.ready += 1
            else:
                level.delayed += 1
                level.next_due = min(level.next_due, visible_at)
        queue.ready = sum(level.ready for level in queue.levels)
        return found

    def _repair_groups(self, effects: Effects, bodies: dict[bytes, MessageRow], leased: set[bytes]) -> set[bytes]:
        """Remove members without a body from their groups; return the ids blocked by an earlier member."""
        queue = self.queue
        members = [key for key, _ in self._rows(effects, effects.store.gr) if len(key) != _HEAD_BYTES]
        heads = {key: value for key, value in self._rows(effects, effects.store.gr) if len(key) == _HEAD_BYTES}
        blocked = {key[_HEAD_BYTES:] for key in members if heads.get(key[:_HEAD_BYTES]) != key[_HEAD_BYTES:]} - leased
        queue.blocked = len(blocked)
        for key in members:
            id = key[_HEAD_BYTES:]
            if id not in bodies:
                effects.heal(queue, id, "group member without a body")
                groups.leave(effects, queue, key[8:_HEAD_BYTES], id, blocked=id in blocked)
        return blocked
