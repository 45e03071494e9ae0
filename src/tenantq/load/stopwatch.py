"""Time as a measurement needs it: finer than the milliseconds that everything else goes by, and held by a test."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Stopwatch(Protocol):
    """A reading and a pause, in seconds."""

    def now(self) -> float:
        """Return the seconds since some moment; never jumps."""

    async def sleep(self, seconds: float) -> None:
        """Pause, for a turn of the event loop at least."""


class SystemStopwatch:
    """The machine's finest clock."""

    now = staticmethod(time.perf_counter)

    async def sleep(self, seconds: float) -> None:
        """Pause on the event loop, which may be up to a millisecond late."""
        await asyncio.sleep(seconds)
