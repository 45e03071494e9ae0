"""Waiting for a rate limit: in order, by the clock, without a stampede, and without leftovers after a cancellation."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.domain.rates import Limits, Rate
from tenantq.errors import RateLimited, TooLarge
from tenantq.gates.charge import Charge
from tenantq.gates.rate_buckets import Buckets
from tenantq.gates.rate_limit import RateLimits
from tenantq.runtime.clock import ManualClock

TEN = Limits(write=Rate(ops_per_sec=10))


async def settle() -> None:
    """Let every task that can continue do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def pass_time(clock: ManualClock, ms: int, step: int = 1) -> None:
    """Advance the clock in steps and let tasks run in between."""
    for _ in range(0, ms, step):
        clock.advance(step)
        await settle()


def wait_for(
    limits: RateLimits, ops: int, wait_ms: int, *, queue: str = "q", of_queue: Limits | None = None
) -> Coroutine[Any, Any, None]:
    """Return a call that waits for a write."""
    return limits.admit_within(Charge.of("acme", TEN, queue, of_queue, "write", ops), wait_ms=wait_ms)


async def test_a_call_waits_until_its_tokens_are_available(clock: ManualClock) -> None:
    """To the millisecond, and then takes them."""
    limits = RateLimits(clock)
    await wait_for(limits, 10, 0)
    call = asyncio.ensure_future(wait_for(limits, 3, 1_000))
    await pass_time(clock, 299)
    assert not call.done()
    assert limits.waiting("acme") == 1
    await pass_time(clock, 1)
    await call
    assert limits.waiting("acme") == 0
    with pytest.raises(RateLimited):
        limits.admit(Charge.of("acme", TEN, "q", None, "write"))


async def test_waiting_calls_are_served_in_order(clock: ManualClock) -> None:
    """A small call does not overtake an earlier large one, nor does a call that would not wait."""
    limits, served = RateLimits(clock), list[int]()
    limits.admit(Charge.of("acme", TEN, "q", None, "write", 10))

    async def call(n: int, ops: int) -> None:
        await wait_for(limits, ops, 10_000)
        served.append(n)

    calls = [asyncio.ensure_future(call(n, ops)) for n, ops in enumerate([1, 9, 1, 5, 1])]
    await settle()
    await pass_time(clock, 950, 10)
    assert served == [0]
    with pytest.raises(RateLimited, match="others are already waiting"):
        limits.admit(Charge.of("acme", TEN, "q", None, "write", 1))
    with pytest.raises(TooLarge):
        limits.admit(Charge.of("acme", TEN, "q", None, "write", 11))
    await pass_time(clock, 1_000, 10)
    assert served == [0, 1, 2, 3, 4][: len(served)]
    await pass_time(clock, 1_000, 10)
    await asyncio.gather(*calls)
    assert served == [0, 1, 2, 3, 4]
    assert len(limits._lines) == 0


async def test_a_call_that_cannot_be_served_in_time_is_refused_at_once(clock: ManualClock) -> None:
    """It does not hold a place in vain."""
    limits = RateLimits(clock)
    await wait_for(limits, 10, 0)
    with pytest.raises(RateLimited) as raised:
        await wait_for(limits, 5, 499)
    assert raised.value.retry_after_ms == 500
    with pytest.raises(RateLimited):
        await wait_for(limits, 1, 0)


async def test_a_call_that_times_out_uses_no_tokens(clock: ManualClock) -> None:
    """The calls behind it continue."""
    limits = RateLimits(clock)
    await wait_for(limits, 10, 0)
    calls = [
        asyncio.ensure_future(wait_for(limits, ops, wait_ms)) for ops, wait_ms in ((5, 5_000), (6, 700), (4, 5_000))
    ]
    await settle()
    await pass_time(clock, 700, 10)
    assert [call.done() for call in calls] == [True, True, False]
    with pytest.raises(RateLimited, match=r"^limits\.write\.ops_per_sec: 10 a second"):
        await calls[1]
    await pass_time(clock, 200, 10)
    assert calls[2].done()
    with pytest.raises(RateLimited) as raised:
        limits.admit(Charge.of("acme", TEN, "q", None, "write"))
    assert raised.value.current == 0


async def test_a_cancelled_call_leaves_no_trace(clock: ManualClock) -> None:
    """Neither in the line nor in the buckets, at any point of the wait."""
    limits = RateLimits(clock)
    await wait_for(limits, 10, 0)
    first, second = (asyncio.ensure_future(wait_for(limits, ops, 5_000)) for ops in (8, 2))
    await settle()
    await pass_time(clock, 200, 10)
    assert not second.done()
    first.cancel()
    await settle()
    assert second.done()
    assert limits.waiting("acme") == 0
    assert len(limits._lines) == 0
    clock.advance(1_000)
    limits.admit(Charge.of("acme", TEN, "q", None, "write", 10))


async def test_a_call_admitted_and_cancelled_at_once_returns_its_tokens(clock: ManualClock) -> None:
    """The next call in line gets them at once."""
    limits = RateLimits(clock)
    await wait_for(limits, 10, 0)
    first, second = (asyncio.ensure_future(wait_for(limits, 2, 5_000)) for _ in range(2))
    await settle()
    clock.advance(200)  # the first is admitted now, but has not run yet
    first.cancel()
    await settle()
    assert first.cancelled()
    assert second.done()
    assert not second.cancelled()


async def test_refunded_tokens_go_to_waiting_calls_at_once(clock: ManualClock) -> None:
    """They do not wait for the timer."""
    limits = RateLimits(clock)
    await wait_for(limits, 10, 0)
    call = asyncio.ensure_future(wait_for(limits, 4, 5_000))
    await settle()
    limits.refund(Charge.of("acme", TEN, "q", None, "write", 4))
    await settle()
    assert call.done()


async def test_a_slow_queue_does_not_block_other_queues(clock: ManualClock) -> None:
    """Only calls that wait for the same bucket are ordered."""
    limits, narrow = RateLimits(clock), Limits(write=Rate(ops_per_sec=1))
    await wait_for(limits, 1, 0, queue="narrow", of_queue=narrow)
    waiting = [asyncio.ensure_future(wait_for(limits, 1, 5_000, queue="narrow", of_queue=narrow)) for _ in range(2)]
    await settle()
    limits.admit(Charge.of("acme", TEN, "wide", None, "write", 5))
    with pytest.raises(RateLimited, match="for this queue"):
        limits.admit(Charge.of("acme", TEN, "narrow", narrow, "write"))
    five = Limits(write=Rate(ops_per_sec=5, burst=1))
    limits.admit(Charge.of("acme", TEN, "brisk", five, "write"))
    brisk = asyncio.ensure_future(wait_for(limits, 1, 5_000, queue="brisk", of_queue=five))
    await pass_time(clock, 200, 10)
    assert brisk.done()
    await pass_time(clock, 800, 10)
    assert [call.done() for call in waiting] == [True, False]
    await pass_time(clock, 1_000, 10)
    assert [call.done() for call in waiting] == [True, True]


async def test_no_call_overtakes_one_that_waits_for_the_same_queue(clock: ManualClock) -> None:
    """Not even one that needs less than is available. No timer is left after the last call."""
    limits, of_queue = RateLimits(clock), Limits(write=Rate(ops_per_sec=5))
    await wait_for(limits, 2, 0, of_queue=of_queue)
    call = asyncio.ensure_future(wait_for(limits, 4, 5_000, of_queue=of_queue))
    await settle()
    with pytest.raises(RateLimited, match="others are already waiting") as raised:
        limits.admit(Charge.of("acme", TEN, "q", of_queue, "write", 1))
    assert raised.value.retry_after_ms == 200
    await pass_time(clock, 200, 10)
    await call
    assert not any(timer.callback for *_, timer in clock._timers)
    limits.admit(Charge.of("acme", TEN, "q2", of_queue, "write", 1))


async def test_the_number_of_waiting_calls_is_bounded(clock: ManualClock) -> None:
    """One more is refused at once. Other tenants have separate lines."""
    limits = RateLimits(clock, waiting_max=3)
    await wait_for(limits, 10, 0)
    calls = [asyncio.ensure_future(wait_for(limits, 1, 60_000)) for _ in range(3)]
    await settle()
    with pytest.raises(RateLimited):
        await wait_for(limits, 1, 60_000)
    limits.admit(Charge.of("bolt", TEN, "q", None, "write", 10))
    other = asyncio.ensure_future(limits.admit_within(Charge.of("bolt", TEN, "q", None, "write"), wait_ms=1_000))
    await settle()
    assert (limits.waiting("acme"), limits.waiting("bolt")) == (3, 1)
    await pass_time(clock, 400, 10)
    assert all(call.done() for call in (*calls, other))


async def test_one_timer_per_line_wakes_only_calls_that_can_proceed(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand waiting calls do not make a thousand attempts."""
    limits = RateLimits(clock)
    await wait_for(limits, 10, 0)
    calls = [asyncio.ensure_future(wait_for(limits, 1, 200_000)) for _ in range(1_000)]
    await settle()
    looks: list[Charge] = []
    wait_ms = Buckets.tenant_wait_ms

    def counted(self: Buckets, charge: Charge, now: int) -> int:
        looks.append(charge)
        return wait_ms(self, charge, now)

    monkeypatch.setattr(Buckets, "tenant_wait_ms", counted)
    await pass_time(clock, 10_000, 100)
    assert sum(call.done() for call in calls) == 100
    assert len(looks) <= 200
    for call in calls:
        call.cancel()
    await settle()
    assert len(limits._lines) == 0


_scripts = st.lists(
    st.tuples(st.sampled_from(["wait", "wait", "cancel", "pass", "try"]), st.integers(1, 10), st.integers(1, 3_000)),
    max_size=40,
)


@settings(max_examples=60)
@given(script=_scripts)
def test_waiting_never_exceeds_the_limit_and_ends_with_empty_lines(script: list[tuple[str, int, int]]) -> None:
    """Calls may arrive, wait, give up or be refused."""
    asyncio.run(_play(script))


async def _play(script: list[tuple[str, int, int]]) -> None:
    clock = ManualClock(monotonic_ms=0)
    limits = RateLimits(clock)
    passed: list[tuple[int, int]] = []
    order: list[int] = []

    async def call(n: int, ops: int, wait_ms: int) -> None:
        await wait_for(limits, ops, wait_ms)
        passed.append((clock.monotonic_ms(), ops))
        order.append(n)

    calls: list[asyncio.Task[None]] = []
    for action, ops, number in script:
        if action == "wait":
            calls.append(asyncio.ensure_future(call(len(calls), ops, number)))
        elif action == "cancel" and calls:
            calls[number % len(calls)].cancel()
        elif action == "pass":
            await pass_time(clock, number, 25)
        elif action == "try":
            try:
                limits.admit(Charge.of("acme", TEN, "q", None, "write", ops))
            except RateLimited:
                continue
            passed.append((clock.monotonic_ms(), ops))
        await settle()
    await pass_time(clock, 4_000, 50)
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert all(end is None or isinstance(end, RateLimited | asyncio.CancelledError) for end in ended)
    assert order == sorted(order)
    assert not limits._lines
    for first, (start, _) in enumerate(passed):
        total = 0
        for end_ms, ops in passed[first:]:
            total += ops
            assert total * 1_000 <= 10_000 + 10 * (end_ms - start)
