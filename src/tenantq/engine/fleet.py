"""Fleet polls: one worker fleet over a queue name in many tenants, in weighted fair turns.

Each queue of the name has a virtual time of its own in the lane. It is charged one millisecond per message and the
time its messages were held, first by the tenant's average, then corrected when the message is settled. Only queues
with work are looked at: idle tenants cost nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenantq.engine.operation import FleetPoll
    from tenantq.engine.queue_state import QueueState

_NEW_SHARE = 0.2  # how fast the average processing time follows
_MESSAGE_MS = 1.0


class Lane:
    """The queues of one name, and the fleet polls that wait for them."""

    __slots__ = ("_heap", "_tie", "demands", "name", "time")

    def __init__(self, name: str) -> None:
        self.name = name
        self.time = 0.0
        self.demands: deque[FleetPoll] = deque()
        self._heap: list[tuple[float, int, QueueState]] = []
        self._tie = itertools.count()

    def enter(self, queue: QueueState) -> None:
        """Take up a queue that has work."""
        if not queue.in_lane:
            queue.in_lane = True
            queue.fleet_time = max(queue.fleet_time, self.time)
            heapq.heappush(self._heap, (queue.fleet_time, next(self._tie), queue))

    def has_work(self) -> bool:
        """Tell whether any queue of the lane may have a ready message."""
        while self._heap and self._heap[0][2].deliverable <= 0:
            heapq.heappop(self._heap)[2].in_lane = False
        return bool(self._heap)

    def share_out(self, count: int, allowed: frozenset[int] | None) -> dict[QueueState, int]:
        """Return how many of ``count`` messages each queue may give, in fair turns among tenants with work."""
        shares: dict[QueueState, int] = {}
        aside: list[QueueState] = []
        heap = self._heap
        while count and heap:
            at, _, queue = heap[0]
            most = queue.deliverable
            if shares.get(queue, 0) >= most:
                heapq.heappop(heap)
                queue.in_lane = False
                if most < queue.ready and queue.serving:
                    queue.tenant.starved[queue] = None  # it enters again when its tenant has room for leases
                continue
            if allowed is not None and queue.tenant.id not in allowed:
                heapq.heappop(heap)
                aside.append(queue)
                continue
            if queue.fleet_time <= at:
                self.time = max(self.time, at)
                shares[queue] = shares.get(queue, 0) + 1
                queue.fleet_time += (_MESSAGE_MS + queue.fleet_cost_ms) / queue.tenant.config.weight
                count -= 1
            heapq.heapreplace(heap, (queue.fleet_time, next(self._tie), queue))
        for queue in aside:
            heapq.heappush(heap, (queue.fleet_time, next(self._tie), queue))
        return shares


def settle(queue: QueueState, process_ms: int) -> None:
    """Correct what a queue was charged for one message, now that its processing time is known."""
    queue.fleet_time += (process_ms - queue.fleet_cost_ms) / queue.tenant.config.weight
    queue.fleet_cost_ms += (process_ms - queue.fleet_cost_ms) * _NEW_SHARE
