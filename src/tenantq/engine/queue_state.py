"""What the shard keeps in memory of tenants and queues: a cache of the store, rebuilt when it opens."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tenantq.engine.usage import Usage
from tenantq.errors import LegalHold, Suspended
from tenantq.store.keys import ID_LAST, be64, digest, level_prefix, queue_prefix
from tenantq.store.rows import CountersRow, LevelRow, pack_counters

if TYPE_CHECKING:
    import asyncio

    from tenantq.domain.config import QueueConfig, TenantConfig
    from tenantq.engine.fair_lines import TenantLine
    from tenantq.runtime.clock import Timer

NEVER: Final = (1 << 63) - 1
_FIRST: Final = b""
_NOTHING: Final = b"\xff" * 24

TOTALS: Final = (
    "added", "added_bytes", "delivered", "acked", "nacked", "lease_expired", "dead", "expired", "removed", "healed",
)  # fmt: skip
ADDED, ADDED_BYTES, DELIVERED, ACKED, NACKED, LEASE_EXPIRED, DEAD, EXPIRED, REMOVED, HEALED = range(len(TOTALS))

Status = Literal["active", "paused", "draining"]
TenantStatus = Literal["active", "suspended"]
SuspensionMode = Literal["settle", "freeze", "fill"]


class Hold(msgspec.Struct, frozen=True):
    """A legal hold: why, by whom, since when."""

    reason: str
    by: str  # principal
    at: int  # wall clock


class Suspension(msgspec.Struct, frozen=True):
    """Why a tenant or a queue takes no messages and hands none out, and what goes on all the same.

    settle: what is leased may be settled, and time goes on: leases end, lifetimes too.
    freeze: nothing changes, by nobody and by no time, so that every export is the same; leases are lost.
    fill: parts of exports are taken in.
    """

    mode: SuspensionMode
    reason: str
    by: str  # principal
    at: int  # wall clock
    seq: int  # the journal record that told of it
    engine_ms: int  # the shard's own time


class TenantState:
    """A tenant and its queues."""

    __slots__ = (
        "config", "gone", "hold", "id", "line", "name", "next_queue_id", "queues", "since", "starved", "status",
        "suspension", "usage", "version",
    )  # fmt: skip

    def __init__(self, id: int, name: str, config: TenantConfig, line: TenantLine, next_queue_id: int = 1) -> None:
        self.id = id
        self.name = name
        self.config = config
        self.line = line
        self.next_queue_id = next_queue_id
        self.queues: dict[str, QueueState] = {}
        self.status: TenantStatus = "active"
        self.version = 1  # of its configuration; grows with every change
        self.since = 0  # the journal record that made it; what stands before it under this name was another tenant's
        self.suspension: Suspension | None = None  # where it is suspended; none: by an earlier version, to settle
        self.hold: Hold | None = None  # while there is one, nothing of the tenant is deleted by hand
        self.usage = Usage()
        self.starved: dict[QueueState, None] = {}  # queues that could deliver if the quota of leases had room
        self.gone = False  # deleted; operations that still wait are refused

    @property
    def frozen(self) -> Suspension | None:
        """The suspension for which nothing of it may change, if there is one."""
        return self.suspension if self.suspension is not None and self.suspension.mode == "freeze" else None

    @property
    def takes_letters(self) -> bool:
        """Whether dead letters are moved in it: also while leased work may finish."""
        return self.suspension is None or self.suspension.mode == "settle"

    def check_thawed(self, queue: str | None = None) -> None:
        """Raise Suspended if nothing of it may change."""
        _check_thawed(self.frozen, self.name, queue)

    def check_hold(self, queue: str | None = None) -> None:
        """Raise LegalHold if the tenant is under one."""
        if self.hold is not None:
            raise LegalHold(
                f"the tenant is under legal hold ({self.hold.reason}); nothing of it is deleted until that is released",
                tenant=self.name,
                queue=queue,
            )


def _check_thawed(frozen: Suspension | None, tenant: str, queue: str | None) -> None:
    if frozen is not None:
        raise Suspended(
            f"nothing of this may change: {frozen.reason or 'it is suspended'}",
            tenant=tenant,
            queue=queue,
        )


def queue_suspended(queue: QueueState) -> Suspended:
    """Return the refusal of work of a queue that is suspended."""
    return Suspended(
        "the queue is suspended: it takes no new messages and hands none out",
        tenant=queue.tenant.name,
        queue=queue.name,
    )


class Level:
    """The waiting rows of one priority in one queue.

    A row counts as ready if its suffix (visible_at, id) is at most ``horizon``, else as delayed. The horizon moves up
    for free while no delayed row is due, and by a bounded scan otherwise, so both counts are exact at any depth.
    """

    __slots__ = ("cursor", "delayed", "horizon", "next_due", "prefix", "priority", "ready")

    def __init__(self, queue_prefix: bytes, priority: int) -> None:
        self.priority = priority
        self.prefix = level_prefix(queue_prefix, priority)
        self.ready = 0
        self.delayed = 0
        self.horizon = _FIRST
        self.cursor = _NOTHING  # no row lies before it, so a scan may start there
        self.next_due = NEVER  # no delayed row becomes visible before this

    def insert(self, suffix: bytes, visible_at: int, now: int) -> bool:
        """Count a new row; return whether it is ready."""
        if suffix < self.cursor:  # noqa: PLR1730  # a call of min() for every message is not free
            self.cursor = suffix
        if suffix <= self.horizon:
            self.ready += 1
            return True
        if visible_at <= now and (self.delayed == 0 or self.next_due > now):
            self.horizon = be64(now) + ID_LAST
            self.ready += 1
            return True
        self.delayed += 1
        self.next_due = min(self.next_due, visible_at)
        return False

    def insert_run(self, stamp: bytes, ids: list[bytes], now: int) -> int:
        """Count rows that become visible now, in order of their ids; return how many are ready."""
        if not self.horizon.startswith(stamp) or self.horizon.endswith(ID_LAST):
            if not self.insert(stamp + ids[0], now, now):
                self.delayed += len(ids) - 1
                return 0
            self.ready += len(ids) - 1
            return len(ids)
        return sum(self.insert(stamp + id, now, now) for id in ids)  # the horizon lies between them

    def remove(self, suffix: bytes) -> bool:
        """Count a row out; return whether it was a ready one."""
        if suffix <= self.horizon:
            self.ready -= 1
            return True
        self.delayed -= 1
        return False


class QueueState:
    """A queue's configuration, figures, and the polls that wait for it."""

    __slots__ = (
        "advancing", "blocked", "bytes", "config", "counted", "demands", "doomed", "dropping", "fifo", "fleet_cost_ms", "fleet_entry", "fleet_time", "fleet_turn", "has_lane", "id", "in_flight",
        "levels", "low_turn", "name", "next_expiry", "next_lease", "passed_over", "prefix", "ready", "result_waiters",
        "status", "suspect", "suspension", "sweeping", "system_made", "tenant", "timer", "timer_at", "totals",
    )  # fmt: skip

    def __init__(self, tenant: TenantState, id: int, name: str, config: QueueConfig, status: Status) -> None:
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
        self.counted = (0, 0, 0)  # messages, bytes and leases, as the tenant's sums have them
        self.system_made = False  # for dead letters; no quota of queues is charged for it
        self.totals = [0] * len(TOTALS)
        self.next_lease = NEVER  # no lease ends before this
        self.next_expiry = NEVER  # nothing is to be collected before this
        self.passed_over = 0  # deliveries in a row that left a lower priority waiting
        self.low_turn = 0  # which lower priority is next to get such a delivery
        self.demands: deque[Any] = deque()  # waiting polls; a poll names its tenant, so its type is defined above this
        self.result_waiters: dict[bytes, list[asyncio.Future[None]]] = {}
        self.timer: Timer | None = None
        self.timer_at = NEVER
        self.advancing = False  # an advance is in the tenant's line
        self.sweeping = False  # a sweep is in the tenant's line
        self.suspect = False  # a row was healed: the counters are to be checked
        self.dropping = False  # the final drop is in the tenant's line
        self.doomed = False  # leases are no longer waited for in a delete
        self.has_lane = False  # fleet polls share out the queues of this name
        self.fleet_entry = 0  # of its lane; 0: it has no work there
        self.fleet_turn = 0.0
        self.fleet_time = 0.0  # virtual time
        self.fleet_cost_ms = 0.0  # the usual processing time of its messages

    def level(self, priority: int) -> Level:
        """Return the level of a priority, making it on first use."""
        for level in self.levels:
            if level.priority == priority:
                return level
        level = Level(self.prefix, priority)
        self.levels.append(level)
        self.levels.sort(key=lambda one: -one.priority)
        return level

    def group_digest(self, group: str | None) -> bytes:
        """Return the bytes of a message's group; a FIFO queue's messages without one share the unnamed group."""
        if group is None:
            return digest(b"") if self.fifo else b""
        return digest(group.encode())

    @property
    def serving(self) -> bool:
        """Whether messages are handed out."""
        return self.status == "active" and not self.suspended

    @property
    def suspended(self) -> bool:
        """Whether it takes no messages and hands none out, in whichever mode, alone or with its tenant."""
        return self.tenant.status == "suspended" or self.suspension is not None

    @property
    def takes_letters(self) -> bool:
        """Whether dead letters are moved here: also while leased work may finish, since its letters must go somewhere."""
        return (
            self.status != "draining"
            and self.tenant.takes_letters
            and (self.suspension is None or self.suspension.mode == "settle")
        )

    @property
    def frozen(self) -> Suspension | None:
        """The suspension for which nothing of it may change, if there is one."""
        own = self.suspension
        return own if own is not None and own.mode == "freeze" else self.tenant.frozen

    def check_takes(self) -> None:
        """Raise Suspended unless messages are taken and handed out here."""
        if self.tenant.status == "suspended":
            raise Suspended(tenant=self.tenant.name, queue=self.name)
        if self.suspension is not None:
            raise queue_suspended(self)

    def check_thawed(self) -> None:
        """Raise Suspended if nothing of it may change."""
        _check_thawed(self.frozen, self.tenant.name, self.name)

    def check_fills(self) -> None:
        """Raise Suspended unless parts of exports are taken in here."""
        own, tenant = self.suspension, self.tenant.suspension
        if self.tenant.status == "suspended" and (tenant is None or tenant.mode != "fill"):
            raise Suspended(tenant=self.tenant.name, queue=self.name)
        if own is not None and own.mode != "fill":
            raise queue_suspended(self)

    @property
    def deliverable(self) -> int:
        """How many of its ready messages may be leased now: as many as the tenant's quota of leases has room for."""
        if not self.serving:
            return 0
        leases_max = self.tenant.config.quotas.in_flight
        return self.ready if leases_max is None else min(self.ready, leases_max - self.tenant.usage.in_flight)

    @property
    def delayed(self) -> int:
        """Waiting rows that are not visible yet, over all levels."""
        return sum(level.delayed for level in self.levels)

    @property
    def messages(self) -> int:
        """Everything in the queue."""
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
        return min((level.next_due for level in self.levels if level.delayed), default=NEVER)

    def clear(self) -> None:
        """Forget every message, after their rows were deleted by range."""
        self.levels.clear()
        self.ready = self.blocked = self.in_flight = self.bytes = 0
        self.next_lease = NEVER

    def pack(self) -> bytes:
        """Return the qc row."""
        levels = [
            LevelRow(level.priority, level.ready, level.delayed, level.horizon, level.cursor, level.next_due)
            for level in self.levels
        ]
        return pack_counters(
            CountersRow(
                levels, self.blocked, self.in_flight, self.bytes, self.next_lease, self.next_expiry, self.totals
            )
        )

    def load(self, row: CountersRow) -> None:
        """Take over a qc row. Its times are bounds from below; a sweep that comes too early finds the true ones."""
        for stored in row.levels:
            level = self.level(stored.priority)
            level.ready, level.delayed = stored.ready, stored.delayed
            level.horizon, level.cursor = stored.horizon, stored.cursor
            level.next_due = stored.next_due
        self.ready = sum(level.ready for level in self.levels)
        self.blocked, self.in_flight, self.bytes = row.blocked, row.in_flight, row.bytes
        self.totals = [*row.totals, *[0] * (len(TOTALS) - len(row.totals))]
        self.next_lease, self.next_expiry = row.next_lease, row.next_expiry
