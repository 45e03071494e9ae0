"""A member is dead when its heartbeat stops, but never because the store could not be read."""

from __future__ import annotations

from tenantq.cluster.liveness import Liveness

DEAD_MS, STEP_MS_MAX = 1_600, 800


def test_a_member_whose_heartbeat_stops_is_dead() -> None:
    """It is alive again with its next heartbeat."""
    liveness = Liveness(DEAD_MS, STEP_MS_MAX)
    for turn in range(4):
        assert liveness.observe(turn * 400, {"a": turn, "b": 7}) == {"a", "b"}
    assert liveness.observe(1_600, {"a": 5, "b": 7}) == {"a"}
    assert liveness.observe(2_000, {"a": 6, "b": 8}) == {"a", "b"}


def test_an_outage_of_the_store_declares_no_member_dead() -> None:
    """After 30 seconds without the store, every member gets time to send a heartbeat."""
    liveness = Liveness(DEAD_MS, STEP_MS_MAX)
    liveness.observe(0, {"a": 1, "b": 1})
    assert liveness.observe(30_000, {"a": 2, "b": 1}) == {"a", "b"}
    assert liveness.observe(30_400, {"a": 3, "b": 2}) == {"a", "b"}


def test_a_member_already_dead_at_startup_is_declared_dead_after_the_same_time() -> None:
    """Its row may be left over from a crash."""
    liveness = Liveness(DEAD_MS, STEP_MS_MAX)
    alive = [liveness.observe(now, {"old": 3}) for now in range(0, 2_000, 400)]
    assert alive == [{"old"}] * 4 + [set()]
