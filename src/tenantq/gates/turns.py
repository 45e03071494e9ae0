"""Turns: starts the requests that have arrived caller by caller, one request each.

The event loop reads all connections with data, and would then start all of their requests at once. A caller with a hundred
connections would be served a hundred times before the next one. While several callers share the server, the number of
requests started per turn of the loop is limited as well, so that rounds run in between.
"""

import asyncio
import sys
from collections import Counter, deque
from typing import Final, Protocol

from tenantq.runtime.loop_slices import loop_slices

EACH_TURN: Final = 32
"""Requests started per turn of the event loop while several callers share it: about the size of a round that tenants share."""
EACH_CALLER: Final = 4
"""Requests of one caller among them: as many as a tenant has in such a round."""
SHARED_LATELY_S: Final = 1.0
"""How long turns stay short after another caller's request."""


class Wake(Protocol):
    """Is woken when its turn has come, such as an asyncio.Future[None]."""

    def done(self) -> bool:
        """Return whether it no longer waits for its turn."""

    def set_result(self, result: None, /) -> None:
        """Wake it."""


class Turns:
    """Wakes the connections whose requests have arrived, in the event loop's next turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slices = loop_slices(loop)
        self._lines: dict[str | None, deque[Wake]] = {}  # by credential, the next one first
        self._scheduled = False
        self._last: str | None = None  # the latest caller
        self._shared_until = 0.0  # on the loop's clock

    def enter(self, caller: str | None, wake: Wake) -> None:
        """Wake ``wake`` in the caller's turn. Callers are distinguished by their unverified credential."""
        if caller != self._last:
            self._last = caller
            self._shared_until = self._slices.shared_until = self._loop.time() + SHARED_LATELY_S
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
                break  # for all others, too
            wake = line.popleft()
            del lines[caller]
            if line:
                lines[caller] = line  # to the end
            if not wake.done():  # otherwise its connection is gone
                wake.set_result(None)
                begun[caller] += 1
                left -= 1
        if lines:
            self._scheduled = True
            self._loop.call_soon(self._begin)
