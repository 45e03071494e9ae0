"""A clock for measurements, finer than milliseconds. Tests replace it."""

import asyncio
import time
from typing import Protocol


class Stopwatch(Protocol):
    """A clock and a sleep, in seconds."""

    def now(self) -> float:
        """Return monotonic seconds."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for at least one turn of the event loop."""


class SystemStopwatch:
    """The system's performance counter."""

    now = staticmethod(time.perf_counter)

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop, which can be late by a millisecond."""
        await asyncio.sleep(seconds)
