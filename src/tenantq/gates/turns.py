"""Turns: of the requests that have arrived, those of one caller do not all go before those of another.

The event loop reads every connection that has something, and would then begin all those requests before anything else. A caller with a
hundred connections would be served a hundred times before the next one. Here each caller has one request begun in its turn, and while
several callers wait, or did lately, only so many are begun before the rounds they are for get to run: who comes next must not find the
loop busy with a hundred of a loud one.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from typing import Final, Protocol

EACH_TURN: Final = 32
"""Requests begun in one turn of the event loop while several callers share it; about what goes into a round that tenants share."""
EACH_CALLER: Final = 4
"""So many of them may be one caller's: as many as a tenant has in such a round."""
SHARED_LATELY_S: Final = 1.0
"""How long turns stay short after another caller's request."""


class Wake(Protocol):
    """What is told that its turn has come; an asyncio.Future[None] is one."""

    def done(self) -> bool:
        """Tell whether nobody waits for the turn any more."""

    def set_result(self, result: None, /) -> None:
        """Begin."""


class Turns:
    """Wakes the connections whose requests have arrived, in the event loop's next turns."""

    __slots__ = ("_last", "_lines", "_loop", "_scheduled", "_shared_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[str | None, deque[Wake]] = {}  # by credential: who is next stands first
        self._scheduled = False
        self._last: str | None = None  # who came last
        self._shared_until = 0.0  # on the loop's clock

    def enter(self, caller: str | None, wake: Wake) -> None:
        """Have ``wake`` resolved in the caller's turn. The caller is told by its credential alone, since it was not checked yet."""
        if caller != self._last:
            self._last = caller
            self._shared_until = self._loop.time() + SHARED_LATELY_S
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
        shared = len(lines) > 1 or self._loop.time() < self._shared_until
        left, each = (EACH_TURN, EACH_CALLER) if shared else (sys.maxsize, sys.maxsize)
        begun: Counter[str | None] = Counter()
        while lines and left > 0:
            caller, line = next(iter(lines.items()))
            if begun[caller] >= each:
                break  # and so have all others who are still here
            wake = line.popleft()
            del lines[caller]
            if line:
                lines[caller] = line  # behind the others
            if not wake.done():  # else its connection is gone
                wake.set_result(None)
                begun[caller] += 1
                left -= 1
        if lines:
            self._scheduled = True
            self._loop.call_soon(self._begin)
