"""Runs work once for all callers that want it at the same time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tenantq.errors import KmsUnavailable, TenantqError

JointWork = Callable[[], Coroutine[Any, Any, None]]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class SingleFlight:
    """Tasks in progress, by name."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._tasks: dict[str | int, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: str | int) -> bool:
        return name in self._tasks

    def begin(self, name: str | int, work: JointWork) -> asyncio.Task[None]:
        """Return the task of this name, started if necessary."""
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = self._spawn(work())
            task.add_done_callback(lambda _: self._tasks.pop(name, None))
        return task

    async def join(self, name: str | int, work: JointWork) -> None:
        """Wait for the task of this name, started if necessary. Cancelling a caller does not cancel the task."""
        task = self.begin(name, work)
        await asyncio.wait((task,))
        if task.cancelled():
            raise KmsUnavailable("The vault is closing. Try again later.")
        error = task.exception()
        if error is not None:
            raise error.copy() if isinstance(error, TenantqError) else error
