"""Polls: operations that wait for messages of one queue, or of one queue name in many tenants."""

from collections import deque

from tenantq.domain import limits
from tenantq.domain.message import Caller, Delivery, check_poll
from tenantq.domain.names import check_queue_name
from tenantq.engine import quota_checks
from tenantq.engine.arguments import check_bool
from tenantq.engine.effects import Effects
from tenantq.engine.operation import REGISTER, Operation
from tenantq.engine.queue_state import TenantState, WaitingPoll
from tenantq.errors import Draining, Unavailable
from tenantq.runtime.clock import Timer


class Poll(Operation[list[Delivery]]):
    """A poll of one queue, or of one queue name in many tenants. It waits up to ``wait_ms`` for the first message.

    ``lease_ms`` None means the queue's. With ``whole_groups`` it takes several messages of one group, in order. A fleet poll
    belongs to the platform; ``allowed`` holds the ids of the tenants it may take from, None means all.
    """

    phase = REGISTER
    journal_op = "poll"

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue: str,
        *,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        whole_groups: bool = False,
        is_fleet: bool = False,
        allowed: frozenset[int] | None = None,
    ) -> None:
        check_queue_name(queue)
        check_poll(max, wait_ms, lease_ms)
        check_bool("whole_groups", whole_groups)
        super().__init__(tenant, caller)
        self.queue_name = queue
        self.max = max
        self.wait_ms = wait_ms
        self.lease_ms = lease_ms
        self.whole_groups = whole_groups
        self.is_fleet = is_fleet
        self.allowed = allowed
        self.got: list[Delivery] = []
        self.bytes = 0
        self.timer: Timer | None = None

    @property
    def is_full(self) -> bool:
        """Whether its reply has all messages that were asked for, or as many bytes as a reply may have."""
        return len(self.got) >= self.max or self.bytes >= limits.REPLY_BYTES_MAX

    def stop_waiting(self) -> None:
        if self.future is not None and not self.future.done() and not self.got:
            self.future.set_result([])

    def execute(self, effects: Effects) -> None:
        """Join the waiting polls of the queue or the fleet; the round matches them with messages together."""
        if self.is_fleet:
            self._join_lane(effects)
            return
        if self.wait_ms and self.tenant.config.create_queues and self.queue_name not in self.tenant.queues:
            effects.state.catalog.check_queue_here(self.tenant, self.queue_name)
            self._wait_for_queue(effects)
            return
        queue = effects.state.catalog.queue(self.tenant, self.queue_name)
        queue.check_takes()
        leases_max, leased = self.tenant.leases_max, self.tenant.usage.in_flight
        can_wait = self.tenant.part is not None and self.wait_ms  # for rights of other shards
        if leases_max is not None and leased >= leases_max and not can_wait:
            raise quota_checks.exceeded(self.tenant, "in_flight", leases_max, leased, effects.now + effects.wall)
        if queue.status == "draining":
            raise Draining(tenant=self.tenant.name, queue=queue.name)
        if self.done:
            return  # the caller went away while the poll was in the line
        if _is_crowded(effects, queue.demands):
            raise Unavailable("too many polls wait for this queue", tenant=self.tenant.name, queue=queue.name)
        queue.demands.append(self)
        effects.state.queues_to_match[queue] = None

    def _join_lane(self, effects: Effects) -> None:
        """Join the waiting polls of the queue name's lane."""
        if self.done:
            return
        lane = effects.state.lane(self.queue_name)
        if _is_crowded(effects, lane.demands):
            raise Unavailable("too many fleet polls wait for this queue name", queue=lane.name)
        lane.demands.append(self)
        effects.state.lanes_to_match[lane] = None

    def _wait_for_queue(self, effects: Effects) -> None:
        """Wait until the queue is created. ``Effects.create_queue`` hands the poll to it."""
        if self.tenant.status == "suspended":
            raise self.tenant.suspended(self.queue_name)
        if self.done:
            return
        early = effects.state.early_polls.setdefault(self.tenant, deque())
        if _is_crowded(effects, early):
            text = "too many polls wait for queues that do not exist yet"
            raise Unavailable(text, tenant=self.tenant.name, queue=self.queue_name)
        early.append(self)
        self.timer = effects.state.clock.call_later(self.wait_ms, self.stop_waiting)


def _is_crowded(effects: Effects, demands: deque[WaitingPoll]) -> bool:
    """Return whether no further poll may wait, after removing those that were answered or cancelled."""
    limit = effects.state.settings.waiting_polls_max
    if len(demands) >= limit:
        for _ in range(len(demands)):
            poll = demands.popleft()
            if not poll.done:
                demands.append(poll)
    return len(demands) >= limit
