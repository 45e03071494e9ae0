"""Slices of long work on an event loop, so that short requests run in between."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

from tenantq.runtime.futures import wake

SLICE_ITEMS: Final = 64
SLICE_BYTES: Final = 256 << 10


class _LoopSlices:
    """The tasks that wait to continue long work. One of them continues per turn of the loop, in order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter(self, future: asyncio.Future[None]) -> None:
        self._waiting.append(future)
        if len(self._waiting) == 1:
            self._call_soon(self._continue_one)

    def _continue_one(self) -> None:
        wake(self._waiting.popleft())
        if self._waiting:
            self._call_soon(self._continue_one)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopSlices] = WeakKeyDictionary()


async def next_slice() -> None:
    """Let other tasks run. Of all tasks that wait here, one continues per turn of the loop."""
    loop = asyncio.get_running_loop()
    slices = _of_loops.get(loop)
    if slices is None:
        slices = _of_loops[loop] = _LoopSlices(loop)
    future: asyncio.Future[None] = loop.create_future()
    slices.enter(future)
    await future


class SlicedWork:
    """Work on many items that pauses after every ``SLICE_ITEMS`` items or ``SLICE_BYTES`` bytes.

    Use it as ``if work.ends_slice(size): await next_slice()``. A coroutine per item would cost more than most items.
    """

    __slots__ = ("_bytes_left", "_items_left")

    def __init__(self) -> None:
        self._items_left, self._bytes_left = SLICE_ITEMS, SLICE_BYTES

    def ends_slice(self, size: int) -> bool:
        """Count an item of ``size`` bytes; return whether to pause now."""
        self._items_left -= 1
        self._bytes_left -= size
        if self._items_left > 0 and self._bytes_left > 0:
            return False
        self._items_left, self._bytes_left = SLICE_ITEMS, SLICE_BYTES
        return True
