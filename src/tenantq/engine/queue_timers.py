"""Timers of queues: what a queue needs after a round, and when its next background work is due."""

from collections.abc import Callable

from tenantq.engine.level import NEVER
from tenantq.engine.ops.lifecycle import DropQueue, defers_drop
from tenantq.engine.ops.repair import Repair
from tenantq.engine.ops.sweep import Advance, Sweep
from tenantq.engine.queue_state import QueueState
from tenantq.engine.state import ShardState


class QueueTimers:
    """Starts the background work of queues when it is due: delayed messages, ended leases, expired rows."""

    def __init__(self, state: ShardState, is_stopping: Callable[[], bool]) -> None:
        self._state, self._is_stopping = state, is_stopping

    def cancel(self) -> None:
        """Cancel the timers of all queues."""
        for queue in self._state.catalog.queues():
            if queue.timer is not None:
                queue.timer.cancel()

    def follow(self, queue: QueueState) -> None:
        """Start what a changed queue needs next: matching its polls, a timer, or the last step of a delete."""
        state = self._state
        if queue.dropping:
            return
        if queue.suspect and not queue.damaged:
            state.push(Repair(queue))
        is_over = queue.in_flight == 0 or queue.doomed or queue.damaged
        if queue.status == "draining" and is_over and not defers_drop(queue.tenant):
            state.push(DropQueue(queue))
            return
        if queue.damaged:
            return
        if queue.status != "draining" and queue.ready > 0:
            self._match_next(queue)
        at = queue.next_due
        if queue.frozen is None:
            at = min(at, queue.next_lease, queue.next_expiry)
        if at < queue.timer_at:
            if queue.timer is not None:
                queue.timer.cancel()
            queue.timer_at = at
            delay_ms = max(0, at - state.shard_clock.now_ms())
            if delay_ms == 0:
                queue.timer = None
                self._fire(queue)
            else:
                queue.timer = state.clock.call_later(delay_ms, lambda: self._fire(queue))

    def _match_next(self, queue: QueueState) -> None:
        """Have the next round match the ready messages of a queue with the polls that wait for them."""
        state = self._state
        if queue.demands:
            state.queues_to_match[queue] = None
        if queue.has_lane and queue.serving:
            lane = state.lanes[queue.name]
            lane.enter(queue)
            if lane.demands:
                state.lanes_to_match[lane] = None
            else:
                state.on_fleet_work(queue.name)

    def _fire(self, queue: QueueState) -> None:
        """Put the background work of a queue into its tenant's line."""
        queue.timer, queue.timer_at = None, NEVER
        if self._is_stopping() or queue.dropping or queue.damaged:
            return
        state, now = self._state, self._state.shard_clock.now_ms()
        if queue.next_due <= now and not queue.advancing:
            state.push(Advance(queue))
        if min(queue.next_lease, queue.next_expiry) <= now and not queue.sweeping and queue.frozen is None:
            state.push(Sweep(queue))
        is_idle = not queue.advancing and not queue.sweeping
        if is_idle and min(queue.next_due, queue.next_lease, queue.next_expiry) < NEVER:
            self.follow(queue)
