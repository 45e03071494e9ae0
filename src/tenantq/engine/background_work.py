"""Work on the store that takes long, beside the rounds: compactions, erasures, checkpoints."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_R = TypeVar("_R")


class BackgroundWork:
    """Runs it on threads. Whoever closes the store waits for it first."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    def begin(self, work: Callable[..., _R], *arguments: Any) -> asyncio.Future[_R]:
        """Run ``work`` on a thread; the event loop goes on meanwhile."""
        running = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    async def finished(self) -> None:
        """Return when all of it has ended, however it did."""
        await asyncio.gather(*self._running, return_exceptions=True)
