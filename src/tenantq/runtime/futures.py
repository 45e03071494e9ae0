"""Futures and tasks."""

import asyncio
import logging
from asyncio import Future
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger("tenantq")
_R = TypeVar("_R")


def wake(future: Future[None] | None) -> None:
    """Complete a future unless it is done."""
    if future is not None and not future.done():
        future.set_result(None)


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of these is done, and cancel the others."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in tasks:
            one.cancel()


async def run_until(stop: Future[Any], work: Coroutine[Any, Any, _R]) -> Future[_R]:
    """Run ``work``, and cancel it when ``stop`` is done first. Return its task, which has ended."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    return task


class BackgroundTasks:
    """Runs work that no caller waits for. A failure is logged."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    async def finish(self) -> None:
        """Return when all tasks have ended, also those that they start. Cancelling the caller cancels none."""
        while self._running:
            await asyncio.wait(self._running)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed: %s", error)
