"""Fleet polls: one worker fleet over a queue name in many tenants, in weighted fair turns.

Each queue of the name has a virtual time: the processing time of its settled messages, plus one millisecond each,
divided by the tenant's weight. The queue with the lowest sum of its virtual time and its expected charge for the
messages in flight is next. The virtual time only grows, and it grows by what was really used. An estimate that turns
out wrong therefore changes the order for as long as its messages are in flight, and leaves nothing behind.

A queue that gets work after a rest starts at the lowest virtual time of all queues with work, so it is next. A queue
whose messages were held unusually long owes at most ``DEBT_DELIVERIES`` usual messages: leases that a dead worker left
behind, or one very long job, do not lock their tenant out. Only queues with work are considered, so idle tenants cost
nothing.
"""

import heapq
import itertools
from collections import deque
from typing import Final

from tenantq.engine.queue_state import QueueState, WaitingPoll

DEBT_DELIVERIES: Final = 8
"""How far a queue may fall behind the others, or be left behind by them, in deliveries of its usual processing time."""

_NEW_SHARE: Final = 0.2  # how fast the usual processing time follows
_MESSAGE_MS: Final = 1.0
_STALE_ENTRIES_MAX: Final = 64


class FleetLane:
    """The queues of one name, and the fleet polls that wait for them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.demands: deque[WaitingPoll] = deque()
        self._time = 0.0  # of the queue that was served last
        self._active: dict[QueueState, int] = {}  # queues with work, and their tenants' weights
        self.weight = 0  # the sum of these
        self._turns: list[
            tuple[float, int, QueueState]
        ] = []  # by turn; an entry is stale unless its number is the queue's
        self._starts: list[tuple[float, int, QueueState]] = []  # by virtual time; stale entries as above
        self._entries = itertools.count(-1, -1)  # negative: of two queues with equal turns, the newcomer is first

    def enter(self, queue: QueueState) -> None:
        """Add a queue that has work, or note that its turn may come earlier than it was known."""
        if not queue.fleet_entry:
            queue.fleet_time = max(queue.fleet_time, self._present())
            self._active[queue] = queue.tenant.config.weight
            self.weight += queue.tenant.config.weight
            self._push(queue)
        elif _turn(queue, 0) < queue.fleet_turn:
            self._push(queue)

    def share_out(self, count: int, allowed: frozenset[int] | None) -> dict[QueueState, int]:
        """Return how many of ``count`` messages each queue may give, in fair turns among tenants with work."""
        shares: dict[QueueState, int] = {}
        aside: list[tuple[float, int, QueueState]] = []
        turns = self._turns
        while count and turns:
            at, entry, queue = turns[0]
            if entry != queue.fleet_entry:
                heapq.heappop(turns)
                continue
            share = shares.get(queue, 0)
            if share >= queue.deliverable:
                heapq.heappop(turns)
                self._leave(queue)
                continue
            if allowed is not None and queue.tenant.id not in allowed:
                aside.append(heapq.heappop(turns))
                continue
            if _turn(queue, share) <= at:
                self._time = queue.fleet_time
                shares[queue] = share = share + 1
                count -= 1
            queue.fleet_turn = _turn(queue, share)
            heapq.heapreplace(turns, (queue.fleet_turn, entry, queue))
        for one in aside:
            queue = one[2]
            queue.fleet_time = max(
                queue.fleet_time, self._time - DEBT_DELIVERIES * _charge(queue)
            )  # it saves up no turns
            heapq.heappush(turns, one)
        return shares

    def settle(self, queue: QueueState, process_ms: int) -> None:
        """Charge a queue for one message, now that its processing time is known."""
        queue.fleet_cost_ms += (process_ms - queue.fleet_cost_ms) * _NEW_SHARE
        charged = queue.fleet_time + (_MESSAGE_MS + process_ms) / queue.tenant.config.weight
        queue.fleet_time = min(charged, max(queue.fleet_time, self._present()) + DEBT_DELIVERIES * _charge(queue))

    def _present(self) -> float:
        """Return the lowest virtual time of all queues with work; of the last one served if there are none."""
        starts = self._starts
        while starts:
            at, entry, queue = starts[0]
            if entry != queue.fleet_entry:
                heapq.heappop(starts)
            elif queue.fleet_time > at:
                heapq.heapreplace(starts, (queue.fleet_time, entry, queue))
            else:
                return at
        return self._time

    def _push(self, queue: QueueState) -> None:
        """Give a queue a new entry; an earlier one is stale from now on."""
        if len(self._turns) > _STALE_ENTRIES_MAX + 2 * len(self._active):
            for entries in (self._turns, self._starts):
                entries[:] = [one for one in entries if one[1] == one[2].fleet_entry]
                heapq.heapify(entries)
        queue.fleet_entry = next(self._entries)
        queue.fleet_turn = _turn(queue, 0)
        heapq.heappush(self._turns, (queue.fleet_turn, queue.fleet_entry, queue))
        heapq.heappush(self._starts, (queue.fleet_time, queue.fleet_entry, queue))

    def _leave(self, queue: QueueState) -> None:
        """Take out a queue that has nothing to give now."""
        queue.fleet_entry = 0
        self.weight -= self._active.pop(queue)
        if queue.deliverable < queue.ready and queue.serving:
            queue.tenant.starved[queue] = None  # it enters again when its tenant has room for leases


def _charge(queue: QueueState) -> float:
    """Return what one delivery of a queue is expected to cost in virtual time."""
    return (_MESSAGE_MS + queue.fleet_cost_ms) / queue.tenant.config.weight


def _turn(queue: QueueState, more: int) -> float:
    """Return where a queue is in the order, with ``more`` messages about to be delivered."""
    return queue.fleet_time + (queue.in_flight + more) * _charge(queue)
