"""Rate limits of tenants and queues: all or nothing, never exceeded, and refusals use no tokens."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.domain.rates import NO_LIMITS, Limits, Rate
from tenantq.errors import RateLimited, TooLarge
from tenantq.gates.charge import Charge
from tenantq.gates.rate_limit import RateLimits
from tenantq.runtime.clock import ManualClock


def writes(ops: int | None = None, bytes: int | None = None, burst: int | None = None) -> Limits:
    """Return write limits."""
    return Limits(write=Rate(ops_per_sec=ops, bytes_per_sec=bytes, burst=burst))


def state(limits: RateLimits) -> bytes:
    """Return the whole state of the limits as bytes to compare."""
    sides = [(side._tenants, [(*key, pair) for key, pair in side._queues.items()]) for side in _sides(limits)]
    return msgspec.msgpack.encode(sides)


def _sides(limits: RateLimits) -> list:  # type: ignore[type-arg]
    return [limits._write, limits._read]


def admitted(limits: RateLimits, tenant: str, allowed: Limits, times: int, queue: str = "q") -> int:
    """Try ``times`` single writes and return how many were admitted."""
    passed = 0
    for _ in range(times):
        try:
            limits.admit(Charge.of(tenant, allowed, queue, None, "write", 1))
        except RateLimited:
            continue
        passed += 1
    return passed


def test_44_rate_is_within_ten_percent_over_ten_seconds(clock: ManualClock) -> None:
    """A caller that never pauses gets its rate once the burst is used up, and never more."""
    limits, allowed = RateLimits(clock), writes(50)
    admitted(limits, "acme", allowed, 1_000)
    passed = 0
    for _ in range(1_000):
        clock.advance(10)
        passed += admitted(limits, "acme", allowed, 3)
    assert 450 <= passed <= 500


def test_44_rate_limit_is_per_tenant_and_two_tenants_never_share(clock: ManualClock) -> None:
    """All queues of one tenant share its limit."""
    limits, allowed = RateLimits(clock), writes(10)
    assert admitted(limits, "acme", allowed, 8, "one") + admitted(limits, "acme", allowed, 8, "two") == 10
    assert admitted(limits, "bolt", allowed, 20) == 10


def test_44_a_refusal_says_when_to_retry_and_the_retry_succeeds(clock: ManualClock) -> None:
    """It also names the limit, its value and what remains."""
    limits, allowed = RateLimits(clock), writes(50, burst=20)
    limits.admit(Charge.of("acme", allowed, "work", None, "write", 18))
    with pytest.raises(RateLimited) as raised:
        limits.admit(Charge.of("acme", allowed, "work", None, "write", 5))
    error = raised.value
    assert (error.limit, error.current, error.retry_after_ms) == (50, 2, 60)
    assert (error.tenant, error.queue, error.code, error.status) == ("acme", "work", "rate_limited", 429)
    assert error.message == (
        "limits.write.ops_per_sec: 50 a second for this tenant, 20 at once; 2 left, 5 asked for. Try again in 60 ms"
    )
    clock.advance(59)
    with pytest.raises(RateLimited):
        limits.admit(Charge.of("acme", allowed, "work", None, "write", 5))
    clock.advance(1)
    limits.admit(Charge.of("acme", allowed, "work", None, "write", 5))


def test_44_rate_limit_is_configurable_online(clock: ManualClock) -> None:
    """The next call uses the new limit, or none if the limit was removed."""
    limits = RateLimits(clock)
    assert admitted(limits, "acme", writes(10), 20) == 10
    clock.advance(100)
    assert admitted(limits, "acme", writes(100), 20) == 10
    assert admitted(limits, "acme", NO_LIMITS, 20) == 20
    assert admitted(limits, "acme", writes(10), 20) == 0


def test_reads_and_writes_have_separate_limits(clock: ManualClock) -> None:
    """Using up the writes leaves the reads unchanged."""
    limits = RateLimits(clock)
    allowed = Limits(write=Rate(ops_per_sec=1), read=Rate(ops_per_sec=2))
    limits.admit(Charge.of("acme", allowed, "q", None, "write"))
    limits.admit(Charge.of("acme", allowed, "q", None, "read", 2))
    for kind, limit in (("write", 1), ("read", 2)):
        with pytest.raises(RateLimited, match=rf"limits\.{kind}\.ops_per_sec: {limit} a second"):
            limits.admit(Charge.of("acme", allowed, "q", None, kind))  # type: ignore[arg-type]  # one of the two


@pytest.mark.parametrize(
    ("tenant_limits", "queue_limits", "named"),
    [
        (writes(ops=5), NO_LIMITS, "limits.write.ops_per_sec: 5 a second for this tenant"),
        (writes(bytes=500), None, "limits.write.bytes_per_sec: 500 a second for this tenant"),
        (NO_LIMITS, writes(ops=5), "limits.write.ops_per_sec: 5 a second for this queue"),
        (None, writes(bytes=500), "limits.write.bytes_per_sec: 500 a second for this queue"),
        (writes(ops=100, bytes=500), writes(ops=100), "limits.write.bytes_per_sec: 500 a second for this tenant"),
        (writes(ops=100, bytes=10_000), writes(ops=5), "limits.write.ops_per_sec: 5 a second for this queue"),
    ],
)
def test_each_of_the_four_limits_holds_and_is_named(
    clock: ManualClock, tenant_limits: Limits | None, queue_limits: Limits | None, named: str
) -> None:
    """The error names the limit that was reached first."""
    limits = RateLimits(clock)
    for _ in range(5):
        limits.admit(Charge.of("acme", tenant_limits, "q", queue_limits, "write", 1, 100))
    with pytest.raises(RateLimited) as raised:
        limits.admit(Charge.of("acme", tenant_limits, "q", queue_limits, "write", 1, 100))
    assert raised.value.message.startswith(named)
    assert raised.value.retry_after_ms == 200


def test_each_queue_has_its_own_limit(clock: ManualClock) -> None:
    """Other queues of the tenant and queues with the same name in other tenants are not affected."""
    limits, allowed = RateLimits(clock), writes(3)
    limits.admit(Charge.of("acme", None, "q", allowed, "write", 3))
    limits.admit(Charge.of("acme", None, "q2", allowed, "write", 3))
    limits.admit(Charge.of("bolt", None, "q", allowed, "write", 3))
    with pytest.raises(RateLimited):
        limits.admit(Charge.of("acme", None, "q", allowed, "write"))


def test_a_refusal_takes_no_tokens_from_any_bucket(clock: ManualClock) -> None:
    """The state is the same byte for byte, and no bucket was created."""
    limits, wide, narrow = RateLimits(clock), writes(100, 10_000), writes(2)
    limits.admit(Charge.of("acme", wide, "q", narrow, "write", 2, 50))
    clock.advance(7)
    before = state(limits)
    with pytest.raises(RateLimited):
        limits.admit(Charge.of("acme", wide, "q", narrow, "write", 1, 50))
    with pytest.raises(TooLarge):
        limits.admit(Charge.of("acme", wide, "other", narrow, "write", 3, 50))
    assert state(limits) == before
    limits.admit(Charge.of("acme", wide, "q3", narrow, "write", 2, 9_950))


@pytest.mark.parametrize(
    ("allowed", "ops", "bytes", "text"),
    [
        (
            writes(50),
            51,
            0,
            r"^limits\.write\.ops_per_sec: 51 operations in one call can never pass, 50 at once is the most for this tenant\.",
        ),
        (
            writes(50, burst=20),
            21,
            0,
            r"^limits\.write\.burst: 21 operations in one call can never pass, 20 at once is the most for this tenant\.",
        ),
        (
            writes(bytes=99),
            1,
            100,
            r"^limits\.write\.bytes_per_sec: 100 bytes in one call can never pass, 99 at once is the most for this tenant\.",
        ),
    ],
)
def test_a_request_larger_than_the_burst_is_too_large(
    clock: ManualClock, allowed: Limits, ops: int, bytes: int, text: str
) -> None:
    """Waiting would never help, so the error names the setting, also if a bucket already exists."""
    limits = RateLimits(clock)
    for _ in range(2):
        with pytest.raises(TooLarge, match=text):
            limits.admit(Charge.of("acme", allowed, "q", None, "write", ops, bytes))
        limits.admit(Charge.of("acme", allowed, "q", None, "write", 1, 1))
    with pytest.raises(TooLarge, match=text.replace("tenant", "queue")):
        limits.admit(Charge.of("acme", None, "q", allowed, "write", ops, bytes))


def test_a_read_is_charged_afterwards_and_the_next_one_waits(clock: ManualClock) -> None:
    """The size of a read is not known when it is admitted."""
    limits, allowed = RateLimits(clock), Limits(read=Rate(ops_per_sec=100, bytes_per_sec=1_000))
    limits.admit(Charge.of("acme", allowed, "q", None, "read", 1))
    limits.charge(Charge.of("acme", allowed, "q", None, "read", 9, 3_000))
    with pytest.raises(RateLimited) as raised:
        limits.admit(Charge.of("acme", allowed, "q", None, "read", 1))
    assert raised.value.message.startswith("limits.read.bytes_per_sec: 1000 a second")
    assert (raised.value.current, raised.value.retry_after_ms) == (0, 2_000)
    clock.advance(2_000)
    limits.admit(Charge.of("acme", allowed, "q", None, "read", 1))


def test_tokens_of_work_that_was_not_done_are_refunded(clock: ManualClock) -> None:
    """For example if a quota refuses a call that the rate limit admitted."""
    limits, allowed = RateLimits(clock), writes(10, 1_000)
    limits.admit(Charge.of("acme", allowed, "q", allowed, "write", 4, 100))
    before = state(limits)
    limits.admit(Charge.of("acme", allowed, "q", allowed, "write", 6, 900))
    limits.refund(Charge.of("acme", allowed, "q", allowed, "write", 6, 900))
    assert state(limits) == before
    limits.refund(Charge.of("none", allowed, "q", allowed, "write", 6, 900))
    assert state(limits) == before


def test_tenants_without_limits_take_no_memory(clock: ManualClock) -> None:
    """No limits are the default for every tenant."""
    limits = RateLimits(clock)
    for kind in ("read", "write"):
        limits.admit(Charge.of("acme", NO_LIMITS, "q", NO_LIMITS, kind, 1_000, 1 << 20))
        limits.charge(Charge.of("acme", None, "q", None, kind, 1_000, 1 << 20))
        limits.refund(Charge.of("acme", None, None, None, kind))
    assert len(limits) == 0


def test_full_buckets_are_removed_in_slices(clock: ManualClock) -> None:
    """Buckets that are not full again stay."""
    limits, allowed = RateLimits(clock), writes(10)
    for n in range(500):
        limits.admit(Charge.of(f"tenant-{n}", allowed, "q", allowed, "write", 10 if n % 2 else 1))
    assert limits.collect(most=1_000) == 0
    assert len(limits) == 1_000
    clock.advance(100)
    assert limits.collect(most=100) <= 100
    assert sum(limits.collect(most=100) for _ in range(20)) > 0
    assert len(limits) == 500
    assert admitted(limits, "tenant-1", allowed, 10) == 1
    clock.advance(1_000)
    assert sum(limits.collect() for _ in range(5)) == 500
    assert len(limits) == 0
    assert limits.collect() == 0


def test_removing_a_full_bucket_changes_no_decision(clock: ManualClock) -> None:
    """A caller gains nothing by pausing until its bucket is removed."""
    kept, collected = RateLimits(clock), RateLimits(clock)
    for limits in (kept, collected):
        admitted(limits, "acme", writes(10), 10)
    clock.advance(999)
    assert collected.collect() == 0
    clock.advance(1)
    assert collected.collect() == 1
    assert admitted(kept, "acme", writes(10), 20) == admitted(collected, "acme", writes(10), 20) == 10


def test_a_deleted_tenant_is_forgotten(clock: ManualClock) -> None:
    """Its queues are forgotten too; other tenants are not."""
    limits, allowed = RateLimits(clock), writes(10)
    for tenant in ("acme", "acme-2"):
        for queue in ("a", "b"):
            limits.admit(Charge.of(tenant, allowed, queue, allowed, "write", 5))
    limits.forget("acme")
    limits.forget("nobody")
    assert len(limits) == 3
    assert admitted(limits, "acme", allowed, 20) == 10
    assert admitted(limits, "acme-2", allowed, 20) == 0
    clock.advance(10_000)
    while limits.collect(1):
        pass
    assert len(limits) == 0


_steps = st.lists(
    st.tuples(
        st.sampled_from(["acme", "bolt"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 400),  # ms before
        st.integers(0, 12),  # ops
        st.integers(0, 600),  # bytes
    ),
    max_size=80,
)


@given(steps=_steps, burst=st.integers(12, 30), looked_at=st.sampled_from([0, 2]))
def test_no_bucket_exceeds_its_limit_in_any_window(
    steps: list[tuple[str, str, int, int, int]], burst: int, looked_at: int
) -> None:
    """Burst + rate * time bounds operations and bytes of tenants and queues, and a refusal changes nothing."""
    clock = ManualClock(monotonic_ms=0)
    limits = RateLimits(clock)
    of_tenant, of_queue = writes(20, 1_000, burst), writes(12, 700)
    passed: list[tuple[str, str, int, int, int]] = []
    for tenant, queue, wait, ops, size in steps:
        clock.advance(wait)
        limits.collect(looked_at)
        before = state(limits)
        try:
            limits.admit(Charge.of(tenant, of_tenant, queue, of_queue, "write", ops, size))
        except RateLimited:
            assert state(limits) == before
        else:
            passed.append((tenant, queue, clock.monotonic_ms(), ops, size))
    for tenant in ("acme", "bolt"):
        of_one = [one for one in passed if one[0] == tenant]
        _check_windows([(at, ops) for _, _, at, ops, _ in of_one], 20, burst)
        _check_windows([(at, size) for *_, at, _, size in of_one], 1_000, 1_000)
        for queue in ("a", "b"):
            _check_windows([(at, ops) for _, name, at, ops, _ in of_one if name == queue], 12, 12)
            _check_windows([(at, size) for _, name, at, _, size in of_one if name == queue], 700, 700)


def _check_windows(taken: list[tuple[int, int]], rate: int, burst: int) -> None:
    for first, (start, _) in enumerate(taken):
        total = 0
        for end, amount in taken[first:]:
            total += amount
            assert total * 1_000 <= burst * 1_000 + rate * (end - start)


@given(ops=st.integers(0, 20), later=st.integers(0, 3_000))
def test_the_retry_time_of_a_refusal_is_exact(ops: int, later: int) -> None:
    """A caller that retries then is admitted, and one millisecond earlier it is not."""
    clock = ManualClock()
    limits, allowed = RateLimits(clock), writes(7, burst=20)
    limits.charge(Charge.of("acme", allowed, "q", None, "write", 33))
    clock.advance(later)
    try:
        limits.admit(Charge.of("acme", allowed, "q", None, "write", ops))
    except RateLimited as error:
        clock.advance(error.retry_after_ms - 1)
        with pytest.raises(RateLimited):
            limits.admit(Charge.of("acme", allowed, "q", None, "write", ops))
        clock.advance(1)
        limits.admit(Charge.of("acme", allowed, "q", None, "write", ops))
