"""The state of tenants and queues in memory: a cache of the store, loaded when the shard opens."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import Literal, Protocol

from tenantq.domain.config import QueueConfig, TenantConfig
from tenantq.domain.message import Caller, Delivery
from tenantq.engine.fair_lines import TenantLine
from tenantq.engine.level import FIRST, NEVER, Level
from tenantq.engine.part_state import PartState
from tenantq.engine.restrictions import Erasing, Hold, Suspension
from tenantq.engine.usage import Usage
from tenantq.engine.work_counters import ACKED, ADDED, DELIVERED, TOTALS, TenantCounters, WorkSums
from tenantq.errors import Conflict, LegalHold, QueueDamaged, Suspended, TenantqError
from tenantq.runtime.clock import Timer
from tenantq.store.keys import be64, digest, queue_prefix
from tenantq.store.rows import CountersRow, LevelRow, pack_counters

Status = Literal["active", "paused", "draining"]
TenantStatus = Literal["active", "suspended"]

serials = count()
"""Numbers of the states of this process, in the order of their creation."""


class TenantState:
    """A tenant and its queues."""

    __slots__ = (
        "_counters", "config", "earlier", "erasing", "gone", "heat", "hold", "id", "line", "name", "next_data_key",
        "next_queue_id", "part", "queue_blocks", "queues", "serial", "since", "starved", "status", "suspension", "usage",
        "version",
    )  # fmt: skip

    def __init__(self, id: int, name: str, config: TenantConfig, line: TenantLine, next_queue_id: int = 1) -> None:
        self.serial = next(serials)
        self.id = id
        self.name = name
        self.config = config
        self.line = line
        self.next_queue_id = next_queue_id
        self.queues: dict[str, QueueState] = {}
        self.status: TenantStatus = "active"
        self.version = 1  # of its configuration; grows with every change
        self.since = 0  # the journal record that created it; earlier records under this name are about another tenant
        self.suspension: Suspension | None = None  # if it is suspended; None: by an earlier version, with mode settle
        self.hold: Hold | None = None  # while set, nothing of the tenant is deleted by hand
        self.erasing: Erasing | None = None  # while set, the tenant stays frozen until it is deleted
        self.earlier: tuple[tuple[int, int], ...] = ()  # shards that it lived on before, each with ``since`` there
        self.part: PartState | None = None  # None: all its queues are on this shard
        self.queue_blocks = 0  # ranges of queue ids that were given to parts on other shards
        self.next_data_key = 0  # numbers below were used; they are never reused
        self.usage = Usage()
        self.starved: dict[QueueState, None] = {}  # queues that could deliver if the in_flight quota allowed
        self.gone = False  # deleted; waiting operations are refused
        self.heat = 0.0  # recent work of its queues, which the metrics keep
        self._counters: TenantCounters | None = None  # most tenants are idle

    @property
    def counters(self) -> TenantCounters:
        """What happened to its calls since the server started."""
        if self._counters is None:
            self._counters = TenantCounters()
        return self._counters

    @property
    def messages(self) -> int:
        """How many messages its queues have."""
        return self.usage.messages

    def allowed(self, quota: str) -> int | None:
        """Return how much of a counted quota may be used on this shard; None: it is not limited."""
        limit: int | None = getattr(self.config.quotas, quota)
        return limit if limit is None or self.part is None else self.part.rights[quota]

    @property
    def queues_max(self) -> int | None:
        """How many queues it may have on this shard; None: they are not limited."""
        most = self.allowed("queues")
        owes = self.part is not None and "queues" in self.part.owing
        return min(most, self.usage.queues) if most is not None and owes else most

    @property
    def leases_max(self) -> int | None:
        """How many leases it may have on this shard; None: it is not limited."""
        most, part = self.config.quotas.in_flight, self.part
        if most is None or part is None:
            return most
        return (
            min(part.rights["in_flight"], self.usage.in_flight)
            if "in_flight" in part.owing
            else part.rights["in_flight"]
        )

    @property
    def has_counters(self) -> bool:
        """Whether anything was counted since the server started."""
        return self._counters is not None

    @property
    def frozen(self) -> Suspension | None:
        """The suspension that freezes it, if any."""
        return self.suspension if self.suspension is not None and self.suspension.mode == "freeze" else None

    @property
    def takes_letters(self) -> bool:
        """Whether dead letters may be moved: also while leased messages may be settled."""
        return self.suspension is None or self.suspension.mode == "settle"

    def suspended(self, queue: str | None = None) -> Suspended:
        """Return the error for calls while it is suspended. It says why a tenant is frozen: it may have moved elsewhere."""
        frozen = self.frozen
        text = f"the tenant is suspended: {frozen.reason}" if frozen is not None and frozen.reason else ""
        return Suspended(text, tenant=self.name, queue=queue)

    def check_thawed(self, queue: str | None = None) -> None:
        """Raise Suspended if it is frozen."""
        _check_thawed(self.frozen, self.name, queue)

    def check_not_erasing(self) -> None:
        """Raise Conflict if it is being deleted."""
        if self.erasing is not None:
            raise Conflict("the tenant is being deleted", tenant=self.name)

    def check_hold(self, queue: str | None = None) -> None:
        """Raise LegalHold if the tenant is under legal hold."""
        if self.hold is not None:
            raise LegalHold(
                f"the tenant is under legal hold ({self.hold.reason}). Release the hold first.",
                tenant=self.name,
                queue=queue,
            )


def is_home(tenant: TenantState) -> bool:
    """Return whether this shard has the tenant's settings and keys: its only shard, or the home of its parts."""
    return tenant.part is None or tenant.part.is_home


def _check_thawed(frozen: Suspension | None, tenant: str, queue: str | None) -> None:
    if frozen is not None:
        raise Suspended(f"nothing of this may change: {frozen.reason or 'it is suspended'}", tenant=tenant, queue=queue)


def queue_suspended(queue: QueueState) -> Suspended:
    own = queue.suspension
    why = own.reason if own is not None and own.mode == "freeze" else ""
    return Suspended(
        f"the queue is suspended: {why or 'it neither accepts nor delivers messages'}",
        tenant=queue.tenant.name,
        queue=queue.name,
    )


class WaitingPoll(Protocol):
    """A poll that waits for messages: ``polls.Poll``, which cannot be imported here because it names its tenant."""

    queue_name: str
    caller: Caller
    max: int
    wait_ms: int
    lease_ms: int | None
    whole_groups: bool
    allowed: frozenset[int] | None  # ids of the tenants of a fleet poll; None: all
    got: list[Delivery]
    bytes: int  # of ``got``
    timer: Timer | None
    reply: list[Delivery]
    error: TenantqError | None

    @property
    def done(self) -> bool:
        """Whether its caller has gone or has the reply."""

    @property
    def is_full(self) -> bool:
        """Whether its reply has as many messages or bytes as it may have."""

    def stop_waiting(self) -> None:
        """Answer a poll that got nothing in its time."""

    def resolve(self) -> None:
        """Give the caller the reply or the error."""


_GUESSED_BYTES_MAX = 64 << 10


class QueueState:
    """A queue's configuration, counters and waiting polls."""

    __slots__ = (
        "_largest_bytes", "advancing", "blocked", "bytes", "config", "counted", "damaged", "deadline_cursor",
        "demands", "doomed", "dropping", "expiry_cursor", "fifo", "fleet_cost_ms", "fleet_entry", "fleet_time",
        "fleet_turn", "has_lane", "heat", "id", "in_flight", "levels", "low_turn", "name", "next_expiry",
        "next_lease", "passed_over", "prefix", "ready", "result_waiters", "serial", "status", "suspect", "suspension",
        "sweeping", "system_made", "tenant", "timer", "timer_at", "work", "work_seen",
    )  # fmt: skip

    def __init__(self, tenant: TenantState, id: int, name: str, config: QueueConfig, status: Status) -> None:
        self.serial = next(serials)
        self.tenant = tenant
        self.id = id
        self.name = name
        self.config = config
        self.status: Status = status
        self.suspension: Suspension | None = None  # of this queue alone
        self.fifo = name.endswith(".fifo")
        self.prefix = queue_prefix(tenant.id, id)
        self.levels: list[Level] = []  # highest priority first
        self.ready = 0  # over all levels
        self.blocked = 0
        self.in_flight = 0
        self.bytes = 0
        self._largest_bytes = 0  # of its messages; 0: unknown
        self.counted = (0, 0, 0)  # messages, bytes and leases, as the tenant's sums have them
        self.system_made = False  # for dead letters; not charged to the quota of queues
        self.work = WorkSums()
        self.heat = 0.0  # recent work, which the metrics keep
        self.work_seen = 0  # by the metrics
        self.next_lease = NEVER  # no lease ends before this
        self.next_expiry = NEVER  # nothing expires before this
        self.deadline_cursor = self.expiry_cursor = FIRST  # sweeps start here: no row is before
        self.passed_over = 0  # deliveries in a row that were preferred to a lower priority
        self.low_turn = 0  # which lower priority is next to get such a delivery
        self.demands: deque[WaitingPoll] = deque()
        self.result_waiters: dict[bytes, list[asyncio.Future[None]]] = {}
        self.timer: Timer | None = None
        self.timer_at = NEVER
        self.advancing = False  # an advance is in the tenant's line
        self.sweeping = False  # a sweep is in the tenant's line
        self.suspect = False  # a row was healed, so the counters need a recount
        self.damaged = False  # rows cannot be read: the queue is quarantined until the store is restored
        self.dropping = False  # the final drop is in the tenant's line
        self.doomed = False  # deleted by force: leases are not waited for
        self.has_lane = False  # fleet polls share out the queues of this name
        self.fleet_entry = 0  # of its lane; 0: it has no work there
        self.fleet_turn = 0.0
        self.fleet_time = 0.0  # virtual time
        self.fleet_cost_ms = 0.0  # the usual processing time of its messages

    def level(self, priority: int) -> Level:
        """Return the level of a priority, creating it on first use."""
        for level in self.levels:
            if level.priority == priority:
                return level
        level = Level(self.prefix, priority)
        self.levels.append(level)
        self.levels.sort(key=lambda one: -one.priority)
        return level

    def grow(self, size: int, largest: int) -> None:
        """Count the bytes of new messages, of which the largest has ``largest``."""
        if self.bytes <= 0 or largest > self.largest_bytes:
            self._largest_bytes = largest
        self.bytes += size

    @property
    def largest_bytes(self) -> int:
        """The size of its largest message. After a restart it is a guess, until the queue has been empty."""
        if self._largest_bytes:
            return self._largest_bytes  # known, as after most adds
        return min(_GUESSED_BYTES_MAX, 1_024 + 4 * (self.bytes // max(1, self.messages)))

    def group_digest(self, group: str | None) -> bytes:
        """Return the digest of a message's group. Messages of a FIFO queue without a group share the unnamed one."""
        if group is None:
            return digest(b"") if self.fifo else b""
        return digest(group.encode())

    @property
    def serving(self) -> bool:
        """Whether messages are delivered."""
        return self.status == "active" and not self.suspended and not self.damaged

    @property
    def suspended(self) -> bool:
        """Whether the queue or its tenant is suspended, in any mode."""
        return self.tenant.status == "suspended" or self.suspension is not None

    @property
    def takes_letters(self) -> bool:
        """Whether dead letters are moved here: also while leased messages may be settled."""
        return (
            self.status != "draining"
            and not self.damaged
            and self.tenant.takes_letters
            and (self.suspension is None or self.suspension.mode == "settle")
        )

    @property
    def frozen(self) -> Suspension | None:
        """The suspension that freezes it, if any."""
        own = self.suspension
        return own if own is not None and own.mode == "freeze" else self.tenant.frozen

    def check_undamaged(self) -> None:
        """Raise QueueDamaged if rows of the queue cannot be read."""
        if self.damaged:
            raise QueueDamaged(tenant=self.tenant.name, queue=self.name)

    def check_takes(self) -> None:
        """Raise Suspended if the queue or its tenant is suspended, QueueDamaged if its rows cannot be read."""
        self.check_undamaged()
        if self.tenant.status == "suspended":
            raise self.tenant.suspended(self.name)
        if self.suspension is not None:
            raise queue_suspended(self)

    def check_thawed(self) -> None:
        """Raise Suspended if it is frozen."""
        _check_thawed(self.frozen, self.tenant.name, self.name)

    def check_fills(self) -> None:
        """Raise Suspended unless parts of exports may be imported here."""
        own, tenant = self.suspension, self.tenant.suspension
        if self.tenant.status == "suspended" and (tenant is None or tenant.mode != "fill"):
            raise self.tenant.suspended(self.name)
        if own is not None and own.mode != "fill":
            raise queue_suspended(self)

    @property
    def deliverable(self) -> int:
        """How many ready messages may be leased now within the tenant's in_flight quota."""
        if not self.serving:
            return 0
        leases_max = self.tenant.leases_max
        return self.ready if leases_max is None else min(self.ready, leases_max - self.tenant.usage.in_flight)

    @property
    def delayed(self) -> int:
        """Rows that are not visible yet, over all levels."""
        return sum([level.delayed for level in self.levels])

    @property
    def messages(self) -> int:
        return self.ready + self.delayed + self.blocked + self.in_flight

    def count_usage(self) -> None:
        """Add what changed since the last call to the tenant's sums."""
        usage = self.tenant.usage
        messages, bytes, in_flight = self.messages, self.bytes, self.in_flight
        before = self.counted
        usage.messages += messages - before[0]
        usage.bytes += bytes - before[1]
        usage.in_flight += in_flight - before[2]
        self.counted = (messages, bytes, in_flight)

    @property
    def next_due(self) -> int:
        """No delayed row becomes visible before this."""
        due = NEVER
        for level in self.levels:
            if level.delayed:
                due = min(due, level.next_due)
        return due

    def log_fields(self) -> dict[str, str | int]:
        """Return the fields of log records about this queue."""
        tenant = self.tenant
        return {"tenant": tenant.name, "tenant_id": tenant.id, "queue": self.name, "queue_id": self.id}

    @property
    def work_done(self) -> int:
        """Messages added, delivered and acked so far."""
        totals = self.work.totals
        return totals[ADDED] + totals[DELIVERED] + totals[ACKED]

    def note_lease(self, ends_at: int) -> None:
        """Note that a lease ends at ``ends_at``."""
        self.next_lease = min(self.next_lease, ends_at)
        self.deadline_cursor = min(self.deadline_cursor, be64(ends_at))

    def note_expiry(self, expires_at: int) -> None:
        """Note that a row expires at ``expires_at``."""
        self.next_expiry = min(self.next_expiry, expires_at)
        self.expiry_cursor = min(self.expiry_cursor, be64(expires_at))

    def clear(self) -> None:
        """Reset the counters after all rows were deleted by range."""
        self.levels.clear()
        self.ready = self.blocked = self.in_flight = self.bytes = 0
        self.next_lease = NEVER

    def reset(self) -> None:
        """Reset everything that a qc row has."""
        self.clear()
        self.next_expiry = NEVER
        self.deadline_cursor = self.expiry_cursor = FIRST
        self.work.totals = [0] * len(TOTALS)

    def pack(self) -> bytes:
        """Return the qc row."""
        levels = [
            LevelRow(level.priority, level.ready, level.delayed, level.horizon, level.cursor, level.next_due)
            for level in self.levels
        ]
        return pack_counters(
            CountersRow(
                levels, self.blocked, self.in_flight, self.bytes, self.next_lease, self.next_expiry, self.work.totals
            )
        )

    def load(self, row: CountersRow) -> None:
        """Load a qc row. Its times are lower bounds; a sweep that comes too early finds the true ones."""
        for stored in row.levels:
            level = self.level(stored.priority)
            level.ready, level.delayed = stored.ready, stored.delayed
            level.horizon, level.cursor = stored.horizon, stored.cursor
            level.next_due = stored.next_due
        self.ready = sum(level.ready for level in self.levels)
        self.blocked, self.in_flight, self.bytes = row.blocked, row.in_flight, row.bytes
        self.work.totals = [*row.totals, *[0] * (len(TOTALS) - len(row.totals))]
        self.work_seen = self.work_done
        self.next_lease, self.next_expiry = row.next_lease, row.next_expiry
