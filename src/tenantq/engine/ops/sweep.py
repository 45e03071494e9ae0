"""Background work on one queue, in bounded slices that wait in the tenant's own line like everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.engine import discard
from tenantq.engine.operation import ADVANCE, SCAN, Operation
from tenantq.engine.ops.settle import give_back
from tenantq.engine.queue_state import LEASE_EXPIRED, NEVER
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

if TYPE_CHECKING:
    from tenantq.engine.queue_state import Level, QueueState
    from tenantq.engine.round import Round
    from tenantq.engine.state import ShardState

_ADVANCE_ROWS = 2_000
_ROWS_PER_COST = 4


class Advance(Operation):
    """Count delayed rows that have become visible as ready."""

    __slots__ = ("queue",)
    phase = ADVANCE

    def __init__(self, core: ShardState, queue: QueueState) -> None:
        super().__init__(queue.tenant, core.system)
        self.queue = queue
        queue.advancing = True

    def execute(self, round: Round) -> None:
        """Move the horizon of each level up to now, or as far as one slice goes."""
        queue = self.queue
        queue.advancing = False
        for level in queue.levels:
            if level.delayed and level.next_due <= round.now:
                self._advance(round, level)
        round.touch(queue)

    def _advance(self, round: Round, level: Level) -> None:
        store = round.store
        end = be64(round.now) + ID_LAST
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
                round.heal(self.queue, b"", f"{lost} delayed messages counted but not found")


class Sweep(Operation):
    """Return expired leases to the line, and collect messages, keys and results whose time is over."""

    __slots__ = ("queue",)
    phase = SCAN

    def __init__(self, core: ShardState, queue: QueueState) -> None:
        super().__init__(queue.tenant, core.system, core.settings.sweep_rows / _ROWS_PER_COST)
        self.queue = queue
        queue.sweeping = True

    def execute(self, round: Round) -> None:
        """Do one slice; the queue's timer brings the next."""
        queue = self.queue
        queue.sweeping = False
        if queue.prefix in round.cleared or queue.frozen is not None:
            return
        # Collect first: what expiring leases writes then only lowers the times that collecting read from the store.
        if queue.next_expiry <= round.now:
            self._collect(round)
        if queue.next_lease <= round.now:
            self._expire_leases(round)
        round.touch(queue)

    def _expire_leases(self, round: Round) -> None:
        queue, store = self.queue, round.store
        limit = round.core.settings.sweep_rows
        lower, upper = queue.prefix, queue.prefix + be64(round.now + 1)
        keys = store.scan(store.li, lower, upper, limit)
        parsed = [split_deadline_key(key) for key in keys]
        leases = round.leases(queue, [id for _, _, id in parsed])
        expired: list[bytes] = []
        sizes: list[int] = []
        attempts: list[int] = []
        held: list[int] = []
        for key, (_, deadline, id), lease in zip(keys, parsed, leases, strict=True):
            if lease is None or not lease.token or lease.deadline != deadline:
                round.batch.delete(key, store.li.handle)
                round.heal(queue, id, "deadline row without a lease")
                continue
            expired.append(id)
            sizes.append(lease.size)
            attempts.append(lease.attempts)
            held.append(round.now - lease.leased_at)
            queue.totals[LEASE_EXPIRED] += 1
            if queue.lane is not None:
                queue.lane.settle(queue, round.now - lease.leased_at)
            give_back(round, queue, id, lease, "lease_expired", "", "LEASE_EXPIRED", 0)
        if expired:
            round.log(
                "lease_expired", queue, round.core.system, ids=b"".join(expired), size=sizes, attempt=attempts,
                process_ms=held, outcome="expired",
            )  # fmt: skip
        if len(keys) < limit:
            following = store.scan(store.li, upper, after(queue.prefix), 1)
            queue.next_lease = from_be64(following[0][8:16]) if following else NEVER

    def _collect(self, round: Round) -> None:
        queue, store = self.queue, round.store
        limit = round.core.settings.sweep_rows
        upper = queue.prefix + be64(round.now + 1)
        keys = store.scan(store.ex, queue.prefix, upper, limit)
        ex = store.ex.handle
        collected = 0
        for key in keys:
            _, expires_at, kind, ref = split_expiry_key(key)
            round.batch.delete(key, ex)
            collected += 1
            if kind == EXPIRES_TTL:
                self._discard(round, ref)
            elif kind == EXPIRES_KEY:
                row = round.key(queue, ref)
                if row is not None and row.expires_at == expires_at:
                    round.drop_key(queue, ref)
            else:
                value = store.get(store.re, queue.prefix + ref)
                if value is not None and unpack_result(value).expires_at == expires_at:
                    round.batch.delete(queue.prefix + ref, store.re.handle)
        if collected:
            round.log("collect", queue, round.core.system, details=f"{collected} expiry entries")
        if len(keys) < limit:
            following = store.scan(store.ex, upper, after(queue.prefix), 1)
            queue.next_expiry = from_be64(following[0][8:16]) if following else NEVER

    def _discard(self, round: Round, id: bytes) -> None:
        """Drop a waiting message past its TTL. One in flight is left alone: its lease's end looks at the TTL."""
        queue = self.queue
        found = round.locate(queue, id)
        if found is None or found.state == "in_flight":
            return
        expires_at = found.lease.expires_at if found.lease is not None else found.message.expires_at
        if not expires_at or expires_at > round.now:
            return
        if found.state == "waiting":
            round.remove_waiting(queue, id, found.message.priority, found.visible_at)
        discard.discard(round, queue, id, found.message, found.lease)
