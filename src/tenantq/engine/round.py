"""A round: operations executed together, their effects in one write batch with the journal record."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

import msgspec

from tenantq.domain.quotas import NO_QUOTAS
from tenantq.engine import groups, poll_matching, usage
from tenantq.engine.operation import POINT, REGISTER
from tenantq.engine.queue_state import HEALED, queue_suspended
from tenantq.engine.state import QuotaEvent
from tenantq.errors import Draining, NotFound, StoreFailed, Suspended, TenantqError, Unavailable
from tenantq.journal import checkpoint
from tenantq.journal.record import JournalEntry, Record, encode_record
from tenantq.store.keys import be64
from tenantq.store.rows import (
    KeyRow,
    LeaseRow,
    MessageRow,
    pack_key,
    pack_lease,
    unpack_key,
    unpack_lease,
    unpack_message,
)

if TYPE_CHECKING:
    from collections import deque

    from tenantq.domain.config import QueueConfig
    from tenantq.domain.message import Caller
    from tenantq.engine.operation import FleetPoll, Operation, Poll
    from tenantq.engine.queue_state import Level, QueueState, TenantState
    from tenantq.engine.state import DeadLetterEvent, ShardState
    from tenantq.journal.signing import SigningKey


log = logging.getLogger("tenantq")


class Located(msgspec.Struct):
    """Where a stored message stands."""

    state: Literal["waiting", "blocked", "in_flight"]
    message: MessageRow
    lease: LeaseRow | None
    visible_at: int
    group: bytes


class Round:
    """The effects of one round. Reads see them: point reads through the overlays, scans by running first."""

    __slots__ = (
        "_events",
        "_gone",
        "_keys",
        "_refusals",
        "_started_ms",
        "adding",
        "batch",
        "caller_ops",
        "cleared",
        "core",
        "covers",
        "dirty",
        "eased",
        "emptied",
        "entries",
        "fresh",
        "heads",
        "members_gone",
        "new_members",
        "now",
        "overlay",
        "results_ready",
        "seq",
        "shared",
        "signing_key",
        "skip",
        "store",
        "taken_in",
        "wall",
    )  # fmt: skip

    def __init__(self, core: ShardState, seq: int, *, shared: bool = False) -> None:
        self.core = core
        self.store = core.store
        self.seq = seq
        self.covers = 0  # the last record written when it was handed over for the sync
        self.signing_key: SigningKey | None = None  # set: the round's record is signed
        self.shared = shared  # other tenants wait for this round to end
        self.now = core.shard_clock.now_ms()
        self._started_ms = core.clock.monotonic_ms()
        self.wall = core.shard_clock.wall_offset_ms()
        self.batch = core.store.new_batch()
        self.entries: list[JournalEntry] = []
        self.dirty: dict[QueueState, None] = {}
        self.adding: dict[TenantState, None] = {}  # tenants to which messages were added
        self.eased: dict[TenantState, None] = {}  # tenants that lost a queue, and its leases with it
        self._refusals: dict[tuple[str, ...], JournalEntry] = {}
        self.caller_ops: list[Operation] = []  # to be answered after the sync
        self.cleared: set[bytes] = set()  # prefixes of queues deleted by range in this round
        self.emptied: list[bytes] = []  # prefixes whose space can be given back
        self.skip: set[bytes] = set()  # vi keys deleted in this round, which scans of the store still see
        self.fresh: dict[Level, bytes] = {}  # the first row put into a level in this round, which they do not see yet
        self.results_ready: list[tuple[QueueState, bytes]] = []
        self._events: list[DeadLetterEvent | QuotaEvent] = []
        self._keys: dict[bytes, KeyRow | None] = {}
        self.overlay: dict[bytes, bytes | None] = {}  # lease rows as changed in this round
        self._gone: set[bytes] = set()
        self.heads: dict[bytes, bytes | None] = {}  # group heads as changed in this round
        self.new_members: dict[bytes, dict[bytes, tuple[int, int, bool]]] = {}  # priority, visible_at, delivered before
        self.members_gone: set[bytes] = set()
        self.taken_in: set[bytes] = (
            set()
        )  # keys of messages imported in this round, which reads of the store do not see yet

    # ---- running ----

    def run(self, operations: list[Operation]) -> list[Operation]:
        """Execute ``operations`` in the order of their phases, with the polls served between scans and points.

        Return those that were not started because the round's time was up.
        """
        if len(operations) > 1:
            operations = sorted(operations, key=_phase)
        served = False
        clock, end_ms = self.core.clock, self._started_ms + self.core.settings.round_ms
        for position, operation in enumerate(operations):
            if operation.phase == POINT:
                if not served:
                    served = True
                    poll_matching.serve_hot(self)
                elif clock.monotonic_ms() > end_ms:
                    return operations[position:]
            try:
                if operation.tenant.gone:
                    if operation.future is None:
                        continue  # background work that has lost its object
                    raise NotFound("no such tenant", tenant=operation.tenant.name)
                operation.execute(self)
            except StoreFailed:
                raise
            except TenantqError as error:
                operation.error = error
                self.note_refusal(operation, error)
            if operation.phase != REGISTER or operation.error is not None:
                self.caller_ops.append(operation)
        if not served:
            poll_matching.serve_hot(self)
        return []

    def finish(self) -> bool:
        """Complete the batch with counters and the journal record; return whether there is anything to write."""
        if not self.entries:
            if self.batch.is_empty():
                return False
            log.error("an effect without a journal entry: please report this")
            self.entries.append(
                JournalEntry("unexplained", "", "", self.core.system.principal, details="no entry was given")
            )
        for queue in self.dirty:
            if min(queue.ready, queue.blocked, queue.in_flight, queue.bytes) < 0:
                queue.ready, queue.blocked = max(0, queue.ready), max(0, queue.blocked)
                queue.in_flight, queue.bytes = max(0, queue.in_flight), max(0, queue.bytes)
                queue.suspect = True
        qc = self.store.qc.handle
        put = self.batch.put
        for queue in self.dirty:
            usage.count(queue)
            if queue.prefix not in self.cleared or queue.tenant.queues.get(queue.name) is queue:
                put(queue.prefix, queue.pack(), qc)
        for tenant in self.adding:
            self.core.catalog.save_usage(self.batch, tenant)
        self._tell_of_quotas()
        return True

    def _tell_of_quotas(self) -> None:
        """Journal each quota that this round brought to its soft limit, or used up, once."""
        wall_ms = self.now + self.wall
        for tenant in {queue.tenant: None for queue in self.dirty}:
            if tenant.config.quotas is not NO_QUOTAS and not tenant.gone:
                for name, state, used, limit in usage.risen(tenant, wall_ms):
                    op = "quota_critical" if state == "critical" else "quota_warning"
                    self.log_tenant(op, tenant, self.core.system, f"{name}: {used} of {limit}")
                    self._events.append(QuotaEvent(tenant.name, name, state, used, limit))

    def seal(self, previous: bytes, last_id: bytes) -> tuple[bytes, int]:
        """Add the journal record to the batch; return its hash and its size."""
        record = Record(self.core.shard, self.seq, self.now + self.wall, self.now, last_id, self.entries)
        link, value = encode_record(previous, record)
        self.batch.put(be64(self.seq), value, self.store.jn.handle)
        if self.signing_key is not None:
            row = checkpoint.sign(self.signing_key, record.shard, record.seq, link, record.ts)
            self.batch.put(checkpoint.CHECKPOINT_ROW + be64(self.seq), row, self.store.meta.handle)
        return link, len(value)

    def freed(self) -> list[TenantState]:
        """Return the tenants whose queues waited for the quota of leases and that have room in it now."""
        return [
            tenant
            for tenant in {**self.eased, **{queue.tenant: None for queue in self.dirty if queue.tenant.starved}}
            if (most := tenant.config.quotas.in_flight) is None or tenant.usage.in_flight < most
        ]

    def announce(self) -> None:
        """After the sync: answer callers, wake those who wait for results, tell of dead letters."""
        for operation in self.caller_ops:
            operation.resolve()
            if operation.phase == REGISTER and operation.future is not None and operation.future.cancelled():
                self.core.caller_gone(operation)
        self.caller_ops.clear()
        for queue, id in self.results_ready:
            for future in queue.result_waiters.pop(id, ()):
                if not future.done():
                    future.set_result(None)
        events, self._events = self._events, []
        for event in events:
            for listener in self.core.listeners:
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed; the others and the queue go on")

    def fail(self, error: StoreFailed) -> None:
        """Tell everyone whose work was in this round that it is not confirmed."""
        for operation in self.caller_ops:
            operation.error = error
            operation.resolve()

    # ---- journal ----

    def log(self, op: str, queue: QueueState, caller: Caller, **columns: object) -> None:
        """Add a journal entry about a queue."""
        self.entries.append(
            JournalEntry(
                op,
                queue.tenant.name,
                queue.name,
                caller.principal,
                caller.remote,
                caller.request_id,
                user_agent=caller.user_agent,
                **columns,  # type: ignore[arg-type]  # each by its name
            )
        )

    def log_tenant(self, op: str, tenant: TenantState, caller: Caller, details: str = "") -> None:
        """Add a journal entry about a tenant."""
        self.entries.append(
            JournalEntry(
                op,
                tenant.name,
                "",
                caller.principal,
                caller.remote,
                caller.request_id,
                details=details,
                user_agent=caller.user_agent,
            )
        )

    def note_refusal(self, operation: Operation, error: TenantqError) -> None:
        """Journal an operation that was refused as a whole; refusals of one round that are alike, once with a count."""
        caller = operation.caller
        tenant = operation.tenant.name or (error.tenant if error.tenant in self.core.catalog.tenants else None) or ""
        known = (operation.journal_op, tenant, error.queue or "", caller.principal, caller.remote)
        entry = self._refusals.get((*known, error.code))
        if entry is not None:
            entry.count += 1
            return
        entry = JournalEntry(
            *known, caller.request_id, outcome="refused", error_code=error.code, user_agent=caller.user_agent
        )
        self._refusals[*known, error.code] = entry
        self.entries.append(entry)

    # ---- polls ----

    def register_poll(self, poll: Poll) -> None:
        """Add a poll to its queue's demands."""
        queue = self.core.catalog.queue(poll.tenant, poll.queue_name)
        queue.check_takes()
        leases_max, leased = poll.tenant.config.quotas.in_flight, poll.tenant.usage.in_flight
        if leases_max is not None and leased >= leases_max:
            raise usage.exceeded(poll.tenant, "in_flight", leases_max, leased, self.now + self.wall)
        if queue.status == "draining":
            raise Draining(tenant=poll.tenant.name, queue=queue.name)
        if poll.done:
            return  # the caller went away while the poll stood in line
        if self._crowded(queue.demands):
            raise Unavailable("too many polls wait for this queue", tenant=poll.tenant.name, queue=queue.name)
        if poll.lease_ms is None:
            poll.lease_ms = queue.config.lease_ms
        queue.demands.append(poll)
        self.core.hot[queue] = None

    def register_fleet_poll(self, poll: FleetPoll) -> None:
        """Add a fleet poll to its lane's demands."""
        if poll.done:
            return
        lane = self.core.lane(poll.queue_name)
        if self._crowded(lane.demands):
            raise Unavailable("too many fleet polls wait for this queue name", queue=lane.name)
        lane.demands.append(poll)
        self.core.hot_lanes[lane] = None

    def _crowded(self, demands: deque[Poll] | deque[FleetPoll]) -> bool:
        """Tell whether no further poll may wait, after letting go those that were answered or given up."""
        bound = self.core.settings.waiting_polls_max
        if len(demands) >= bound:
            for _ in range(len(demands)):
                poll = demands.popleft()
                if not poll.done:
                    demands.append(poll)  # type: ignore[arg-type]  # it came from there
        return len(demands) >= bound

    # ---- queues ----

    def queue_for_write(self, tenant: TenantState, name: str, caller: Caller) -> QueueState:
        """Return a queue that takes messages, making it where the tenant allows."""
        if tenant.status == "suspended":
            raise Suspended(tenant=tenant.name, queue=name)
        queue = tenant.queues.get(name)
        if queue is None:
            if not tenant.config.create_queues:
                self.core.catalog.queue(tenant, name)
            return self.create_queue(tenant, name, tenant.config.defaults, caller)
        if queue.suspension is not None:
            raise queue_suspended(queue)
        if queue.status == "draining":
            raise Draining(tenant=tenant.name, queue=name)
        return queue

    def create_queue(self, tenant: TenantState, name: str, config: QueueConfig, caller: Caller) -> QueueState:
        """Make a queue in this round; the system's own are made whatever the quota says."""
        system_made = caller is self.core.system
        allowed = tenant.config.quotas.queues
        if allowed is not None and tenant.usage.queues >= allowed and not system_made:
            raise usage.exceeded(tenant, "queues", allowed, tenant.usage.queues, self.now + self.wall)
        queue = self.core.catalog.create_queue(self.batch, tenant, name, config, system_made=system_made)
        queue.lane = self.core.lanes.get(name)
        self.dirty[queue] = None
        self.log("create_queue", queue, caller)
        return queue

    def touch(self, queue: QueueState) -> None:
        """Note that a queue's counters changed."""
        self.dirty[queue] = None

    def heal(self, queue: QueueState, id: bytes, what: str) -> None:
        """Count and journal an index row that pointed to nothing."""
        queue.totals[HEALED] += 1
        queue.suspect = True
        self.dirty[queue] = None
        self.log("heal", queue, self.core.system, ids=id, outcome="healed", details=what)

    # ---- leases ----

    def lease(self, queue: QueueState, id: bytes) -> LeaseRow | None:
        """Return the lease row of a message as this round sees it."""
        key = queue.prefix + id
        if key in self.overlay:
            value = self.overlay[key]
        elif queue.prefix in self.cleared:
            return None
        else:
            value = self.core.leases.rows.get(key) or self.store.get(self.store.le, key)
        return unpack_lease(value) if value is not None else None

    def leases(self, queue: QueueState, ids: list[bytes]) -> list[LeaseRow | None]:
        """Return the lease rows of many messages."""
        prefix = queue.prefix
        overlay = self.overlay
        keys = [prefix + id for id in ids]
        if prefix in self.cleared:
            values = [overlay.get(key) for key in keys]
        else:
            cached = self.core.leases.rows
            values = [cached.get(key) for key in keys]
            if None in values:
                values = self.store.get_many(self.store.le, keys)
            if overlay:
                values = [overlay.get(key, value) for key, value in zip(keys, values, strict=True)]
        return [unpack_lease(value) if value is not None else None for value in values]

    def forget(self, key: bytes) -> None:
        """Note that a message and its lease are gone, for later operations of this round."""
        self.overlay[key] = None
        self._gone.add(key)

    def put_lease(self, queue: QueueState, id: bytes, row: LeaseRow) -> None:
        """Write a lease row."""
        key = queue.prefix + id
        value = pack_lease(row)
        self.overlay[key] = value
        self.batch.put(key, value, self.store.le.handle)

    def drop_lease(self, queue: QueueState, id: bytes) -> None:
        """Delete a lease row."""
        key = queue.prefix + id
        self.overlay[key] = None
        self.batch.delete(key, self.store.le.handle)

    def end_lease(self, queue: QueueState, id: bytes, row: LeaseRow) -> None:
        """Take a message out of flight: its deadline row goes, its lease row is the caller's business."""
        self.batch.delete(queue.prefix + be64(row.deadline) + id, self.store.li.handle)
        queue.in_flight -= 1

    # ---- idempotency keys ----

    def key(self, queue: QueueState, hashed: bytes) -> KeyRow | None:
        """Return the row of an idempotency key as this round sees it."""
        key = queue.prefix + hashed
        if key in self._keys:
            return self._keys[key]
        if queue.prefix in self.cleared:
            return None
        value = self.store.get(self.store.ik, key)
        return unpack_key(value) if value is not None else None

    def put_key(self, queue: QueueState, hashed: bytes, row: KeyRow) -> None:
        """Remember an idempotency key."""
        self._keys[queue.prefix + hashed] = row
        self.batch.put(queue.prefix + hashed, pack_key(row), self.store.ik.handle)

    def drop_key(self, queue: QueueState, hashed: bytes) -> None:
        """Forget an idempotency key."""
        self._keys[queue.prefix + hashed] = None
        self.batch.delete(queue.prefix + hashed, self.store.ik.handle)

    # ---- waiting rows ----

    def insert_waiting(
        self, queue: QueueState, id: bytes, priority: int, visible_at: int, *, delivered_before: bool
    ) -> None:
        """Put a message into the delivery order."""
        suffix = be64(visible_at) + id
        level = queue.level(priority)
        if level.insert(suffix, visible_at, self.now):
            queue.ready += 1
        self.fresh[level] = min(suffix, self.fresh.get(level, suffix))
        self.batch.put(level.prefix + suffix, b"\x01" if delivered_before else b"", self.store.vi.handle)
        self.dirty[queue] = None

    def remove_waiting(self, queue: QueueState, id: bytes, priority: int, visible_at: int) -> None:
        """Take a message out of the delivery order."""
        suffix = be64(visible_at) + id
        level = queue.level(priority)
        if level.remove(suffix):
            queue.ready -= 1
        key = level.prefix + suffix
        self.batch.delete(key, self.store.vi.handle)
        self.skip.add(key)
        self.dirty[queue] = None

    # ---- whole messages ----

    def locate(self, queue: QueueState, id: bytes) -> Located | None:
        """Return where a message stands as this round sees it, or None if it is not in the queue."""
        key = queue.prefix + id
        if key in self._gone or queue.prefix in self.cleared:
            return None
        value = self.store.get(self.store.m, key)
        if value is None:
            return None
        message = unpack_message(value)
        lease = self.lease(queue, id)
        group = queue.group_digest(message.group)
        if lease is not None and lease.token:
            return Located("in_flight", message, lease, lease.visible_at, group)
        visible_at = lease.visible_at if lease is not None else message.visible_at
        if group and groups.head_of(self, queue, group) != id:
            return Located("blocked", message, lease, visible_at, group)
        return Located("waiting", message, lease, visible_at, group)

    def forget_message(self, queue: QueueState, id: bytes, size: int) -> None:
        """Delete a message's body row and count its bytes out."""
        key = queue.prefix + id
        self.batch.delete(key, self.store.m.handle)
        self._gone.add(key)
        queue.bytes -= size
        self.dirty[queue] = None

    def tell_dead_letter(self, event: DeadLetterEvent) -> None:
        """Have listeners called after the sync."""
        self._events.append(event)


def _phase(operation: Operation) -> int:
    return operation.phase
