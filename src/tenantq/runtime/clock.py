"""Clocks, handed in from outside so that a test can hold them."""

from __future__ import annotations

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
        """Make sure that the callback never fires."""


class Clock(Protocol):
    """Readings and a timer. All in milliseconds but one."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 as the machine believes; may jump either way."""

    def monotonic_ms(self) -> int:
        """Milliseconds since the machine started; never jumps."""

    def monotonic_us(self) -> int:
        """Microseconds on the same clock, to measure what is short."""

    def boot_id(self) -> bytes:
        """Sixteen bytes that change when ``monotonic_ms`` starts anew."""

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
    """The machine's clocks. Monotonic time goes on while the machine sleeps, where the system tells."""

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
        """Read the kernel's boot id; zeros where there is none."""
        try:
            text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
            return bytes.fromhex(text.strip().replace("-", ""))
        except (OSError, ValueError):
            return bytes(16)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Arm a timer of the running event loop."""
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, callback)


class _ManualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock for tests: time passes when told to, and the wall clock can jump by itself."""

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
        """Return the id of the pretended boot."""
        return self._boot_id

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Keep ``callback`` until ``advance`` passes its time."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._monotonic_ms + max(0, delay_ms), next(self._tie), timer))
        return timer

    def advance(self, ms: int) -> None:
        """Let ``ms`` pass on both clocks, firing timers in order on the way."""
        end = self._monotonic_ms + ms
        while self._timers and self._timers[0][0] <= end:
            at, _, timer = heapq.heappop(self._timers)
            self._pass(max(0, at - self._monotonic_ms))
            if timer.callback is not None:
                timer.callback()
        self._pass(end - self._monotonic_ms)

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock ahead (or back, below zero) without any time passing."""
        self._wall_ms += ms

    def reboot(self) -> None:
        """Start monotonic time anew under another boot id, as a machine does."""
        self._monotonic_ms = 1_000
        self._boot_id = bytes(b ^ 0x5A for b in self._boot_id)
        self._timers.clear()

    def _pass(self, ms: int) -> None:
        self._monotonic_ms += ms
        self._wall_ms += ms
