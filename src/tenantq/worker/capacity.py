"""What a worker holds, and how much more it may ask for."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tenantq.domain import limits

if TYPE_CHECKING:
    from tenantq.worker.job import Job

RESERVED_S: Final = 1.0
"""So long a poll that was to be answered at once counts as if it had brought what it asked for; a limit may have it pause for longer."""


class Capacity:
    """At most ``concurrency + prefetch`` messages, those that late threads keep the place of among them.

    Who polls asks here first, and waits here while there is no room: in turns, so that no queue is kept out by another.
    """

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self.waiting: deque[Job] = deque()  # leased, and no place to run yet
        self.running: dict[asyncio.Task[None], Job] = {}  # at work, or being settled
        self.kept: set[asyncio.Future[Any]] = (
            set()
        )  # threads that go on though nobody waits for them; each keeps a place
        self.ended_count = 0  # handlers that have ended; each may have added messages
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._reserved = 0
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def has_places(self) -> bool:
        """Whether a handler can ever begin, before a thread ends that nobody waits for."""
        return len(self.kept) < self._concurrency

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self.waiting and not self.running

    @property
    def space(self) -> int:
        """How many more messages may be held. What comes beyond that is to be given back."""
        if not self.has_places:
            return 0
        held = len(self.waiting) + len(self.running) + len(self.kept)
        return max(0, self._concurrency + self._prefetch - held)

    async def ask(self, parts: int, *, reserve: bool) -> Asking:
        """Return what to poll for, in turn, once that is worth a request: the room there is, or one of so many parts of it.

        With ``reserve`` nobody else is told of the same room before the poll is answered. That is for polls that are answered at
        once: one that waits for messages must not keep the room from queues that have some.
        """
        async with self._turn:  # first come, first served
            while not self._is_worth_asking():
                await self.change()
            count = min(max(1, self._free // parts), limits.BATCH_MESSAGES_MAX)
            return Asking(self, count, reserve=reserve)

    @property
    def _free(self) -> int:
        return self.space - self._reserved

    def _is_worth_asking(self) -> bool:
        free = self._free
        return free >= max(1, self._prefetch // 2) or (free > 0 and not self.waiting)

    def reserve(self, count: int) -> None:
        """Take ``count`` of the room away, or give it back where that is below 0."""
        self._reserved += count
        if count < 0:
            self.changed()

    def changed(self) -> None:
        """Have everybody look again."""
        self._changed.set()

    async def change(self) -> None:
        """Return when something has changed."""
        self._changed.clear()
        await self._changed.wait()


class Asking:
    """A poll that is out, and the room that is reserved for it."""

    __slots__ = ("_reserved", "_room", "_timer", "count")

    def __init__(self, room: Capacity, count: int, *, reserve: bool) -> None:
        self.count = count
        self._room = room
        self._reserved = count if reserve else 0
        self._timer: asyncio.TimerHandle | None = None
        if reserve:
            room.reserve(count)
            self._timer = asyncio.get_running_loop().call_later(RESERVED_S, self.end)

    def end(self) -> None:
        """Give the room back; may be called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._room.reserve(-self._reserved)
