"""The resilient provider: retries, limits in number and time, back-off after failures, and health."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import DecryptionFailed, Invalid, KeyDisabled, KmsDenied, KmsError, KmsUnavailable
from tenantq.kms.resilient import HEALTH_KEYS_MAX, PROBE, ResilientKms
from tenantq.kms.settings import RetrySettings

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from tenantq.kms.interface import Context
    from tenantq.runtime.clock import ManualClock

CONTEXT = {"tenant": "7"}


class ScriptedProvider:
    """A provider that follows a script with one entry per call, and then succeeds."""

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


def resilient_kms(clock: ManualClock, provider: ScriptedProvider, **settings: int) -> ResilientKms:
    """Make a provider resilient on the manual clock."""
    provider.clock = clock
    return ResilientKms("local", provider, clock, random.Random(7), RetrySettings(**settings))


async def run(clock: ManualClock, call: Coroutine[Any, Any, bytes]) -> tuple[bytes | Exception, int]:
    """Advance the clock until the call ends, and return its outcome and duration."""
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


async def test_a_successful_call_is_made_once(clock: ManualClock) -> None:
    """The health is good."""
    provider = ScriptedProvider()
    kms = resilient_kms(clock, provider)
    assert await kms.unwrap("main", await kms.wrap("main", b"key", CONTEXT), CONTEXT) == b"key"
    assert len(provider.calls) == 2
    (health,) = kms.health()
    assert (health.provider, health.key, health.state, health.failures) == ("local", "main", "ok", 0)
    assert health.last_ok_at == health.since == clock.wall_ms()


async def test_an_outage_is_retried_with_growing_pauses(clock: ManualClock) -> None:
    """Until it succeeds; each pause is a random part of a window that doubles."""
    provider = ScriptedProvider(*[KmsUnavailable("out")] * 5)
    kms = resilient_kms(clock, provider, attempts=6, backoff_base_ms=100, backoff_max_ms=10_000, total_ms=60_000)
    outcome, _ = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert outcome == b"wrapped key"
    pauses = [later - earlier for earlier, later in zip(provider.calls, provider.calls[1:], strict=False)]
    assert len(pauses) == 5
    assert all(1 <= pause <= 100 * 2**n + 1 for n, pause in enumerate(pauses))
    assert len(set(pauses)) > 1
    assert kms.health()[0].state == "ok"


async def test_the_number_of_attempts_is_bounded(clock: ManualClock) -> None:
    """The last error is raised."""
    provider = ScriptedProvider(*[KmsUnavailable(f"out {n}") for n in range(10)])
    kms = resilient_kms(clock, provider, attempts=3)
    outcome, _ = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert isinstance(outcome, KmsUnavailable)
    assert str(outcome) == "out 2"
    assert len(provider.calls) == 3


async def test_the_time_of_all_attempts_is_bounded(clock: ManualClock) -> None:
    """Including calls that never answer and pauses."""
    provider = ScriptedProvider(*["hang"] * 20)
    kms = resilient_kms(
        clock, provider, attempts=20, call_ms=300, total_ms=1_000, backoff_base_ms=10, backoff_max_ms=10
    )
    outcome, took = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert isinstance(outcome, KmsUnavailable)
    assert took <= 1_000
    assert len(provider.calls) >= 3


async def test_a_single_call_has_a_timeout(clock: ManualClock) -> None:
    """A hanging call is abandoned."""
    kms = resilient_kms(clock, ScriptedProvider("hang"), attempts=1, call_ms=250)
    outcome, took = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert isinstance(outcome, KmsUnavailable)
    assert "250 ms" in str(outcome)
    assert took == 250


async def test_a_pause_is_at_least_what_the_service_asks_for(clock: ManualClock) -> None:
    """If that exceeds the total time, the call fails at once."""
    throttled = KmsUnavailable("throttled")
    throttled.retry_after_ms = 2_000
    kms = resilient_kms(clock, provider := ScriptedProvider(throttled), backoff_base_ms=1, total_ms=5_000)
    outcome, took = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert outcome == b"wrapped key"
    assert took == 2_000
    throttled.retry_after_ms = 60_000
    provider.script = [throttled]
    outcome, took = await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert isinstance(outcome, KmsUnavailable)
    assert took == 0


@pytest.mark.parametrize(
    ("error", "state"), [(KmsDenied("no"), "denied"), (KeyDisabled("off"), "disabled"), (KmsError("odd"), "failed")]
)
async def test_a_refusal_is_not_retried(clock: ManualClock, error: KmsError, state: str) -> None:
    """A retry would not help, and the health says why."""
    provider = ScriptedProvider(error)
    kms = resilient_kms(clock, provider)
    with pytest.raises(type(error)):
        await kms.wrap("main", b"key", CONTEXT)
    assert len(provider.calls) == 1
    (health,) = kms.health()
    assert (health.state, health.failures, health.text) == (state, 1, str(error))


async def test_calls_fail_fast_for_a_while_after_a_failure(clock: ManualClock) -> None:
    """They raise the same error with a retry time and make no request. Other keys are not affected."""
    provider = ScriptedProvider(*[KmsUnavailable("out")] * 2)
    kms = resilient_kms(clock, provider, attempts=2, rest_ms=1_000)
    await run(clock, kms.wrap("main", b"key", CONTEXT))
    assert len(provider.calls) == 2
    clock.advance(400)
    for _ in range(5):
        with pytest.raises(KmsUnavailable, match="out") as caught:
            await kms.wrap("main", b"key", CONTEXT)
        assert caught.value.retry_after_ms == 600
    assert len(provider.calls) == 2
    assert await kms.wrap("other", b"key", CONTEXT)
    clock.advance(600)
    assert await kms.wrap("main", b"key", CONTEXT)


async def test_undecryptable_bytes_do_not_affect_the_keys_health(clock: ManualClock) -> None:
    """There is no retry and no back-off, and the next call is made."""
    provider = ScriptedProvider(DecryptionFailed())
    kms = resilient_kms(clock, provider)
    with pytest.raises(DecryptionFailed):
        await kms.unwrap("main", b"x", CONTEXT)
    assert kms.health() == []
    assert await kms.unwrap("main", b"wrapped x", CONTEXT) == b"x"


async def test_library_errors_become_typed_errors(clock: ManualClock) -> None:
    """The original text is left out because it may contain anything."""
    kms = resilient_kms(clock, ScriptedProvider(RuntimeError("the key is 123")))
    with pytest.raises(KmsError, match="RuntimeError") as caught:
        await kms.wrap("main", b"key", CONTEXT)
    assert "123" not in str(caught.value)
    assert caught.value.__suppress_context__


async def test_health_reflects_the_calls(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Since when, how often, and the last success. A change is logged once."""
    provider = ScriptedProvider()
    kms = resilient_kms(clock, provider, attempts=1, rest_ms=0)
    await kms.wrap("main", b"key", CONTEXT)
    good_at = clock.wall_ms()
    with caplog.at_level(logging.WARNING, "tenantq"):
        for _ in range(3):
            clock.advance(1_000)
            provider.script = [KmsUnavailable("out")]
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
    """It returns the health of the key."""
    provider = ScriptedProvider()
    kms = resilient_kms(clock, provider, rest_ms=0)
    assert (await kms.check("main")).state == "ok"
    assert len(provider.calls) == 2
    provider.script = [KmsDenied("no")]
    assert (await kms.check("main")).state == "denied"
    provider.script = ["work", DecryptionFailed()]
    assert (await kms.check("main")).state == "failed"
    assert len(PROBE) == 32


async def test_the_number_of_health_records_is_bounded(clock: ManualClock) -> None:
    """The least recently used are forgotten."""
    kms = resilient_kms(clock, ScriptedProvider())
    for number in range(HEALTH_KEYS_MAX + 5):
        await kms.wrap(f"key-{number}", b"", CONTEXT)
    assert len(kms.health()) == HEALTH_KEYS_MAX
    assert kms.health()[0].key == "key-5"


async def test_name_checks_and_close_are_forwarded(clock: ManualClock) -> None:
    """To the wrapped provider."""
    provider = ScriptedProvider()
    kms = resilient_kms(clock, provider)
    kms.check_key("good")
    with pytest.raises(Invalid):
        kms.check_key("bad")
    await kms.close()
    assert provider.closed


async def test_a_cancelled_call_leaves_nothing_behind(clock: ManualClock) -> None:
    """Cancelled during a call or during a pause."""
    kms = resilient_kms(clock, ScriptedProvider("hang", KmsUnavailable("out")))
    for _ in range(2):
        task = asyncio.create_task(kms.wrap("main", b"key", CONTEXT))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    clock.advance(10_000)
    assert await kms.wrap("main", b"key", CONTEXT)
