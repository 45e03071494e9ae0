"""Ends the polls and reads that wait in a shard, when it stops or hands over."""

from collections import deque

from tenantq.engine.queue_state import WaitingPoll
from tenantq.engine.state import ShardState
from tenantq.errors import StoreFailed
from tenantq.runtime.futures import wake


def end_waiting_polls(state: ShardState, error: StoreFailed | None = None) -> None:
    """End all polls with an error, or as if their wait were over. Reads that wait for a result look once more."""
    ended: list[WaitingPoll] = []
    for queue in state.catalog.queues():
        ended += _take_waiting(queue.demands, error)
        for futures in queue.result_waiters.values():
            for future in futures:
                wake(future)
    for lane in state.lanes.values():
        ended += _take_waiting(lane.demands, error)
    for early in state.early_polls.values():
        ended += early
    state.early_polls.clear()
    for poll in ended:
        if poll.timer is not None:
            poll.timer.cancel()
        poll.error = error
        poll.reply = poll.got
        poll.resolve()


def _take_waiting(demands: deque[WaitingPoll], error: StoreFailed | None) -> list[WaitingPoll]:
    """Remove and return the polls to end. Without an error, one that has messages stays: the next round answers it."""
    polls = list(demands)
    demands.clear()
    if error is None:
        demands += [poll for poll in polls if poll.got]
    return [poll for poll in polls if poll not in demands]
