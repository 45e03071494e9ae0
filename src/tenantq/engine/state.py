"""What a round works with: the parts of an open shard, without its event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tenantq.domain.message import SYSTEM
from tenantq.engine.fair_lines import FairLines
from tenantq.engine.fleet import Lane
from tenantq.engine.lease_cache import LeaseCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.domain.config import ShardSettings
    from tenantq.engine.access_store import AccessStore
    from tenantq.engine.catalog import Catalog
    from tenantq.engine.data_key_rows import DataKeyRows
    from tenantq.engine.operation import Operation
    from tenantq.engine.queue_state import QueueState
    from tenantq.engine.shard_clock import ShardClock
    from tenantq.runtime.clock import Clock
    from tenantq.runtime.randomness import MessageIds, Randomness
    from tenantq.store.interface import Store


_LANES_MAX = 1_000


class DeadLetterEvent(msgspec.Struct, frozen=True):
    """A message became a dead letter; told to listeners once, after the sync."""

    raw_id: bytes
    tenant: str
    queue: str
    dead_letter_queue: str
    reason: str
    attempts: int


class QuotaEvent(msgspec.Struct, frozen=True):
    """A quota reached its soft limit, or is used up."""

    tenant: str
    quota: str
    state: str  # "warning" or "critical"
    used: int
    limit: int


class ShardState:
    """The parts of a shard, rebuilt by opening.py."""

    def __init__(
        self,
        *,
        shard: str,
        store: Store,
        catalog: Catalog,
        access: AccessStore,
        data_keys: DataKeyRows,
        clock: Clock,
        shard_clock: ShardClock,
        randomness: Randomness,
        ids: MessageIds,
        settings: ShardSettings,
    ) -> None:
        self.shard = shard
        self.store = store
        self.catalog = catalog
        self.access = access
        self.data_keys = data_keys
        self.clock = clock
        self.shard_clock = shard_clock
        self.randomness = randomness
        self.ids = ids
        self.settings = settings
        self.system = SYSTEM  # the caller of background work
        self.lines = FairLines(settings.turn_cost)
        self.lanes: dict[str, Lane] = {}
        self.leases = LeaseCache()
        self.hot: dict[QueueState, None] = {}  # queues with both ready messages and waiting polls
        self.hot_lanes: dict[Lane, None] = {}
        self.wake: Callable[[], None] = _nothing  # tells the shard's loop that there is work
        self.finished_waiting: Callable[[Any], None] = _nothing_one  # a poll's time is up
        self.caller_gone: Callable[[Any], None] = _nothing_one  # nobody takes what a poll has got
        self.before_close: list[Callable[[], None]] = []  # called while the store is still open
        self.listeners: list[Callable[[DeadLetterEvent | QuotaEvent], None]] = []  # told after the sync

    def push(self, operation: Operation) -> None:
        """Put background work into its tenant's line."""
        self.lines.push(operation.tenant.line, operation)
        self.wake()

    def lane(self, name: str) -> Lane:
        """Return the lane of a queue name, making it from the queues there are on first use."""
        lane = self.lanes.get(name)
        if lane is None:
            if len(self.lanes) >= _LANES_MAX:
                self._let_idle_lanes_go()
            lane = self.lanes[name] = Lane(name)
            for tenant in self.catalog.tenants.values():
                queue = tenant.queues.get(name)
                if queue is not None:
                    queue.lane = lane
                    if queue.ready:
                        lane.enter(queue)
        return lane

    def _let_idle_lanes_go(self) -> None:
        """Forget lanes that no fleet poll waits in; the next poll of their name makes them anew."""
        for queue in self.catalog.queues():
            if queue.lane is not None and not queue.lane.demands:
                queue.lane, queue.fleet_entry = None, 0
        self.lanes = {name: lane for name, lane in self.lanes.items() if lane.demands}


def _nothing() -> None:
    pass


def _nothing_one(_: Any) -> None:
    pass
