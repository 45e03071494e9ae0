"""The waits of the calls of one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


class CallWait:
    """Ends the wait of the current call of a connection, if the client leaves or the listener closes."""

    __slots__ = ("_is_abandoned", "_is_waiting", "_task", "is_stopped")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task  # that answers all calls of the connection
        self._is_waiting = False
        self._is_abandoned = False
        self.is_stopped = False

    def stop(self) -> None:
        """Answer the current call now if it is waiting. Later calls do not wait."""
        if not self.is_stopped:
            self.is_stopped = True
            if self._is_waiting:
                self._task.cancel()

    def abandon(self) -> None:
        """Cancel the current call if it is waiting: nobody will read its reply."""
        self._is_abandoned = True
        if self._is_waiting:
            self._task.cancel()

    async def unless_stopped(self, work: Awaitable[_T], instead: _T) -> _T:
        """Return the result of work that may wait, or ``instead`` once the wait is stopped. Cancels the work then."""
        was_stopped = self.is_stopped
        if was_stopped:
            if asyncio.iscoroutine(work):
                work.close()
            return instead
        self._is_waiting = True
        try:
            return await work
        except asyncio.CancelledError:
            if self._is_abandoned or not self.is_stopped:
                raise
            return instead
        finally:
            self._is_waiting = False
            if self.is_stopped:
                self._task.uncancel()
