"""Clocks. They are injected, so that tests control the time."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tenantq.runtime.futures import wake


class Timer(Protocol):
    """A callback that has not fired yet."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock(Protocol):
    """A wall clock, a monotonic clock and timers. Times are milliseconds unless the name says otherwise."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970. May jump in both directions."""

    def monotonic_ms(self) -> int:
        """Milliseconds since the machine started; never jumps."""

    def monotonic_us(self) -> int:
        """Microseconds on the same clock, for short durations."""

    def boot_id(self) -> bytes:
        """Sixteen bytes that change when ``monotonic_ms`` restarts."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` on the event loop after ``delay_ms`` of monotonic time."""


async def sleep_ms(clock: Clock, ms: int) -> None:
    """Return when ``ms`` have passed on ``clock``."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(ms, lambda: wake(over))
    try:
        await over
    finally:
        timer.cancel()


class SystemClock:
    """The clocks of the machine. On Linux, monotonic time includes the time that the machine sleeps."""

    _source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def wall_ms(self) -> int:
        """Read the wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Read the boot-time clock."""
        return time.clock_gettime_ns(self._source) // 1_000_000

    def monotonic_us(self) -> int:
        """Read the boot-time clock."""
        return time.clock_gettime_ns(self._source) // 1_000

    def boot_id(self) -> bytes:
        """Read the kernel's boot id; zeros if the system has none."""
        try:
            text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
            return bytes.fromhex(text.strip().replace("-", ""))
        except (OSError, ValueError):
            return bytes(16)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Start a timer of the running event loop."""
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, callback)


class _ManualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock for tests. Time passes only with ``advance``; the wall clock can jump separately."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._boot_id = b"manual-clock-0001"[:16]
        self._timers: list[tuple[int, int, _ManualTimer]] = []
        self._tie = itertools.count()

    def wall_ms(self) -> int:
        """Return the wall clock as set."""
        return self._wall_ms

    def monotonic_ms(self) -> int:
        """Return the time that has passed."""
        return self._monotonic_ms

    def monotonic_us(self) -> int:
        """Return the time that has passed."""
        return self._monotonic_ms * 1_000

    def boot_id(self) -> bytes:
        """Return the current boot id, which ``reboot`` changes."""
        return self._boot_id

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Keep ``callback`` until ``advance`` passes its time."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._monotonic_ms + max(0, delay_ms), next(self._tie), timer))
        return timer

    def advance(self, ms: int) -> None:
        """Advance both clocks by ``ms`` and run the timers that are due, in order."""
        end = self._monotonic_ms + ms
        while self._timers and self._timers[0][0] <= end:
            at, _, timer = heapq.heappop(self._timers)
            self._pass(max(0, at - self._monotonic_ms))
            if timer.callback is not None:
                timer.callback()
        self._pass(end - self._monotonic_ms)

    def jump_wall(self, ms: int) -> None:
        """Move the wall clock by ``ms``, which may be negative. Monotonic time does not change."""
        self._wall_ms += ms

    def reboot(self) -> None:
        """Restart monotonic time with another boot id, and drop all timers."""
        self._monotonic_ms = 1_000
        self._boot_id = bytes(b ^ 0x5A for b in self._boot_id)
        self._timers.clear()

    def _pass(self, ms: int) -> None:
        self._monotonic_ms += ms
        self._wall_ms += ms
