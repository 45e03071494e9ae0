"""Token buckets: exact integer arithmetic for all inputs."""

from hypothesis import given
from hypothesis import strategies as st

from tenantq.gates.token_bucket import TokenBucket

rates = st.integers(1, 1_000_000)
bursts = st.integers(1, 5_000)


def test_a_bucket_starts_full_and_refills_at_its_rate() -> None:
    """At three a second, one takes 334 ms, two take 667 and three take 1,000: rounding loses nothing."""
    bucket = TokenBucket.full(3, 0)
    assert bucket.take(3, 3, 3, 0)
    assert not bucket.take(1, 3, 3, 333)
    assert bucket.wait_ms(1, 3, 3, 333) == 1
    assert bucket.take(1, 3, 3, 334)
    assert bucket.take(1, 3, 3, 667)
    assert bucket.take(1, 3, 3, 1_000)
    assert bucket.tokens(3, 3, 1_000) == 0


def test_a_bucket_never_holds_more_than_the_burst() -> None:
    """The length of the pause does not matter."""
    bucket = TokenBucket.full(5, 0)
    assert not bucket.take(6, 10, 5, 1_000_000)
    assert bucket.tokens(10, 5, 1_000_000) == 5
    assert bucket.is_full(10, 5, 0)


def test_a_new_rate_or_burst_applies_at_once() -> None:
    """The next call uses it."""
    bucket = TokenBucket.full(10, 0)
    bucket.take(10, 10, 10, 0)
    assert bucket.wait_ms(5, 10, 10, 0) == 500
    assert bucket.wait_ms(5, 1_000, 10, 0) == 5
    assert bucket.tokens(1_000, 2, 1_000) == 2


def test_debt_is_repaid_over_time() -> None:
    """Until then nothing is admitted, not even a request for zero tokens."""
    bucket = TokenBucket.full(10, 0)
    bucket.charge(30, 10, 10, 0)
    assert bucket.tokens(10, 10, 0) == -20
    assert bucket.wait_ms(0, 10, 10, 0) == 2_000
    assert not bucket.has(0, 10, 10, 1_999)
    assert bucket.has(0, 10, 10, 2_000)
    assert not bucket.take(1, 10, 10, 2_099)
    assert bucket.take(1, 10, 10, 2_100)


def test_a_clock_that_restarts_adds_no_tokens() -> None:
    """It does not remove any either."""
    bucket = TokenBucket.full(10, 1_000_000)
    bucket.take(10, 10, 10, 1_000_000)
    assert bucket.tokens(10, 10, 5) == 0
    assert not bucket.take(1, 10, 10, 5)
    bucket.charge(0, 10, 10, 5)
    assert bucket.take(1, 10, 10, 105)


@given(rate=rates, burst=bursts, steps=st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 6_000)), max_size=60))
def test_any_window_admits_at_most_burst_and_rate(rate: int, burst: int, steps: list[tuple[int, int]]) -> None:
    """The window may start and end at any time."""
    bucket, now = TokenBucket.full(burst, 0), 0
    taken: list[tuple[int, int]] = []
    for wait, amount in steps:
        now += wait
        if bucket.take(amount, rate, burst, now):
            taken.append((now, amount))
    for first, (start, _) in enumerate(taken):
        total = 0
        for end, amount in taken[first:]:
            total += amount
            assert total * 1_000 <= burst * 1_000 + rate * (end - start)


@given(
    rate=rates, burst=bursts, spent=st.integers(0, 20_000), amount=st.integers(0, 5_000), later=st.integers(0, 10_000)
)
def test_the_wait_is_exact(rate: int, burst: int, spent: int, amount: int, later: int) -> None:
    """The tokens are available after it and not a millisecond earlier."""
    amount = min(amount, burst)
    bucket = TokenBucket.full(burst, 0)
    bucket.charge(spent, rate, burst, 0)
    wait = bucket.wait_ms(amount, rate, burst, later)
    assert bucket.has(amount, rate, burst, later + wait)
    assert wait == 0 or not bucket.has(amount, rate, burst, later + wait - 1)
    assert bucket.has(amount, rate, burst, later) == (wait == 0)


@given(
    rate=rates,
    burst=bursts,
    spent=st.integers(0, 20_000),
    amount=st.integers(0, 20_000),
    times=st.tuples(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 5_000)),
)
def test_a_refund_restores_the_state_before_the_charge(
    rate: int, burst: int, spent: int, amount: int, times: tuple[int, int, int]
) -> None:
    """At any time and any fill level."""
    taken_at, back_at, seen_at = times[0], times[0] + times[1], sum(times)
    one, other = TokenBucket.full(burst, 0), TokenBucket.full(burst, 0)
    one.charge(spent, rate, burst, 0)
    other.charge(spent, rate, burst, 0)
    one.charge(amount, rate, burst, taken_at)
    one.refund(amount, rate, burst, back_at)
    other.charge(0, rate, burst, seen_at)
    one.charge(0, rate, burst, seen_at)
    assert one == other


@given(rate=rates, burst=bursts, charges=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 50)), max_size=40))
def test_frequent_settling_does_not_change_the_balance(rate: int, burst: int, charges: list[tuple[int, int]]) -> None:
    """A bucket settled at every step holds exactly what one settled once holds."""
    often, once, now, total = TokenBucket.full(burst, 0), TokenBucket.full(burst, 0), 0, 10 * burst
    often.charge(total, rate, burst, 0)
    once.charge(total, rate, burst, 0)
    for wait, amount in charges:
        now += wait
        if once.wait_ms(burst, rate, burst, now) == 0:
            return  # the bucket was full, so the time of the charge matters
        often.charge(amount, rate, burst, now)
        once.charge(amount, rate, burst, 0)
    often.charge(0, rate, burst, now)
    once.charge(0, rate, burst, now)
    assert often == once


@given(rate=st.integers(10, 2_000), every=st.integers(1, 50), size=st.integers(1, 20))
def test_throughput_converges_to_the_rate(rate: int, every: int, size: int) -> None:
    """For callers that always have work it is within one percent after a while."""
    burst, seconds, taken = size + rate, 20, 0  # so that nothing overflows between two looks
    bucket = TokenBucket.full(burst, 0)
    bucket.charge(burst, rate, burst, 0)
    for now in range(0, seconds * 1_000 + 1, every):
        while bucket.take(size, rate, burst, now):
            taken += size
    whole_steps = size + rate * every / 1_000  # what waits for the next batch or the next look
    assert rate * seconds * 0.99 - whole_steps <= taken <= rate * seconds
