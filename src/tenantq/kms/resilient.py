"""A provider made steady: retries with growing pauses, bounds in number and time, and the health of every key.

After a failure the key rests: for a moment every further call fails at once with the same error, so that neither callers
wait in vain nor a troubled key management is hammered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.errors import KeyDisabled, KmsDenied, KmsError, KmsUnavailable, SealBroken, TenantqError
from tenantq.kms.interface import Context, KeyHealth, KeyState, KeyWrapper
from tenantq.kms.settings import RetrySettings
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import sleep_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.runtime.clock import Clock
    from tenantq.runtime.randomness import Randomness

log = logging.getLogger("tenantq")

HEALTH_KEYS_MAX: Final = 10_000
PROBE: Final = b"tenantq checks that this key works"[:32]
PROBE_CONTEXT: Final = {"tenantq": "check"}


class _Rest:
    """A key that has just failed, and until when it is left alone."""

    __slots__ = ("error", "until")

    def __init__(self, error: TenantqError, until: int) -> None:
        self.error = error
        self.until = until  # monotonic


class ResilientKms:
    """One key management system, asked patiently but not for ever."""

    def __init__(
        self,
        name: str,
        wrapper: KeyWrapper,
        clock: Clock,
        randomness: Randomness,
        settings: RetrySettings | None = None,
    ) -> None:
        self.name = name
        self._wrapper = wrapper
        self._clock = clock
        self._randomness = randomness
        self._settings = settings or RetrySettings()
        self._health: OrderedDict[str, KeyHealth] = OrderedDict()
        self._resting: dict[str, _Rest] = {}

    def __repr__(self) -> str:
        return f"SteadyKms({self.name!r})"

    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` can be the name of a key here. Asks nobody."""
        self._wrapper.check_key(key)

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        """Return ``plaintext`` wrapped; KmsUnavailable, KmsError."""
        return await self._call(key, lambda: self._wrapper.wrap(key, plaintext, context))

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        """Return what was wrapped; KmsUnavailable, KmsError, SealBroken."""
        return await self._call(key, lambda: self._wrapper.unwrap(key, wrapped, context))

    async def check(self, key: str) -> KeyHealth:
        """Wrap and unwrap a known text, and return how it went; a key that rests is not woken."""
        try:
            wrapped = await self.wrap(key, PROBE, PROBE_CONTEXT)
            if await self.unwrap(key, wrapped, PROBE_CONTEXT) != PROBE:
                self._note_failure(key, KmsError(f"{self.name}: what the key wrapped it unwraps to something else."))
        except SealBroken as error:  # of what was wrapped a moment ago: so it is the key's failure, not the bytes'
            self._note_failure(key, error)
        except TenantqError:
            pass  # noted where it was raised
        return self._health.get(key, KeyHealth(self.name, key))

    def health(self) -> list[KeyHealth]:
        """Return the health of every key used so far, up to HEALTH_KEYS_MAX of them."""
        return list(self._health.values())

    async def close(self) -> None:
        """Let go of connections and threads."""
        await self._wrapper.close()

    async def _call(self, key: str, call: Callable[[], Awaitable[bytes]]) -> bytes:
        self._raise_if_resting(key)
        settings, clock = self._settings, self._clock
        end = clock.monotonic_ms() + settings.total_ms
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = await self._within(max(1, min(settings.call_ms, end - clock.monotonic_ms())), call)
            except KmsUnavailable as error:
                pause = self._pause_ms(attempt, error)
                if attempt >= settings.attempts or clock.monotonic_ms() + pause >= end:
                    self._note_failure(key, error)
                    raise
                log.debug("%s: attempt %d failed, the next follows in %d ms: %s", self.name, attempt, pause, error)
            except KmsError as error:
                self._note_failure(key, error)
                raise
            except TenantqError:
                raise
            except Exception as error:  # noqa: BLE001  # a client library may raise anything; its text may hold anything
                unexpected = KmsError(f"{self.name}: the call failed in an unexpected way ({type(error).__name__}).")
                self._note_failure(key, unexpected)
                raise unexpected from None
            else:
                self._note_success(key)
                return answer
            await sleep_ms(clock, pause)

    def _pause_ms(self, attempt: int, error: KmsUnavailable) -> int:
        """Return a random part of a growing span, and no less than the other side asked for."""
        asked_for = error.retry_after_ms if "retry_after_ms" in vars(error) else 0
        backoff = Backoff(self._settings.backoff_base_ms, self._settings.backoff_max_ms)
        return max(1, asked_for, backoff.full_jitter_ms(attempt, self._randomness))

    async def _within(self, ms: int, call: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return what ``call`` returns, or raise KmsUnavailable when it takes longer than ``ms`` on the clock."""
        task = asyncio.ensure_future(call())
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(ms, lambda: _let_go(late))
        try:
            await asyncio.wait((task, late), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise KmsUnavailable(f"{self.name}: no answer came within {ms} ms. Try again later.")
            return task.result()
        finally:
            timer.cancel()
            late.cancel()
            task.cancel()

    def _raise_if_resting(self, key: str) -> None:
        rest = self._resting.get(key)
        if rest is None:
            return
        left = rest.until - self._clock.monotonic_ms()
        if left <= 0:
            del self._resting[key]
            return
        error = type(rest.error)(rest.error.message)
        if isinstance(error, KmsUnavailable):
            error.retry_after_ms = max(1, left)
        raise error

    def _note_success(self, key: str) -> None:
        before = self._health.get(key)
        now = self._clock.wall_ms()
        if before is None or before.state != "ok":
            if before is not None:
                log.warning("%s: the key %s works again", self.name, key)
            self._keep(KeyHealth(self.name, key, "ok", since=now, last_ok_at=now))
        else:
            self._keep(msgspec.structs.replace(before, last_ok_at=now))
        self._resting.pop(key, None)

    def _note_failure(self, key: str, error: TenantqError) -> None:
        before = self._health.get(key, KeyHealth(self.name, key))
        state = _state_after(error)
        now = self._clock.wall_ms()
        if before.state != state:
            log.error("%s: the key %s cannot be used: %s", self.name, key, error)
        self._keep(
            msgspec.structs.replace(
                before,
                state=state,
                since=before.since if before.state == state else now,
                failures=before.failures + 1,
                text=error.message,
            )
        )
        self._resting[key] = _Rest(error, self._clock.monotonic_ms() + self._settings.rest_ms)

    def _keep(self, health: KeyHealth) -> None:
        self._health[health.key] = health
        self._health.move_to_end(health.key)
        while len(self._health) > HEALTH_KEYS_MAX:
            forgotten, _ = self._health.popitem(last=False)
            self._resting.pop(forgotten, None)


def _state_after(error: TenantqError) -> KeyState:
    if isinstance(error, KmsUnavailable):
        return "unavailable"
    if isinstance(error, KmsDenied):
        return "denied"
    return "disabled" if isinstance(error, KeyDisabled) else "failed"


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
