"""Background work on one queue, in bounded slices that wait in the tenant's own line."""

from __future__ import annotations

from tenantq.domain.message import SYSTEM
from tenantq.engine import discard
from tenantq.engine.effects import Effects
from tenantq.engine.operation import ADVANCE, PART_BYTES, SCAN, Operation
from tenantq.engine.ops.settle import end_delivery
from tenantq.engine.queue_state import LEASE_EXPIRED, NEVER, Level, QueueState
from tenantq.store.keys import (
    EXPIRES_KEY,
    EXPIRES_TTL,
    ID_LAST,
    SUFFIX_BYTES,
    after,
    be64,
    from_be64,
    split_deadline_key,
    split_expiry_key,
)
from tenantq.store.rows import unpack_result

_ADVANCE_ROWS = 2_000
_ROWS_PER_COST = 4
_ROWS_SHARED = 32


class Advance(Operation[None]):
    """Count delayed rows that have become visible as ready."""

    phase = ADVANCE

    def __init__(self, queue: QueueState) -> None:
        super().__init__(queue.tenant, SYSTEM)
        self.queue = queue
        queue.advancing = True

    def execute(self, effects: Effects) -> None:
        """Move the horizon of each level up to now, or as far as one slice goes."""
        queue = self.queue
        queue.advancing = False
        for level in queue.levels:
            if level.delayed and level.next_due <= effects.now:
                self._advance(effects, level)
        effects.touch(queue)

    def _advance(self, effects: Effects, level: Level) -> None:
        store = effects.store
        end = be64(effects.now) + ID_LAST
        lower = level.prefix + level.horizon + b"\0" if level.horizon else level.prefix
        due = store.scan(store.vi, lower, level.prefix + end + b"\0", _ADVANCE_ROWS)
        level.ready += len(due)
        level.delayed -= len(due)
        self.queue.ready += len(due)
        if len(due) == _ADVANCE_ROWS:
            level.horizon = due[-1][-SUFFIX_BYTES:]
            level.next_due = 0
            return
        level.horizon = max(level.horizon, end)
        level.next_due = NEVER
        if level.delayed:
            following = store.scan(store.vi, level.prefix + end + b"\0", after(level.prefix), 1)
            if following:
                level.next_due = from_be64(following[0][9:17])
            else:
                lost, level.delayed = level.delayed, 0
                effects.heal(self.queue, b"", f"{lost} delayed messages counted but not found")


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
        if queue.prefix in effects.cleared or queue.frozen is not None:
            return
        # Collect first: then expiring leases can only lower the times that collecting has read from the store.
        limit = effects.state.settings.sweep_rows
        if effects.shared:
            limit = min(limit, _ROWS_SHARED)
        rows = 0
        if queue.next_expiry <= effects.now:
            rows += self._collect(effects, limit)
        if queue.next_lease <= effects.now:
            rows += self._expire_leases(effects, limit)
        self.tenant.line.charge(max(0.0, rows / _ROWS_PER_COST - self.cost))
        effects.touch(queue)

    def _expire_leases(self, effects: Effects, limit: int) -> int:
        """End the leases whose deadline has passed, up to ``limit``; return how many rows were read."""
        queue, store = self.queue, effects.store
        lower, upper = queue.prefix, queue.prefix + be64(effects.now + 1)
        keys = store.scan(store.li, lower, upper, limit)
        parsed = [split_deadline_key(key) for key in keys]
        leases = effects.leases(queue, [id for _, _, id in parsed])
        expired: list[bytes] = []
        sizes: list[int] = []
        attempts: list[int] = []
        held: list[int] = []
        whole = len(keys) < limit
        for key, (_, deadline, id), lease in zip(keys, parsed, leases, strict=True):
            if effects.moved_bytes >= PART_BYTES:
                whole = False
                break
            if lease is None or not lease.token or lease.deadline != deadline:
                effects.batch.delete(key, store.li.handle)
                effects.heal(queue, id, "deadline row without a lease")
                continue
            expired.append(id)
            sizes.append(lease.size)
            attempts.append(lease.attempts)
            held.append(effects.now - lease.leased_at)
            queue.totals[LEASE_EXPIRED] += 1
            if queue.has_lane:
                effects.state.lanes[queue.name].settle(queue, effects.now - lease.leased_at)
            end_delivery(effects, queue, id, lease, "lease_expired", "", "LEASE_EXPIRED", 0)
        if expired:
            effects.log(
                "lease_expired", queue, SYSTEM, ids=b"".join(expired), size=sizes, attempt=attempts,
                process_ms=held, outcome="expired",
            )  # fmt: skip
        if whole:
            following = store.scan(store.li, upper, after(queue.prefix), 1)
            queue.next_lease = from_be64(following[0][8:16]) if following else NEVER
        return len(keys)

    def _collect(self, effects: Effects, limit: int) -> int:
        """Delete what has expired, up to ``limit`` rows; return how many were read."""
        queue, store = self.queue, effects.store
        upper = queue.prefix + be64(effects.now + 1)
        keys = store.scan(store.ex, queue.prefix, upper, limit)
        ex = store.ex.handle
        collected = 0
        whole = len(keys) < limit
        for key in keys:
            if effects.moved_bytes >= PART_BYTES:
                whole = False
                break
            _, expires_at, kind, ref = split_expiry_key(key)
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
        if whole:
            following = store.scan(store.ex, upper, after(queue.prefix), 1)
            queue.next_expiry = from_be64(following[0][8:16]) if following else NEVER
        return len(keys)

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
