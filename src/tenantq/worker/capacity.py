"""The messages a worker holds, and how many more it may poll."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from tenantq.domain import limits
from tenantq.worker.job import Job

RESERVED_S: Final = 1.0
"""How long a poll without wait keeps its reservation. A limit at the server may delay the poll for longer."""


class WorkerCapacity:
    """Holds at most ``concurrency + prefetch`` messages, including the slots of threads that outlived their timeout.

    Pollers reserve capacity here before each poll, first come, first served, so that no queue starves another.
    """

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self.waiting: deque[Job] = deque()  # leased, waiting for a slot
        self.running: dict[asyncio.Task[None], Job] = {}  # running, or being settled
        self.overdue: set[asyncio.Future[Any]] = set()  # threads that outlived their timeout; each occupies a slot
        self.ended_count = 0  # handlers that ended; each may have added messages
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._reserved = 0
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def has_slots(self) -> bool:
        """Whether any slot is not occupied by an overdue thread."""
        return len(self.overdue) < self._concurrency

    @property
    def is_empty(self) -> bool:
        """Whether no message is held."""
        return not self.waiting and not self.running

    @property
    def space(self) -> int:
        """How many more messages may be held. Messages beyond that must be released."""
        if not self.has_slots:
            return 0
        held = len(self.waiting) + len(self.running) + len(self.overdue)
        return max(0, self._concurrency + self._prefetch - held)

    async def ask(self, parts: int, *, reserve: bool) -> PollReservation:
        """Wait until a poll is worthwhile and return how many messages to ask for: the free capacity divided by ``parts``.

        With ``reserve`` no other poller gets the same capacity until the poll is answered. Only polls without wait reserve: a
        poll that waits for messages must not block queues that have some.
        """
        async with self._turn:
            while not self._is_worth_polling():
                await self.change()
            count = min(max(1, self._free // parts), limits.BATCH_MESSAGES_MAX)
            return PollReservation(self, count, reserve=reserve)

    @property
    def _free(self) -> int:
        return self.space - self._reserved

    def _is_worth_polling(self) -> bool:
        free = self._free
        return free >= max(1, self._prefetch // 2) or (free > 0 and not self.waiting)

    def reserve(self, count: int) -> None:
        """Reserve ``count`` messages, or return them if it is negative."""
        self._reserved += count
        if count < 0:
            self.changed()

    def changed(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.set()

    async def change(self) -> None:
        """Wait for a change."""
        self._changed.clear()
        await self._changed.wait()


class PollReservation:
    """The capacity of one poll in flight."""

    __slots__ = ("_capacity", "_reserved", "_timer", "count")

    def __init__(self, capacity: WorkerCapacity, count: int, *, reserve: bool) -> None:
        self.count = count
        self._capacity = capacity
        self._reserved = count if reserve else 0
        self._timer: asyncio.TimerHandle | None = None
        if reserve:
            capacity.reserve(count)
            self._timer = asyncio.get_running_loop().call_later(RESERVED_S, self.end)

    def end(self) -> None:
        """Return the reserved capacity. May be called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._capacity.reserve(-self._reserved)
