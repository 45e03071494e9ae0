"""A fleet divides its workers like an ideal scheduler, whatever its tenants do."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from tenantq.domain.config import QueueConfig, TenantConfig
from tenantq.engine.fair_lines import TenantLine
from tenantq.engine.fleet import FleetLane
from tenantq.engine.queue_state import QueueState, TenantState

if TYPE_CHECKING:
    from collections.abc import Callable

FEW_DELIVERIES: Final = 8
MESSAGE_MS: Final = 1  # charged per message in addition to its processing time


class Fleet:
    """Workers that take one message at a time from a lane; time is simulated, in milliseconds."""

    def __init__(self, workers: int) -> None:
        self.lane = FleetLane("work")
        self.now = 0
        self.idle_workers = workers
        self.held_ms: Counter[QueueState] = Counter()
        self.deliveries = 0
        self.waits: dict[QueueState, list[int]] = {}  # in deliveries to others, for messages added to an empty queue
        self._arrived: dict[QueueState, int] = {}
        self._hold: dict[QueueState, Callable[[], int]] = {}
        self._events: list[tuple[int, int, QueueState | None, int]] = []
        self._numbers = itertools.count()

    def tenant(self, hold: Callable[[], int], *, weight: int = 1) -> QueueState:
        """Add a tenant whose messages take ``hold()`` milliseconds each."""
        id = len(self._hold) + 1
        queue = QueueState(
            TenantState(id, f"t{id}", TenantConfig(weight=weight), TenantLine(weight)),
            1,
            "work",
            QueueConfig(),
            "active",
        )
        queue.has_lane = True
        self._hold[queue] = hold
        self.waits[queue] = []
        return queue

    def add(self, queue: QueueState, count: int = 1) -> None:
        """Add messages to a tenant's queue."""
        if queue.ready == 0:
            self._arrived[queue] = self.deliveries
        queue.ready += count
        self.lane.enter(queue)

    def add_at(self, at: int, queue: QueueState) -> None:
        """Schedule one message to be added later."""
        heapq.heappush(self._events, (at, next(self._numbers), queue, -1))

    def run(self, until: int) -> None:
        """Deliver and settle messages until a given time."""
        self._deliver()
        while self._events and self._events[0][0] <= until:
            self.now, _, queue, held = heapq.heappop(self._events)
            assert queue is not None
            if held < 0:
                self.add(queue)
            else:
                queue.in_flight -= 1
                self.idle_workers += 1
                self.held_ms[queue] += held + MESSAGE_MS
                self.lane.settle(queue, held)
                if queue.ready:
                    self.lane.enter(queue)
            self._deliver()
        self.now = until

    def _deliver(self) -> None:
        while self.idle_workers:
            shares = self.lane.share_out(1, None)
            if not shares:
                return
            (queue,) = shares
            queue.ready -= 1
            queue.in_flight += 1
            self.idle_workers -= 1
            if queue in self._arrived:
                self.waits[queue].append(self.deliveries - self._arrived.pop(queue))
            self.deliveries += 1
            held = self._hold[queue]()
            heapq.heappush(self._events, (self.now + held, next(self._numbers), queue, held))
            if queue.ready:
                self.lane.enter(queue)


def _processing_ms(random: Random, mean: int, spread: float) -> int:
    return max(1, round(mean * random.lognormvariate(-spread * spread / 2, spread)))


@pytest.mark.parametrize("seed", range(8))
def test_backlogged_tenants_share_processing_time_by_weight(seed: int) -> None:
    """With random weights and processing times, each gets its weighted share within 5 percent."""
    random = Random(seed)
    fleet = Fleet(workers=random.choice((4, 16)))
    tenants = [
        fleet.tenant(
            partial(_processing_ms, random, random.choice((5, 20, 100, 500)), random.choice((0.0, 0.5, 1.0))),
            weight=random.randint(1, 4),
        )
        for _ in range(random.randint(2, 6))
    ]
    for tenant in tenants:
        fleet.add(tenant, 10_000_000)
    fleet.run(400_000)
    weights = sum(tenant.tenant.config.weight for tenant in tenants)
    total = sum(fleet.held_ms.values())
    for tenant in tenants:
        ideal = tenant.tenant.config.weight / weights
        assert fleet.held_ms[tenant] / total == pytest.approx(ideal, rel=0.05)


@pytest.mark.parametrize("seed", range(8))
def test_quiet_tenant_waits_for_only_a_few_deliveries(seed: int) -> None:
    """Whatever the messages of loud tenants cost, a message after a rest is among the next few."""
    random = Random(100 + seed)
    fleet = Fleet(workers=16)
    abandoned = 300_000

    def erratic() -> int:
        return random.choices((random.randint(1, 20), random.randint(1_000, 60_000), abandoned), (0.97, 0.02, 0.01))[0]

    loud = [fleet.tenant(erratic, weight=random.randint(1, 3)) for _ in range(random.randint(1, 3))]
    quiet = [fleet.tenant(lambda: random.randint(1, 50), weight=random.randint(1, 3)) for _ in range(3)]
    for tenant in loud:
        fleet.add(tenant, 10_000_000)
    for tenant in quiet:
        at = 0.0
        while at < 3_000_000:
            at += random.expovariate(1 / random.choice((500, 5_000, 60_000)))
            fleet.add_at(round(at), tenant)
    fleet.run(3_000_000)
    for tenant in quiet:
        assert len(fleet.waits[tenant]) > 30
        assert max(fleet.waits[tenant]) <= FEW_DELIVERIES


@pytest.mark.parametrize("outlier_ms", [300_000, 600_000])
def test_abandoned_leases_and_long_jobs_starve_no_tenant(outlier_ms: int) -> None:
    """A tenant that used the fleet alone leaves neither debt nor credit when its leases expire or a long job ends."""
    holds = iter([outlier_ms] * 17)
    fleet = Fleet(workers=18)
    loud = fleet.tenant(lambda: next(holds, 10))
    quiet = fleet.tenant(lambda: 10)
    fleet.add(loud, 10_000_000)
    for at in range(0, 2 * outlier_ms, 97):
        fleet.add_at(at, quiet)
    fleet.run(2 * outlier_ms)
    assert max(fleet.waits[quiet]) <= FEW_DELIVERIES
    assert fleet.held_ms[loud] > outlier_ms * 17 + outlier_ms  # the loud tenant is not starved either
