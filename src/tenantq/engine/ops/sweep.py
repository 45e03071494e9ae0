"""Background work on one queue, in bounded slices that wait in the tenant's own line."""

from __future__ import annotations

from tenantq.domain.message import SYSTEM
from tenantq.engine import discard
from tenantq.engine.effects import Effects
from tenantq.engine.level import NEVER, Level
from tenantq.engine.operation import ADVANCE, PART_BYTES, SCAN, Operation
from tenantq.engine.ops.settle import end_delivery
from tenantq.engine.queue_state import QueueState
from tenantq.engine.work_counters import LEASE_EXPIRED
from tenantq.store.interface import Family, ManyDeleted
from tenantq.store.keys import (
    EXPIRES_KEY,
    EXPIRES_TTL,
    ID_LAST,
    PREFIX_BYTES,
    SUFFIX_BYTES,
    after,
    be64,
    from_be64,
    split_deadline_key,
    split_expiry_key,
)
from tenantq.store.rows import unpack_result

_ADVANCE_ROWS = 2_000
_ADVANCE_ROWS_SHARED = 512
_ADVANCED_PER_COST = 64  # they are counted only
_ROWS_PER_COST = 4
_ROWS_SHARED = 32
_DELETED_MAX = 4_096  # passed to find the next time: about half a millisecond
_LEASES_AHEAD_MS = 100  # searched if many deleted rows are ahead
_EXPIRIES_AHEAD_MS = 1_000


class Advance(Operation[None]):
    """Count delayed rows that have become visible as ready."""

    phase = ADVANCE

    def __init__(self, queue: QueueState) -> None:
        super().__init__(queue.tenant, SYSTEM)
        self.queue = queue
        queue.advancing = True

    def execute(self, effects: Effects) -> None:
        """Move the horizon of each level up to now, or as far as one slice of rows goes. Its tenant is charged for them."""
        queue = self.queue
        queue.advancing = False
        if queue.tenant.queues.get(queue.name) is not queue:
            return  # it was deleted, or is on its way to another shard
        left = _ADVANCE_ROWS_SHARED if effects.shared else _ADVANCE_ROWS
        for level in queue.levels:
            if level.delayed and level.next_due <= effects.now and left > 0:
                left -= self._advance(effects, level, left)
        effects.touch(queue)

    def _advance(self, effects: Effects, level: Level, limit: int) -> int:
        """Count up to ``limit`` rows of a level; return how many there were."""
        store = effects.store
        end = be64(effects.now) + ID_LAST
        lower = level.prefix + level.horizon + b"\0" if level.horizon else level.prefix
        due = store.scan(store.vi, lower, level.prefix + end + b"\0", limit)
        self.tenant.line.charge(len(due) / _ADVANCED_PER_COST)
        level.ready += len(due)
        level.delayed -= len(due)
        self.queue.ready += len(due)
        if len(due) == limit:
            level.horizon = due[-1][-SUFFIX_BYTES:]
            level.next_due = 0
            return limit
        level.horizon = max(level.horizon, end)
        level.next_due = NEVER
        if level.delayed:
            following = store.scan(store.vi, level.prefix + end + b"\0", after(level.prefix), 1)
            if following:
                level.next_due = from_be64(following[0][9:17])
            else:
                lost, level.delayed = level.delayed, 0
                effects.heal(self.queue, b"", f"{lost} delayed messages counted but not found")
        return len(due)


class Sweep(Operation[None]):
    """Make messages with expired leases available again, and delete messages, keys and results that have expired."""

    phase = SCAN

    def __init__(self, queue: QueueState) -> None:
        super().__init__(queue.tenant, SYSTEM)
        self.queue = queue
        queue.sweeping = True

    def execute(self, effects: Effects) -> None:
        """Do one slice. The queue's timer starts the next. Its tenant is charged for the rows that it touches."""
        queue = self.queue
        queue.sweeping = False
        if (
            queue.prefix in effects.cleared
            or queue.frozen is not None
            or queue.tenant.queues.get(queue.name) is not queue
        ):
            return
        is_changed = queue in effects.dirty  # the scans do not see rows that this round has put
        # Collect first: then expiring leases can only lower the times that collecting has read from the store.
        limit = effects.state.settings.sweep_rows
        if effects.shared:
            limit = min(limit, _ROWS_SHARED)
        rows = 0
        if queue.next_expiry <= effects.now:
            rows += self._collect(effects, limit)
        if queue.next_lease <= effects.now:
            rows += self._expire_leases(effects, limit)
        if is_changed:
            queue.deadline_cursor = queue.expiry_cursor = b""
        self.tenant.line.charge(max(0.0, rows / _ROWS_PER_COST - self.cost))
        effects.touch(queue)

    def _expire_leases(self, effects: Effects, limit: int) -> int:
        """End the leases whose deadline has passed, up to ``limit``; return how many rows were read."""
        queue, store = self.queue, effects.store
        end = be64(effects.now + 1)
        keys = store.scan(store.li, queue.prefix + queue.deadline_cursor, queue.prefix + end, limit)
        parsed = [split_deadline_key(key) for key in keys]
        leases = effects.leases(queue, [id for _, _, id in parsed])
        expired: list[bytes] = []
        sizes: list[int] = []
        attempts: list[int] = []
        held: list[int] = []
        at_end = len(keys) < limit
        for key, (_, deadline, id), lease in zip(keys, parsed, leases, strict=True):
            if effects.moved_bytes >= PART_BYTES:
                at_end = False
                break
            queue.deadline_cursor = key[PREFIX_BYTES:] + b"\0"
            if lease is None or not lease.token or lease.deadline != deadline:
                effects.batch.delete(key, store.li.handle)
                effects.heal(queue, id, "deadline row without a lease")
                continue
            expired.append(id)
            sizes.append(lease.size)
            attempts.append(lease.attempts)
            held.append(effects.now - lease.leased_at)
            queue.work.totals[LEASE_EXPIRED] += 1
            if queue.has_lane:
                effects.state.lanes[queue.name].settle(queue, effects.now - lease.leased_at)
            end_delivery(effects, queue, id, lease, "lease_expired", "", "LEASE_EXPIRED", 0)
        if expired:
            effects.log(
                "lease_expired", queue, SYSTEM, ids=b"".join(expired), size=sizes, attempt=attempts,
                process_ms=held, outcome="expired",
            )  # fmt: skip
        if at_end:
            queue.next_lease, queue.deadline_cursor = self._first_time(effects, store.li, _LEASES_AHEAD_MS), end
        return len(keys)

    def _collect(self, effects: Effects, limit: int) -> int:
        """Delete what has expired, up to ``limit`` rows; return how many were read."""
        queue, store = self.queue, effects.store
        end = be64(effects.now + 1)
        keys = store.scan(store.ex, queue.prefix + queue.expiry_cursor, queue.prefix + end, limit)
        ex = store.ex.handle
        collected = 0
        at_end = len(keys) < limit
        for key in keys:
            if effects.moved_bytes >= PART_BYTES:
                at_end = False
                break
            _, expires_at, kind, ref = split_expiry_key(key)
            queue.expiry_cursor = key[PREFIX_BYTES:] + b"\0"
            effects.batch.delete(key, ex)
            collected += 1
            if kind == EXPIRES_TTL:
                self._discard(effects, ref)
            elif kind == EXPIRES_KEY:
                row = effects.key(queue, ref)
                if row is not None and row.expires_at == expires_at:
                    effects.drop_key(queue, ref)
            else:
                value = store.get(store.re, queue.prefix + ref)
                if value is not None and unpack_result(value).expires_at == expires_at:
                    effects.batch.delete(queue.prefix + ref, store.re.handle)
        if collected:
            effects.log("collect", queue, SYSTEM, details=f"{collected} expiry entries")
        if at_end:
            queue.next_expiry, queue.expiry_cursor = self._first_time(effects, store.ex, _EXPIRIES_AHEAD_MS), end
        return len(keys)

    def _first_time(self, effects: Effects, family: Family, ahead_ms: int) -> int:
        """Return the first time of a row that is not due yet, or an earlier one if many deleted rows are before it."""
        prefix, store, again_at = self.queue.prefix, effects.store, effects.now + ahead_ms
        start, end = prefix + be64(effects.now + 1), after(prefix)
        try:
            found = store.scan(family, start, end, 1, deleted_max=_DELETED_MAX)
        except ManyDeleted:
            end = prefix + be64(again_at)
            found = store.scan(family, start, end, 1) or [end]
        return from_be64(found[0][PREFIX_BYTES : PREFIX_BYTES + 8]) if found else NEVER

    def _discard(self, effects: Effects, id: bytes) -> None:
        """Delete a waiting message past its TTL. A leased message stays: the end of its lease checks the TTL."""
        queue = self.queue
        found = effects.locate(queue, id)
        if found is None or found.state == "in_flight":
            return
        expires_at = found.lease.expires_at if found.lease is not None else found.message.expires_at
        if not expires_at or expires_at > effects.now:
            return
        if found.state == "waiting":
            effects.remove_waiting(queue, id, found.message.priority, found.visible_at)
        effects.moved_bytes += found.message.size
        discard.discard(effects, queue, id, found.message, found.lease)
