"""The lane of a fleet: virtual times of queues, charged by processing time."""

from tenantq.domain.config import QueueConfig, TenantConfig
from tenantq.engine import fleet
from tenantq.engine.fair_lines import Line
from tenantq.engine.fleet import Lane
from tenantq.engine.queue_state import QueueState, TenantState


def queue(lane: Lane, id: int, *, ready: int, weight: int = 1) -> QueueState:
    """Return a queue of a tenant of its own that has work in the lane."""
    owner = TenantState(id, f"t{id}", TenantConfig(weight=weight), Line(weight))
    made = QueueState(owner, 1, lane.name, QueueConfig(), "active")
    made.ready = ready
    made.lane = lane
    lane.enter(made)
    return made


def test_shares_follow_the_weights() -> None:
    """Exactly, for whole turns."""
    lane = Lane("work")
    light, heavy = queue(lane, 1, ready=1_000), queue(lane, 2, ready=1_000, weight=4)
    shares = lane.share_out(500, None)
    assert abs(shares[light] - 100) <= 1
    assert abs(shares[heavy] - 400) <= 1


def test_no_queue_is_asked_for_more_than_it_has() -> None:
    """The rest goes to the others."""
    lane = Lane("work")
    short, long = queue(lane, 1, ready=3), queue(lane, 2, ready=1_000)
    assert lane.share_out(100, None) == {short: 3, long: 97}


def test_a_queue_without_work_leaves_and_may_enter_again() -> None:
    """Once, however often it is announced."""
    lane = Lane("work")
    one = queue(lane, 1, ready=1)
    assert lane.has_work()
    one.ready = 0
    assert not lane.has_work()
    assert not one.in_lane
    one.ready = 2
    lane.enter(one)
    lane.enter(one)
    assert lane.share_out(9, None) == {one: 2}


def test_paused_and_draining_queues_are_left_out() -> None:
    """Their work waits."""
    lane = Lane("work")
    paused, active = queue(lane, 1, ready=5), queue(lane, 2, ready=5)
    paused.status = "paused"
    assert lane.share_out(10, None) == {active: 5}


def test_queues_that_a_poll_may_not_have_keep_their_place() -> None:
    """Looking past them costs them nothing."""
    lane = Lane("work")
    hidden, shown = queue(lane, 1, ready=10), queue(lane, 2, ready=10)
    assert lane.share_out(4, frozenset({2})) == {shown: 4}
    assert lane.share_out(4, None) == {hidden: 4}


def test_a_newcomer_starts_at_the_present() -> None:
    """It cannot have saved up turns."""
    lane = Lane("work")
    old = queue(lane, 1, ready=1_000)
    lane.share_out(500, None)
    new = queue(lane, 2, ready=1_000)
    shares = lane.share_out(100, None)
    assert abs(shares[new] - shares[old]) <= 2


def test_a_settled_message_charges_the_time_it_took() -> None:
    """First by the average, then corrected: in the end the sum of what was used."""
    lane = Lane("work")
    one = queue(lane, 1, ready=1_000)
    start = one.fleet_time
    used = 0
    for took in (100, 300, 50):
        lane.share_out(1, None)
        before = one.fleet_time
        expected = one.fleet_cost_ms
        fleet.settle(one, took)
        assert one.fleet_time == before + took - expected
        used += took
    assert abs(one.fleet_time - start - used - 3) < 0.001  # and one millisecond for each message


def test_the_average_follows_the_processing_time() -> None:
    """Within a few dozen messages."""
    lane = Lane("work")
    one = queue(lane, 1, ready=1)
    for _ in range(40):
        fleet.settle(one, 200)
    assert abs(one.fleet_cost_ms - 200) < 1
