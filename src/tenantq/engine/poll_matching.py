"""Serving polls: several that wait for one queue are served together, dealt one message each in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tenantq.domain import limits
from tenantq.engine.delivery import deal

if TYPE_CHECKING:
    from collections import deque

    from tenantq.engine.fleet import Lane
    from tenantq.engine.operation import FleetPoll, Poll
    from tenantq.engine.queue_state import QueueState
    from tenantq.engine.round import Round

_SHARED_TURNS = 4  # while others wait, deliveries in a round are bounded by so many times round_cost_shared
_P = TypeVar("_P", "Poll", "FleetPoll")


def serve_hot(round: Round) -> None:
    """Serve the queues and lanes that have both messages and waiting polls, tenants furthest behind first."""
    core = round.core
    budget = core.settings.round_cost_alone
    if round.shared or len({queue.tenant for queue in core.hot}) > 1:
        budget = _SHARED_TURNS * core.settings.round_cost_shared
    if core.hot:
        hot, core.hot = core.hot, {}
        order = sorted(hot, key=_tenant_time) if len(hot) > 1 else hot
        for queue in order:
            if budget <= 0:
                core.hot[queue] = None
                continue
            budget -= _serve_queue(round, queue, budget)
    if core.hot_lanes:
        lanes, core.hot_lanes = core.hot_lanes, {}
        for lane in lanes:
            if budget <= 0:
                core.hot_lanes[lane] = None
                continue
            budget -= _serve_lane(round, lane, budget)


def _tenant_time(queue: QueueState) -> float:
    return queue.tenant.line.time


def _serve_queue(round: Round, queue: QueueState, budget: int) -> int:
    """Deal up to ``budget`` of a queue's ready messages to its waiting polls; return how many were dealt."""
    polls = [poll for poll in queue.demands if not poll.done]
    dealt = 0
    if polls and queue.ready > 0 and queue.serving and queue.prefix not in round.cleared:
        dealt = deal(round, queue, _first_of(polls, budget), budget)
    queue.demands.clear()
    more = queue.ready > 0 and queue.serving and queue not in queue.tenant.starved
    for poll in polls:
        _answer_or_wait(round, poll, queue.demands, more=more)
    if queue.demands and more:
        round.core.hot[queue] = None
    return dealt


def _first_of(polls: list[Poll], budget: int) -> list[Poll]:
    """Return the polls whose turn it is: all, or the first that can use up the round's bound; the rest are next."""
    wanted = 0
    for count, poll in enumerate(polls, 1):
        wanted += poll.max
        if wanted >= budget:
            return polls[:count]
    return polls


def _serve_lane(round: Round, lane: Lane, budget: int) -> int:
    """Deal up to ``budget`` messages of many tenants' queues to the fleet polls that wait; return how many were dealt."""
    polls = [poll for poll in lane.demands if not poll.done]
    dealt = 0
    for allowed in dict.fromkeys(poll.allowed for poll in polls):
        takers = [poll for poll in polls if poll.allowed == allowed]
        while dealt < budget:
            wanted = min(budget - dealt, sum(poll.max - len(poll.got) for poll in takers))
            shares = lane.share_out(wanted, allowed) if wanted else {}
            before = sum(queue.ready for queue in shares)
            dealt += _deal_shares(round, lane, takers, shares)
            if sum(queue.ready for queue in shares) == before:
                break  # nothing left, or nothing that this round can see
    lane.demands.clear()
    for poll in polls:
        _answer_or_wait(round, poll, lane.demands, more=dealt >= budget)
    if dealt >= budget and lane.demands:
        round.core.hot_lanes[lane] = None
    return dealt


def _deal_shares(round: Round, lane: Lane, takers: list[FleetPoll], shares: dict[QueueState, int]) -> int:
    """Deal what each queue may give, those that have least first; what it could not give stays in the lane."""
    dealt = 0
    for queue, share in shares.items():
        hungry = sorted(
            (poll for poll in takers if len(poll.got) < poll.max and poll.bytes < limits.REPLY_BYTES_MAX), key=_taken
        )
        if hungry and queue.prefix not in round.cleared:
            dealt += deal(round, queue, hungry, share)
        if queue.ready > 0:
            lane.enter(queue)
    return dealt


def _taken(poll: FleetPoll) -> int:
    return len(poll.got)


def _answer_or_wait(round: Round, poll: _P, demands: deque[_P], *, more: bool) -> None:
    if poll.got or (poll.wait_ms == 0 and not more):
        poll.reply = poll.got
        if poll.timer is not None:
            poll.timer.cancel()
        round.caller_ops.append(poll)
        return
    demands.append(poll)
    if poll.wait_ms and poll.timer is None:
        poll.timer = round.core.clock.call_later(poll.wait_ms, lambda: round.core.finished_waiting(poll))
