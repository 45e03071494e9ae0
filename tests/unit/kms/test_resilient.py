"""A provider made steady: retries, bounds in number and time, rest after failures, and health."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Invalid, KeyDisabled, KmsDenied, KmsError, KmsUnavailable, SealBroken
from tenantq.kms.resilient import HEALTH_KEYS_MAX, PROBE, ResilientKms
from tenantq.kms.settings import RetrySettings

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from tenantq.kms.interface import Context
    from tenantq.runtime.clock import ManualClock

CONTEXT = {"tenant": "7"}


class Wrapper:
    """A provider that does what the script says, one entry for each call; then it works."""

    def __init__(self, *script: Exception | str) -> None:
        self.script = list(script)
        self.calls: list[int] = []
        self.clock: ManualClock | None = None
        self.closed = False

    def check_key(self, key: str) -> None:
        if key == "bad":
            raise Invalid("key: bad")

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        await self._act()
        return b"wrapped " + plaintext

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        await self._act()
        return wrapped.removeprefix(b"wrapped ")

    async def close(self) -> None:
        self.closed = True

    async def _act(self) -> None:
        assert self.clock is not None
        self.calls.append(self.clock.monotonic_ms())
        step = self.script.pop(0) if self.script else "work"
        if isinstance(step, Exception):
            raise step
        if step == "hang":
            await asyncio.get_running_loop().create_future()


def steady(clock: ManualClock, wrapper: Wrapper, **settings: int) -> ResilientKms:
    """Make a wrapper steady on the manual clock."""
    wrapper.clock = clock
    return ResilientKms("local", wrapper, clock, random.Random(7), RetrySettings(**settings))


async def run(clock: ManualClock, call: Coroutine[Any, Any, bytes]) -> tuple[bytes | Exception, int]:
    """Let time pass until the call ends, and return its outcome and how long it took."""
    task = asyncio.create_task(call)
    started = clock.monotonic_ms()
    while not task.done():
        for _ in range(5):
            await asyncio.sleep(0)
        if not task.done():
            clock.advance(1)
    took = clock.monotonic_ms() - started
    error = task.exception()
    assert error is None or isinstance(error, Exception)
    return error or task.result(), took


async def test_a_good_call_is_made_once(clock: ManualClock) -> None:
    """And noted as good."""
    wrapper = Wrapper()
    kms = steady(clock, wrapper)
    assert await kms.unwrap("main", await kms.wrap("main", b"key", CONTEXT), CONTEXT) == b"key"
    assert len(wrapper.calls) == 2
    (health,) = kms.health()
    assert (health.provider, health.key, health.state, health.failures) == ("local", "main", "ok", 0)
    assert health.last_ok_at == health.since == clock.wall_ms()


async def test_an_outage_is_retried_with_growing_pauses(clock: ManualClock) -> None:
    """Until it works; each pause is a random part of a span that doubles."""
    wrapper = Wrapper(*[KmsUnavailable("out")] * 5)
    kms = steady(clock, wrapper, attempts=6, backoff_base_ms=100, backoff_max_ms=10_000, total_ms=60_000)
    outcome, _ = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert outcome == b"wrapped key"
    pauses = [later - earlier for earlier, later in zip(wrapper.calls, wrapper.calls[1:], strict=False)]
    assert len(pauses) == 5
    assert all(1 <= pause <= 100 * 2**n + 1 for n, pause in enumerate(pauses))
    assert len(set(pauses)) > 1
    assert kms.health()[0].state == "ok"


async def test_the_number_of_attempts_is_bounded(clock: ManualClock) -> None:
    """The last error is told."""
    wrapper = Wrapper(*[KmsUnavailable(f"out {n}") for n in range(10)])
    kms = steady(clock, wrapper, attempts=3)
    outcome, _ = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert isinstance(outcome, KmsUnavailable)
    assert str(outcome) == "out 2"
    assert len(wrapper.calls) == 3


async def test_the_time_of_all_attempts_is_bounded(clock: ManualClock) -> None:
    """Calls that never answer and pauses together."""
    wrapper = Wrapper(*["hang"] * 20)
    kms = steady(clock, wrapper, attempts=20, call_ms=300, total_ms=1_000, backoff_base_ms=10, backoff_max_ms=10)
    outcome, took = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert isinstance(outcome, KmsUnavailable)
    assert took <= 1_000
    assert len(wrapper.calls) >= 3


async def test_a_single_call_is_bounded_in_time(clock: ManualClock) -> None:
    """And what hung is not waited for."""
    kms = steady(clock, Wrapper("hang"), attempts=1, call_ms=250)
    outcome, took = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert isinstance(outcome, KmsUnavailable)
    assert "250 ms" in str(outcome)
    assert took == 250


async def test_a_pause_is_at_least_what_the_other_side_asks_for(clock: ManualClock) -> None:
    """And when that is beyond the bound, the call fails at once rather than wait in vain."""
    throttled = KmsUnavailable("throttled")
    throttled.retry_after_ms = 2_000
    kms = steady(clock, wrapper := Wrapper(throttled), backoff_base_ms=1, total_ms=5_000)
    outcome, took = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert outcome == b"wrapped key"
    assert took == 2_000
    throttled.retry_after_ms = 60_000
    wrapper.script = [throttled]
    outcome, took = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert isinstance(outcome, KmsUnavailable)
    assert took == 0


@pytest.mark.parametrize(
    ("error", "state"), [(KmsDenied("no"), "denied"), (KeyDisabled("off"), "disabled"), (KmsError("odd"), "failed")]
)
async def test_a_refusal_is_not_retried(clock: ManualClock, error: KmsError, state: str) -> None:
    """Trying again would not help; the health says why."""
    wrapper = Wrapper(error)
    kms = steady(clock, wrapper)
    with pytest.raises(type(error)):
        await kms.wrap("main", b"key", CONTEXT)
    assert len(wrapper.calls) == 1
    (health,) = kms.health()
    assert (health.state, health.failures, health.text) == (state, 1, str(error))


async def test_after_a_failure_a_key_rests(clock: ManualClock) -> None:
    """Calls fail at once with the same error, say when to come back, and nobody is asked; other keys are not concerned."""
    wrapper = Wrapper(*[KmsUnavailable("out")] * 2)
    kms = steady(clock, wrapper, attempts=2, rest_ms=1_000)
    await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert len(wrapper.calls) == 2
    clock.advance(400)
    for _ in range(5):
        with pytest.raises(KmsUnavailable, match="out") as caught:
            await kms.wrap("main", b"key", CONTEXT)
        assert caught.value.retry_after_ms == 600
    assert len(wrapper.calls) == 2
    assert await kms.wrap("other", b"key", CONTEXT)
    clock.advance(600)
    assert await kms.wrap("main", b"key", CONTEXT)


async def test_bytes_that_do_not_unwrap_are_not_the_keys_fault(clock: ManualClock) -> None:
    """Neither a retry nor a rest: the next call goes through."""
    wrapper = Wrapper(SealBroken())
    kms = steady(clock, wrapper)
    with pytest.raises(SealBroken):
        await kms.unwrap("main", b"x", CONTEXT)
    assert kms.health() == []
    assert await kms.unwrap("main", b"wrapped x", CONTEXT) == b"x"


async def test_whatever_a_library_raises_becomes_a_typed_error(clock: ManualClock) -> None:
    """Its text is left out: it may hold anything."""
    kms = steady(clock, Wrapper(RuntimeError("the key is 123")))
    with pytest.raises(KmsError, match="RuntimeError") as caught:
        await kms.wrap("main", b"key", CONTEXT)
    assert "123" not in str(caught.value)
    assert caught.value.__suppress_context__


async def test_health_follows_what_happens(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Since when, how often, and when it last worked; a change is logged once."""
    wrapper = Wrapper()
    kms = steady(clock, wrapper, attempts=1, rest_ms=0)
    await kms.wrap("main", b"key", CONTEXT)
    good_at = clock.wall_ms()
    with caplog.at_level(logging.WARNING, "tenantq"):
        for _ in range(3):
            clock.advance(1_000)
            wrapper.script = [KmsUnavailable("out")]
            with pytest.raises(KmsUnavailable):
                await kms.wrap("main", b"key", CONTEXT)
        (health,) = kms.health()
        assert (health.state, health.failures, health.text) == ("unavailable", 3, "out")
        assert (health.since, health.last_ok_at) == (good_at + 1_000, good_at)
        clock.advance(1_000)
        await kms.wrap("main", b"key", CONTEXT)
    (health,) = kms.health()
    assert (health.state, health.failures, health.since, health.text) == ("ok", 0, clock.wall_ms(), "")
    assert len(caplog.records) == 2


async def test_a_check_wraps_and_unwraps_and_raises_nothing(clock: ManualClock) -> None:
    """Its answer is the key's health."""
    wrapper = Wrapper()
    kms = steady(clock, wrapper, rest_ms=0)
    assert (await kms.check("main")).state == "ok"
    assert len(wrapper.calls) == 2
    wrapper.script = [KmsDenied("no")]
    assert (await kms.check("main")).state == "denied"
    wrapper.script = ["work", SealBroken()]
    assert (await kms.check("main")).state == "failed"
    assert len(PROBE) == 32


async def test_the_health_of_so_many_keys_is_kept(clock: ManualClock) -> None:
    """Those not used for longest are forgotten."""
    kms = steady(clock, Wrapper())
    for number in range(HEALTH_KEYS_MAX + 5):
        await kms.wrap(f"key-{number}", b"", CONTEXT)
    assert len(kms.health()) == HEALTH_KEYS_MAX
    assert kms.health()[0].key == "key-5"


async def test_the_provider_checks_names_and_is_closed(clock: ManualClock) -> None:
    """Both are passed on."""
    wrapper = Wrapper()
    kms = steady(clock, wrapper)
    kms.check_key("good")
    with pytest.raises(Invalid):
        kms.check_key("bad")
    await kms.close()
    assert wrapper.closed


async def test_a_caller_who_gives_up_leaves_nothing_behind(clock: ManualClock) -> None:
    """Cancelled while it waits, for an answer or in a pause."""
    kms = steady(clock, Wrapper("hang", KmsUnavailable("out")))
    for _ in range(2):
        task = asyncio.create_task(kms.wrap("main", b"key", CONTEXT))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    clock.advance(10_000)
    assert await kms.wrap("main", b"key", CONTEXT)
