"""Long work on the store that runs on threads, beside the rounds."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

_R = TypeVar("_R")


class BackgroundWork:
    """Runs long work on the store on threads: compactions, erasures, checkpoints. It must finish before the store closes."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    def begin(self, work: Callable[..., _R], *arguments: Any) -> asyncio.Future[_R]:
        """Run ``work`` on a thread."""
        running = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    async def finished(self) -> None:
        """Return when all work has ended, successfully or not."""
        await asyncio.gather(*self._running, return_exceptions=True)
