"""A provider with retries, limits in number and time, and the health of every key.

After a failure the key cools down: for a short time every further call fails at once with the same error. So callers do not wait
needlessly, and an overloaded key management system is not flooded.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from tenantq.errors import DecryptionFailed, KeyDisabled, KmsDenied, KmsError, KmsUnavailable, TenantqError
from tenantq.kms.interface import Context, KeyHealth, KeyState, KeyWrapper
from tenantq.kms.settings import RetrySettings
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import Clock, sleep_ms
from tenantq.runtime.futures import wake
from tenantq.runtime.histogram import Histogram
from tenantq.runtime.randomness import Randomness

log = logging.getLogger("tenantq")

HEALTH_KEYS_MAX: Final = 10_000
PROBE: Final = b"tenantq checks that this key works"[:32]
PROBE_CONTEXT: Final = {"tenantq": "check"}


class _Cooldown(NamedTuple):
    """The last error of a key, raised to all callers until the end of the cooldown."""

    error: TenantqError
    until: int  # monotonic


class ResilientKms:
    """One key management system with retries and time limits."""

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
        self._cooldowns: dict[str, _Cooldown] = {}
        self.took = Histogram()  # the attempts
        self.failed = 0  # calls

    def check_key(self, key: str) -> None:
        self._wrapper.check_key(key)

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        """Return ``plaintext`` wrapped. Raises KmsUnavailable or KmsError."""
        return await self._call(key, lambda: self._wrapper.wrap(key, plaintext, context))

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        """Return the plaintext. Raises KmsUnavailable, KmsError or DecryptionFailed."""
        return await self._call(key, lambda: self._wrapper.unwrap(key, wrapped, context))

    async def check(self, key: str) -> KeyHealth:
        """Wrap and unwrap a probe and return the key's health. A key that cools down is not called."""
        try:
            wrapped = await self.wrap(key, PROBE, PROBE_CONTEXT)
            if await self.unwrap(key, wrapped, PROBE_CONTEXT) != PROBE:
                self._record_failure(key, KmsError(f"{self.name}: the key unwraps to different bytes than it wrapped."))
        except DecryptionFailed as error:  # of what was just wrapped, so the key is at fault
            self._record_failure(key, error)
        except TenantqError:
            pass  # recorded where it was raised
        return self._health.get(key, KeyHealth(self.name, key))

    def health(self) -> list[KeyHealth]:
        """Return the health of the HEALTH_KEYS_MAX most recently used keys."""
        return list(self._health.values())

    def forget_health(self, key: str) -> None:
        """Drop the health of a key that is not in use. It still cools down."""
        self._health.pop(key, None)

    async def close(self) -> None:
        await self._wrapper.close()

    async def _call(self, key: str, call: Callable[[], Awaitable[bytes]]) -> bytes:
        self._raise_if_cooling(key)
        settings, clock = self._settings, self._clock
        end = clock.monotonic_ms() + settings.total_ms
        attempt = 0
        while True:
            attempt += 1
            started_us = clock.monotonic_us()
            try:
                answer = await self._within(max(1, min(settings.call_ms, end - clock.monotonic_ms())), call)
            except KmsUnavailable as error:
                pause = self._pause_ms(attempt, error)
                if attempt >= settings.attempts or clock.monotonic_ms() + pause >= end:
                    self._record_failure(key, error)
                    raise
                log.debug("%s: attempt %d failed, retrying in %d ms: %s", self.name, attempt, pause, error)
            except KmsError as error:
                self._record_failure(key, error)
                raise
            except TenantqError:
                raise
            except Exception as error:  # noqa: BLE001  # a client library may raise anything, with secrets in the text
                unexpected = KmsError(
                    f"{self.name}: the call failed with an unexpected error ({type(error).__name__})."
                )
                self._record_failure(key, unexpected)
                raise unexpected from None
            else:
                self._record_success(key)
                return answer
            finally:
                self.took.count(clock.monotonic_us() - started_us)
            await sleep_ms(clock, pause)

    def _pause_ms(self, attempt: int, error: KmsUnavailable) -> int:
        """Return the backoff with full jitter, at least what the provider asked for."""
        asked_for = error.retry_after_ms if "retry_after_ms" in vars(error) else 0
        backoff = Backoff(self._settings.backoff_base_ms, self._settings.backoff_max_ms)
        return max(1, asked_for, backoff.full_jitter_ms(attempt, self._randomness))

    async def _within(self, ms: int, call: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the result of ``call``. Raises KmsUnavailable if it takes longer than ``ms``."""
        task = asyncio.ensure_future(call())
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(ms, lambda: wake(late))
        try:
            await asyncio.wait((task, late), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise KmsUnavailable(f"{self.name}: no reply within {ms} ms. Try again later.")
            return task.result()
        finally:
            timer.cancel()
            late.cancel()
            task.cancel()

    def _raise_if_cooling(self, key: str) -> None:
        cooldown = self._cooldowns.get(key)
        if cooldown is None:
            return
        left = cooldown.until - self._clock.monotonic_ms()
        if left <= 0:
            del self._cooldowns[key]
            return
        error = cooldown.error.copy()
        if isinstance(error, KmsUnavailable):
            error.retry_after_ms = max(1, left)
        raise error

    def _record_success(self, key: str) -> None:
        before = self._health.get(key)
        now = self._clock.wall_ms()
        if before is None or before.state != "ok":
            if before is not None:
                log.warning("%s: key %s works again", self.name, key)
            self._keep(KeyHealth(self.name, key, "ok", since=now, last_ok_at=now))
        else:
            self._keep(msgspec.structs.replace(before, last_ok_at=now))
        self._cooldowns.pop(key, None)

    def _record_failure(self, key: str, error: TenantqError) -> None:
        before = self._health.get(key, KeyHealth(self.name, key))
        state = _state_after(error)
        self.failed += 1
        now = self._clock.wall_ms()
        if before.state != state:
            log.error("%s: key %s cannot be used: %s", self.name, key, error)
        self._keep(
            msgspec.structs.replace(
                before,
                state=state,
                since=before.since if before.state == state else now,
                failures=before.failures + 1,
                text=error.message,
            )
        )
        self._cooldowns[key] = _Cooldown(error, self._clock.monotonic_ms() + self._settings.rest_ms)

    def _keep(self, health: KeyHealth) -> None:
        self._health[health.key] = health
        self._health.move_to_end(health.key)
        while len(self._health) > HEALTH_KEYS_MAX:
            forgotten, _ = self._health.popitem(last=False)
            self._cooldowns.pop(forgotten, None)


def _state_after(error: TenantqError) -> KeyState:
    if isinstance(error, KmsUnavailable):
        return "unavailable"
    if isinstance(error, KmsDenied):
        return "denied"
    return "disabled" if isinstance(error, KeyDisabled) else "failed"
