"""Turns: of the requests that have arrived, those of one caller do not all go before those of another.

The event loop reads every connection that has something, and would then begin all those requests before anything else. A caller with a
hundred connections would be served a hundred times before the next one. Here each caller has one request begun in its turn, and while
several callers wait only so many are begun before the rounds they are for get to run.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

EACH_TURN: Final = 32
"""Requests begun in one turn of the event loop while several callers wait; about what goes into a round that tenants share."""


class Turns:
    """Wakes the connections whose requests have arrived, in the event loop's next turns."""

    __slots__ = ("_lines", "_loop", "_scheduled")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[str | None, deque[asyncio.Future[None]]] = {}  # by credential: who is next stands first
        self._scheduled = False

    def enter(self, caller: str | None, wake: asyncio.Future[None]) -> None:
        """Have ``wake`` resolved in the caller's turn. The caller is told by its credential alone, since it was not checked yet."""
        line = self._lines.get(caller)
        if line is None:
            line = self._lines[caller] = deque()
        line.append(wake)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        lines = self._lines
        left = EACH_TURN if len(lines) > 1 else len(next(iter(lines.values())))
        while lines and left > 0:
            caller, line = next(iter(lines.items()))
            wake = line.popleft()
            del lines[caller]
            if line:
                lines[caller] = line  # behind the others
            if not wake.done():  # else its connection is gone
                wake.set_result(None)
                left -= 1
        if lines:
            self._scheduled = True
            self._loop.call_soon(self._begin)
