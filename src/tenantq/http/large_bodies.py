"""Large bodies: how many bytes of them are inflated, decoded and executed at a time.

A body takes several times its size while it is decoded. The bodies beyond the budget wait, and callers take turns.
"""

import asyncio
from collections import deque


class LargeBodies:
    """A budget of bytes that requests with large bodies share."""

    def __init__(self, bytes_max: int) -> None:
        self._max = self._left = bytes_max
        self._waiting: dict[str | None, deque[tuple[int, asyncio.Future[None]]]] = {}  # by credential, next one first

    async def enter(self, caller: str | None, size: int) -> int:
        """Wait until ``size`` bytes are free, at most the whole budget. Return what to give back with ``leave``."""
        size = min(size, self._max)
        if not self._waiting and size <= self._left:
            self._left -= size
            return size
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append((size, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.leave(size)
            raise
        return size

    def leave(self, size: int) -> None:
        """Give bytes back, and admit those who wait for them."""
        self._left += size
        while self._waiting:
            caller, line = next(iter(self._waiting.items()))
            wanted, admitted = line[0]
            if wanted > self._left and not admitted.done():
                return
            line.popleft()
            del self._waiting[caller]
            if line:
                self._waiting[caller] = line  # behind the others
            if not admitted.done():
                self._left -= wanted
                admitted.set_result(None)
