"""Consumers per queue: those beyond the limit are refused, and idle ones are forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.errors import Invalid, QuotaExceeded
from tenantq.gates.consumers import Consumers
from tenantq.runtime.clock import ManualClock


def test_46_the_consumer_beyond_the_limit_is_refused(clock: ManualClock) -> None:
    """The error has the limit, the current number and when a place may be free. Known consumers continue to poll."""
    consumers = Consumers(clock)
    for name in ("a", "b", "a", "b"):
        consumers.note("acme", "q", name, 2)
    clock.advance(10_000)
    consumers.note("acme", "q", "b", 2)
    with pytest.raises(QuotaExceeded) as raised:
        consumers.note("acme", "q", "c", 2)
    error = raised.value
    assert (error.limit, error.current, error.retry_after_ms) == (2, 2, 50_000)
    assert (error.tenant, error.queue, error.code) == ("acme", "q", "quota_exceeded")
    assert error.message.startswith("quotas.consumers_per_queue: 2 consumers poll this queue, the limit is 2.")
    consumers.note("acme", "q", "a", 2)
    assert consumers.count("acme", "q") == 2


def test_a_refused_consumer_takes_no_place(clock: ManualClock) -> None:
    """Repeated attempts do not change that."""
    consumers = Consumers(clock)
    consumers.note("acme", "q", "a", 1)
    for n in range(100):
        with pytest.raises(QuotaExceeded):
            consumers.note("acme", "q", f"b{n}", 1)
    clock.advance(60_000)
    consumers.note("acme", "q", "c", 1)
    with pytest.raises(QuotaExceeded):
        consumers.note("acme", "q", "a", 1)


def test_an_idle_consumer_is_forgotten_after_the_idle_time(clock: ManualClock) -> None:
    """Not a millisecond earlier. Waiting in a poll does not count as idle time."""
    consumers = Consumers(clock, idle_ms=1_000)
    consumers.note("acme", "q", "a", 1, wait_ms=20_000)
    clock.advance(20_999)
    with pytest.raises(QuotaExceeded):
        consumers.note("acme", "q", "b", 1)
    clock.advance(1)
    assert consumers.count("acme", "q") == 0
    consumers.note("acme", "q", "b", 1)


def test_consumers_are_counted_per_queue_and_tenant(clock: ManualClock) -> None:
    """One consumer may serve many queues."""
    consumers = Consumers(clock)
    for tenant, queue in (("acme", "q"), ("acme", "q2"), ("bolt", "q")):
        consumers.note(tenant, queue, "a", 1)
    assert len(consumers) == 3


def test_a_limit_changed_online_applies_to_new_consumers(clock: ManualClock) -> None:
    """A lower limit does not remove known consumers."""
    consumers = Consumers(clock)
    for name in "abc":
        consumers.note("acme", "q", name, 3)
    consumers.note("acme", "q", "a", 1)
    with pytest.raises(QuotaExceeded):
        consumers.note("acme", "q", "d", 1)
    consumers.note("acme", "q", "d", 4)
    assert consumers.count("acme", "q") == 4


def test_queues_without_a_limit_are_not_tracked(clock: ManualClock) -> None:
    """They take no memory."""
    consumers = Consumers(clock)
    for n in range(1_000):
        consumers.note("acme", "q", f"c{n}", None)
    assert len(consumers) == 0
    assert consumers.count("acme", "q") == 0


def test_queues_without_active_consumers_are_removed_in_slices(clock: ManualClock) -> None:
    """Queues with active consumers stay."""
    consumers = Consumers(clock)
    for n in range(100):
        consumers.note("acme", f"q{n}", "a", 1)
    clock.advance(59_000)
    consumers.note("acme", "q0", "a", 1)
    assert consumers.collect() == 0
    clock.advance(1_000)
    assert consumers.collect(most=30) <= 30
    while consumers.collect(most=30):
        pass
    assert len(consumers) == 1
    assert consumers.count("acme", "q0") == 1


@pytest.mark.parametrize("consumer", ["", "x" * 257, "a\0b", 7, None])
def test_a_consumers_name_is_short_text(clock: ManualClock, consumer: object) -> None:
    """Any other name is invalid and is not stored."""
    consumers = Consumers(clock)
    with pytest.raises(Invalid, match="consumer: "):
        consumers.note("acme", "q", consumer, 5)  # type: ignore[arg-type]  # that is the point
    assert len(consumers) == 0


@given(
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 700), st.integers(0, 900)), max_size=80),
    limit=st.integers(1, 4),
)
def test_the_limit_is_never_exceeded(steps: list[tuple[int, int, int]], limit: int) -> None:
    """An independent count agrees, and no consumer is refused while there is room."""
    clock = ManualClock()
    consumers, alive = Consumers(clock, idle_ms=1_000), dict[str, int]()
    for n, passed, wait_ms in steps:
        clock.advance(passed)
        now, name = clock.monotonic_ms(), str(n)
        others = sum(at > now for other, at in alive.items() if other != name)
        known = name in alive and alive[name] > now
        try:
            consumers.note("acme", "q", name, limit, wait_ms=wait_ms)
        except QuotaExceeded:
            assert not known
            assert others >= limit
        else:
            alive[name] = now + 1_000 + wait_ms
            assert others < limit
        assert consumers.count("acme", "q") == sum(at > now for at in alive.values()) <= limit
