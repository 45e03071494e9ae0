"""The fleet lane: virtual times of queues, charged by processing time."""

from tenantq.domain.config import QueueConfig, TenantConfig
from tenantq.engine.fair_lines import TenantLine
from tenantq.engine.fleet import FleetLane
from tenantq.engine.queue_state import QueueState, TenantState


def queue(lane: FleetLane, id: int, *, ready: int, weight: int = 1) -> QueueState:
    """Return a queue of a new tenant that has work in the lane."""
    owner = TenantState(id, f"t{id}", TenantConfig(weight=weight), TenantLine(weight))
    made = QueueState(owner, 1, lane.name, QueueConfig(), "active")
    made.ready = ready
    made.has_lane = True
    lane.enter(made)
    return made


def test_shares_follow_the_weights() -> None:
    """Exactly, over whole turns."""
    lane = FleetLane("work")
    light, heavy = queue(lane, 1, ready=1_000), queue(lane, 2, ready=1_000, weight=4)
    shares = lane.share_out(500, None)
    assert abs(shares[light] - 100) <= 1
    assert abs(shares[heavy] - 400) <= 1


def test_no_queue_is_asked_for_more_than_it_has() -> None:
    """The other queues get the rest."""
    lane = FleetLane("work")
    short, long = queue(lane, 1, ready=3), queue(lane, 2, ready=1_000)
    assert lane.share_out(100, None) == {short: 3, long: 97}


def test_a_queue_without_work_leaves_and_may_enter_again() -> None:
    """It enters once, however often it is announced."""
    lane = FleetLane("work")
    one = queue(lane, 1, ready=1)
    one.ready = 0
    assert lane.share_out(9, None) == {}
    assert not one.fleet_entry
    one.ready = 2
    lane.enter(one)
    lane.enter(one)
    assert lane.share_out(9, None) == {one: 2}


def test_paused_and_draining_queues_are_skipped() -> None:
    """Their messages wait."""
    lane = FleetLane("work")
    paused, active = queue(lane, 1, ready=5), queue(lane, 2, ready=5)
    paused.status = "paused"
    assert lane.share_out(10, None) == {active: 5}


def test_queues_skipped_by_a_filter_keep_their_place() -> None:
    """Skipping costs them nothing."""
    lane = FleetLane("work")
    hidden, shown = queue(lane, 1, ready=10), queue(lane, 2, ready=10)
    assert lane.share_out(4, frozenset({2})) == {shown: 4}
    assert lane.share_out(4, None) == {hidden: 4}


def test_a_new_queue_starts_at_the_current_virtual_time() -> None:
    """It cannot have saved up turns."""
    lane = FleetLane("work")
    old = queue(lane, 1, ready=1_000)
    for _ in range(500):
        lane.share_out(1, None)
        lane.settle(old, 10)
        lane.enter(old)
    new = queue(lane, 2, ready=1_000)
    new.fleet_cost_ms = old.fleet_cost_ms
    lane.enter(new)
    shares = lane.share_out(100, None)
    assert abs(shares[new] - shares[old]) <= 2


def test_a_settled_message_charges_the_time_it_took() -> None:
    """Each message costs its processing time and one millisecond, regardless of the estimate."""
    lane = FleetLane("work")
    one = queue(lane, 1, ready=1_000)
    for took in (100, 100, 100, 300, 50):
        before = one.fleet_time
        lane.settle(one, took)
        assert one.fleet_time == before + took + 1


def test_the_expected_cost_follows_the_processing_time() -> None:
    """Within a few dozen messages."""
    lane = FleetLane("work")
    one = queue(lane, 1, ready=1)
    for _ in range(40):
        lane.settle(one, 200)
    assert abs(one.fleet_cost_ms - 200) < 1
