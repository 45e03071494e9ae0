"""The state of an open shard: everything a round works with, without the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from tenantq.domain.config import TenantConfig
from tenantq.domain.message import SYSTEM
from tenantq.domain.names import check_queue_name
from tenantq.domain.signup import Signup
from tenantq.domain.template import Template
from tenantq.engine.access_store import AccessStore
from tenantq.engine.catalog import Catalog
from tenantq.engine.data_key_rows import DataKeyRows
from tenantq.engine.disk_space import DiskSpace
from tenantq.engine.fair_lines import FairLines, TenantLine, Work
from tenantq.engine.fleet import FleetLane
from tenantq.engine.journal_state import JournalState
from tenantq.engine.lease_cache import LeaseCache
from tenantq.engine.queue_state import QueueState, TenantState, WaitingPoll
from tenantq.engine.recent_acks import RecentAcks
from tenantq.engine.redrive_registry import RedriveRegistry
from tenantq.engine.settings import ShardSettings
from tenantq.engine.shard_clock import ShardClock
from tenantq.engine.stored_rows import StoredRows
from tenantq.engine.tenant_rows import CapturedBatch, RowCapture
from tenantq.errors import NotFound
from tenantq.runtime.clock import Clock
from tenantq.runtime.randomness import MessageIds, Randomness, id_text
from tenantq.store.interface import Batch, Store
from tenantq.store.keys import tenant_prefix

_LANES_MAX = 1_000


class DeadLetterEvent(msgspec.Struct, frozen=True):
    """A message became a dead letter. Listeners get it once, after the sync."""

    raw_id: bytes
    tenant: str
    queue: str
    dead_letter_queue: str
    reason: str
    attempts: int


class QuotaEvent(msgspec.Struct, frozen=True):
    """A quota reached its soft limit, or is exhausted."""

    tenant: str
    quota: str
    state: str  # "warning" or "critical"
    used: int
    limit: int


class HomeDataKeys(Protocol):
    """Stores the data keys of tenants whose home is another shard; all parts have them afterwards."""

    async def put_data_key(self, tenant: TenantState, number: int, value: bytes, details: str) -> bool:
        """Store a new data key; return whether it was stored."""

    async def replace_data_key(self, tenant: TenantState, number: int, old: bytes, new: bytes, details: str) -> bool:
        """Replace a data key; return whether it was replaced."""


class ShardState:
    """The parts of an open shard that operations and reads use, loaded in time that depends on queues, not messages."""

    def __init__(
        self,
        store: Store,
        *,
        shard: str,
        first_tenant_id: int,
        clock: Clock,
        randomness: Randomness,
        settings: ShardSettings,
    ) -> None:
        assert store.sync_marker is not None
        self.shard = shard  # its name, which every journal record contains
        self.store = store
        self.clock = clock
        self.randomness = randomness
        self.settings = settings
        self.journal = JournalState(store)
        self.shard_clock = ShardClock(
            clock, store.sync_marker.last, self.journal.engine_ms, store.sync_marker.since_last_ms
        )
        self.ids = MessageIds(randomness, self.journal.last_id)
        self.catalog = Catalog(store, first_tenant_id)
        self.catalog.load()
        self.access = AccessStore(store)
        self.access.load(self.catalog)
        self.signups = StoredRows(store, b"signup/", Signup)  # by id
        self.templates = StoredRows(store, b"template/", Template)  # by name
        self.data_keys = DataKeyRows(store)
        self.data_keys.load()
        for tenant in self.catalog.tenants.values():
            self._count_data_keys(tenant)
        self.redrives = RedriveRegistry(store)
        self.redrives.load(self.catalog.queues())
        self.space = DiskSpace(store.files, clock, settings.disk_reserve_bytes)
        self.system = SYSTEM  # the caller of background work
        self.platform = TenantState(
            0, "", TenantConfig(), TenantLine(system=True)
        )  # the platform's operations wait here
        self.lines = FairLines(settings.turn_cost)
        self.lanes: dict[str, FleetLane] = {}
        self.on_fleet_work: Callable[[str], None] = lambda _: None  # a queue of this name has messages for fleets
        self.leases = LeaseCache()
        self.recent_acks = RecentAcks()
        self.queues_to_match: dict[QueueState, None] = {}  # queues with both ready messages and waiting polls
        self.lanes_to_match: dict[FleetLane, None] = {}
        self.damaged: dict[QueueState, None] = {}  # quarantined queues
        self.early_polls: dict[TenantState, deque[WaitingPoll]] = {}  # polls that wait for a queue to be created
        self.captures: dict[str, RowCapture] = {}  # by name: tenants and queues that are being copied to another shard
        self.home_keys: HomeDataKeys | None = None  # stores data keys of tenants whose home is another shard
        self.wake: Callable[[], None] = lambda: None  # wakes the round loop
        self.listeners: list[Callable[[DeadLetterEvent | QuotaEvent], None]] = []  # called after the sync

    # ---- batches, and tenants that come from other shards ----

    def new_batch(self) -> Batch:
        """Return a batch for ``write``."""
        return CapturedBatch(self.store) if self.captures else self.store.new_batch()

    def write(self, batch: Batch) -> None:
        """Apply a batch atomically, and give its changes to the captures."""
        if not isinstance(batch, CapturedBatch):
            self.store.write(batch)
            return
        for capture in self.captures.values():
            for change in batch.changes:
                capture.note(change)
        self.store.write(batch.inner)

    def load_tenant(self, id: int, row: bytes, key_ids: Sequence[str] = ()) -> TenantState:
        """Load a tenant whose rows are in the store, except its own, and return it."""
        tenant = self.catalog.load_tenant(id, row)
        self.access.load_tenant(id, tenant.name, key_ids)
        self.data_keys.load(tenant_prefix(id))
        self.templates.load(tenant_prefix(id))
        self._count_data_keys(tenant)
        for queue in tenant.queues.values():
            queue.has_lane = queue.name in self.lanes
        return tenant

    def _count_data_keys(self, tenant: TenantState) -> None:
        tenant.next_data_key = max(tenant.next_data_key, *(number + 1 for number in self.data_keys.of(tenant.id)), 0)

    # ---- reading ----

    def queue(self, tenant: str, queue: str) -> QueueState:
        """Return a queue by name. Raises NotFound, or Invalid if a name is invalid."""
        return self.catalog.queue(self.catalog.tenant(tenant), check_queue_name(queue))

    def missing_message(self, queue: QueueState, id: bytes) -> NotFound:
        """Return the error for a message that is not in a queue. It names the dead-letter queue that has the message."""
        letters = queue.tenant.queues.get(self.catalog.dead_letter_name(queue))
        is_dead = letters is not None and letters.messages and self.store.get(self.store.m, letters.prefix + id)
        text = f"the message is in the dead-letter queue '{letters.name}'" if letters and is_dead else "no such message"
        return NotFound(text, tenant=queue.tenant.name, queue=queue.name, id=id_text(id))

    def new_ids(self, count: int) -> list[bytes]:
        """Return ids for messages that are encrypted before they are added. Add them before awaiting anything else."""
        return self.ids.take(self.shard_clock.now_ms(), count)

    def wall_ms(self) -> int:
        """Return the wall clock's time as the journal shows it."""
        return self.shard_clock.now_ms() + self.shard_clock.wall_offset_ms()

    def push(self, operation: Work) -> None:
        """Put background work into its tenant's line."""
        self.lines.push(operation.line, operation)
        self.wake()

    def lane(self, name: str) -> FleetLane:
        """Return the lane of a queue name. It is created from the existing queues on first use."""
        lane = self.lanes.get(name)
        if lane is None:
            if len(self.lanes) >= _LANES_MAX:
                self._drop_idle_lanes()
            lane = self.lanes[name] = FleetLane(name)
            for tenant in self.catalog.tenants.values():
                queue = tenant.queues.get(name)
                if queue is not None:
                    queue.has_lane = True
                    if queue.ready:
                        lane.enter(queue)
        return lane

    def _drop_idle_lanes(self) -> None:
        """Drop lanes in which no fleet poll waits. The next poll of their name creates them again."""
        for queue in self.catalog.queues():
            if queue.has_lane and not self.lanes[queue.name].demands:
                queue.has_lane, queue.fleet_entry = False, 0
        self.lanes = {name: lane for name, lane in self.lanes.items() if lane.demands}
