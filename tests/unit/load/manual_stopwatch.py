"""A stopwatch whose time advances when all tasks wait for it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

TURN_S = 0.000_1
"""What a turn of the event loop takes, at least."""


class ManualStopwatch:
    """Advances from one sleeper's due time to the next in ``run``."""

    def __init__(self) -> None:
        self._now = 128.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._tie = itertools.count()

    def now(self) -> float:
        """Return the time."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait until ``run`` has advanced to that time."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + max(TURN_S, seconds), next(self._tie), woken))
        await woken

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` to its end, and advance the time when it waits for nothing else."""
        task = asyncio.create_task(work)
        while not task.done():
            for _ in range(20):
                await asyncio.sleep(0)
            if self._sleepers and not task.done():
                at, _, woken = heapq.heappop(self._sleepers)
                if not woken.done():
                    self._now = max(self._now, at)
                    woken.set_result(None)
        await task
