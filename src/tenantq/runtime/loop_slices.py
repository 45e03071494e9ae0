"""Slices of long work on an event loop, so that short requests run in between."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from tenantq.runtime.futures import wake

SLICE_ITEMS: Final = 128
SLICE_BYTES: Final = 256 << 10
JOINED_AT_ONCE_BYTES: Final = 1 << 20
"""From this size on, CPython joins bytes without holding the GIL."""

_T = TypeVar("_T")
_R = TypeVar("_R")


_PAUSE_TIMES: Final = 2
_PAUSE_S_MIN: Final = 0.001  # shorter pauses add up first: timers are not more exact
_PAUSE_S_MAX: Final = 0.02


class LoopSlices:
    """The long work that waits for a slice of an event loop. One slice runs per turn of the loop, in order of arrival.

    While several callers share the loop, long work gets a third of its time: after a slice, the loop is free for short
    requests for twice as long as the slice took. A short request needs several turns, and would wait for a slice in each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None] | Callable[[], None]] = deque()
        self._is_scheduled = False
        self._began_at = 0.0
        self._owed_s = 0.0  # to short requests
        self.shared_until = 0.0  # on the loop's clock; set when another caller's request arrives

    def enter(self, work: asyncio.Future[None] | Callable[[], None]) -> None:
        """Wake a future, or call a function, when its slice begins."""
        self._waiting.append(work)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if not self._waiting:
            self._is_scheduled = False
            return
        call_soon, work = self._loop.call_soon, self._waiting.popleft()
        call_soon(self._note_start)
        if isinstance(work, asyncio.Future):
            wake(work)  # its task runs right after the note
        else:
            call_soon(work)
        call_soon(self._end)

    def _note_start(self) -> None:
        self._began_at = self._loop.time()

    def _end(self) -> None:
        now = self._loop.time()
        if now >= self.shared_until:
            self._owed_s = 0.0
        else:
            self._owed_s += _PAUSE_TIMES * (now - self._began_at)
            if self._owed_s >= _PAUSE_S_MIN:
                pause_s, self._owed_s = min(self._owed_s, _PAUSE_S_MAX), 0.0
                self._loop.call_later(pause_s, self._begin)
                return
        self._begin()


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopSlices] = WeakKeyDictionary()


def loop_slices(loop: asyncio.AbstractEventLoop) -> LoopSlices:
    """Return the slices of an event loop."""
    slices = _of_loops.get(loop)
    if slices is None:
        slices = _of_loops[loop] = LoopSlices(loop)
    return slices


async def next_slice() -> None:
    """Let other tasks run. Of all tasks that wait here, one continues per turn of the loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop_slices(loop).enter(future)
    await future


def slices_of(items: Sequence[_T], size_of: Callable[[_T], int]) -> Iterator[Sequence[_T]]:
    """Yield the items in slices of up to ``SLICE_ITEMS`` items, each of which ends at ``SLICE_BYTES`` bytes."""
    start = size = 0
    for at, one in enumerate(items, 1):
        size += size_of(one)
        if at - start == SLICE_ITEMS or size >= SLICE_BYTES:
            yield items[start:at]
            start, size = at, 0
    if start < len(items):
        yield items[start:]


async def convert(items: Sequence[_T], one: Callable[[_T], _R], size_of: Callable[[_T], int]) -> list[_R]:
    """Return ``one(item)`` of every item. Other tasks run between two slices."""
    converted: list[_R] = []
    for part in slices_of(items, size_of):
        if converted:
            await next_slice()
        converted += [one(item) for item in part]
    return converted


async def joined(parts: Sequence[bytes]) -> bytes:
    """Return the parts as one. Many megabytes are joined on a thread: copying them would take several milliseconds."""
    if sum(map(len, parts)) <= JOINED_AT_ONCE_BYTES:
        return b"".join(parts)
    return await asyncio.to_thread(b"".join, parts)
