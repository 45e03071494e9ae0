"""Work that several callers want at a time is done once, and all of them get its outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tenantq.errors import KmsUnavailable, TenantqError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Work = Callable[[], Coroutine[Any, Any, None]]
    Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class SingleFlight:
    """Works under way, by name."""

    __slots__ = ("_spawn", "_tasks")

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._tasks: dict[str | int, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: str | int) -> bool:
        return name in self._tasks

    def begin(self, name: str | int, work: Work) -> asyncio.Task[None]:
        """Return the work of this name that is under way, or begin it."""
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = self._spawn(work())
            task.add_done_callback(lambda _: self._tasks.pop(name, None))
        return task

    async def join(self, name: str | int, work: Work) -> None:
        """Wait for the work of this name, begun now or before. Who gives up waiting does not end it for the others."""
        task = self.begin(name, work)
        await asyncio.wait((task,))
        if task.cancelled():
            raise KmsUnavailable("The vault is closing.")
        error = task.exception()
        if isinstance(error, TenantqError):
            raise _anew(error)
        if error is not None:
            raise error


def _anew(error: TenantqError) -> TenantqError:
    """Return an equal error for one of those who wait: a single one would collect the traceback of them all."""
    again = type(error)(error.message)
    if isinstance(error, KmsUnavailable) and isinstance(again, KmsUnavailable):
        again.retry_after_ms = error.retry_after_ms
    return again
