"""Poll matching: polls that wait for one queue share its ready messages, one message each in turn."""

from collections import deque
from operator import attrgetter

from tenantq.engine.delivery import deliver
from tenantq.engine.effects import Effects
from tenantq.engine.fleet import FleetLane
from tenantq.engine.queue_state import QueueState, WaitingPoll

_SHARED_TURNS = 4  # while others wait, a round delivers at most this many times round_cost_shared
_STEP_MAX = 256  # deliveries between two looks at the clock
_STEPS_MS = 4  # no further step starts later in a round than this; polls that want more continue in the next
_TURN = attrgetter("tenant.line.time")


def match_polls(effects: Effects) -> None:
    """Deliver messages of the queues and lanes that have both messages and waiting polls. Tenants furthest behind come first."""
    state = effects.state
    budget = state.settings.round_cost_alone
    if effects.shared or len({queue.tenant for queue in state.queues_to_match}) > 1:
        budget = _SHARED_TURNS * state.settings.round_cost_shared
    if state.queues_to_match:
        queues, state.queues_to_match = state.queues_to_match, {}
        order = sorted(queues, key=_TURN) if len(queues) > 1 else queues
        for queue in order:
            if budget <= 0:
                state.queues_to_match[queue] = None
                continue
            budget -= _match_queue(effects, queue, budget)
    if state.lanes_to_match:
        lanes, state.lanes_to_match = state.lanes_to_match, {}
        for lane in lanes:
            if budget <= 0:
                state.lanes_to_match[lane] = None
                continue
            budget -= _match_lane(effects, lane, budget)


def _match_queue(effects: Effects, queue: QueueState, budget: int) -> int:
    """Deliver up to ``budget`` of a queue's ready messages to its waiting polls; return how many."""
    polls = _still_wanted(effects, queue.demands)
    delivered = 0
    if polls and queue.ready > 0 and queue.serving and queue.prefix not in effects.cleared:
        delivered = _deliver_in_steps(effects, queue, polls, budget)
    queue.demands.clear()
    more = queue.ready > 0 and queue.serving and queue not in queue.tenant.starved
    for poll in polls:
        _answer_or_wait(effects, poll, queue.demands, more=more)
    if queue.demands and more:
        effects.state.queues_to_match[queue] = None
    return delivered


def _deliver_in_steps(effects: Effects, queue: QueueState, polls: list[WaitingPoll], budget: int) -> int:
    """Deliver up to ``budget`` messages, as many as the time of a round allows; return how many."""
    now_ms, delivered = effects.state.shard_clock.now_ms, 0
    while True:
        step = min(_STEP_MAX, budget - delivered)
        count = deliver(effects, queue, _first_of(polls, step), step)
        delivered += count
        if count < step or delivered >= budget or now_ms() >= effects.now + _STEPS_MS:
            return delivered
        polls = [poll for poll in polls if not poll.is_full]
        if not polls or queue.ready <= 0:
            return delivered


def _still_wanted(effects: Effects, demands: deque[WaitingPoll]) -> list[WaitingPoll]:
    """Return the polls whose callers still wait. Messages leased to the others are released after the sync."""
    effects.answered += [poll for poll in demands if poll.done and poll.got]
    return [poll for poll in demands if not poll.done]


def _first_of(polls: list[WaitingPoll], budget: int) -> list[WaitingPoll]:
    """Return the first polls that can use up ``budget``, or all. The rest are next."""
    wanted = 0
    for count, poll in enumerate(polls, 1):
        wanted += poll.max - len(poll.got)
        if wanted >= budget:
            return polls[:count]
    return polls


def _match_lane(effects: Effects, lane: FleetLane, budget: int) -> int:
    """Deliver up to ``budget`` messages of many tenants' queues to the waiting fleet polls; return how many."""
    polls = _still_wanted(effects, lane.demands)
    delivered = 0
    for allowed in dict.fromkeys(poll.allowed for poll in polls):
        takers = [poll for poll in polls if poll.allowed == allowed]
        while delivered < budget:
            wanted = min(budget - delivered, sum(poll.max - len(poll.got) for poll in takers))
            shares = lane.share_out(wanted, allowed) if wanted else {}
            before = sum(queue.ready for queue in shares)
            delivered += _deliver_shares(effects, lane, takers, shares)
            if sum(queue.ready for queue in shares) == before:
                break  # nothing left, or nothing that this round can see
    lane.demands.clear()
    more = delivered >= budget or effects.bytes_left <= 0
    for poll in polls:
        _answer_or_wait(effects, poll, lane.demands, more=more)
    if more and lane.demands:
        effects.state.lanes_to_match[lane] = None
    return delivered


def _deliver_shares(effects: Effects, lane: FleetLane, takers: list[WaitingPoll], shares: dict[QueueState, int]) -> int:
    """Deliver each queue's share, first to the polls that have least. The rest stays in the lane."""
    delivered = 0
    for queue, share in shares.items():
        hungry = sorted((poll for poll in takers if not poll.is_full), key=lambda poll: len(poll.got))
        if hungry and queue.prefix not in effects.cleared:
            delivered += deliver(effects, queue, hungry, share)
        if queue.ready > 0:
            lane.enter(queue)
    return delivered


def _answer_or_wait(effects: Effects, poll: WaitingPoll, demands: deque[WaitingPoll], *, more: bool) -> None:
    """Answer a poll that is full or gets no more. A poll with room continues in the next round if messages are left."""
    if (poll.is_full or not more) and (poll.got or poll.wait_ms == 0):
        poll.reply = poll.got
        if poll.timer is not None:
            poll.timer.cancel()
        effects.answered.append(poll)
        return
    demands.append(poll)
    if poll.wait_ms and poll.timer is None and not poll.got:
        poll.timer = effects.state.clock.call_later(poll.wait_ms, poll.stop_waiting)
