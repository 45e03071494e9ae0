"""The queue of a measurement: its own, or an existing empty one."""

from __future__ import annotations

from typing import Final

from tenantq.client import AsyncQueue
from tenantq.domain.formatting import plural
from tenantq.errors import Conflict, Forbidden, NotFound, TenantqError
from tenantq.wire.queues import QueueReply

_ATTEMPTS: Final = 1_000
"""So many attempts that no dead-letter queue is created."""
_REASON: Final = "end of a tenantq bench"


class BenchQueue:
    """A queue that is empty at the start of each case."""

    def __init__(self, queue: AsyncQueue, *, reuse: bool) -> None:
        self._queue = queue
        self._reuse = reuse
        self._is_own = False
        self._added_before = 0
        self._added_at_most = 0  # by the measurements so far
        self._is_used = False

    async def open(self) -> None:
        """Create the queue, or check that the existing one may be used and is empty. Raises Conflict otherwise."""
        name = self._queue.name
        try:
            there = await self._queue.stats()
        except NotFound:
            await self._make()
            return
        if not self._reuse:
            raise Conflict(
                f"queue {name} already exists. Choose another name, or give --reuse to use it while it is empty"
            )
        held = _held(there)
        if held or there.status != "active":
            state = f"holds {plural(held, 'message')}" if held else f"is {there.status}"
            raise Conflict(f"queue {name} {state}; --reuse requires an empty, active queue")
        self._added_before = there.added_total

    async def _make(self) -> None:
        try:
            await self._queue.configure(max_attempts=_ATTEMPTS)
        except Forbidden as error:
            error.args = (f"{error.message} Or give an empty queue to use, with --queue and --reuse.",)
            raise
        self._is_own = True

    def added(self, at_most: int) -> None:
        """Record the maximum of messages that a measurement added."""
        self._is_used = True
        self._added_at_most += at_most

    async def empty(self) -> None:
        """Empty the queue for the next measurement."""
        if self._is_used and self._is_own:
            await self._delete()
            await self._make()  # a new queue has no deleted rows that slow it down
        elif self._is_used:
            await self._purge()
        self._is_used = False

    async def close(self) -> list[str]:
        """Delete the queue, or empty it if it existed before. Returns what could not be removed, and why."""
        try:
            if self._is_own:
                await self._delete()
            else:
                await self._purge()
        except NotFound:
            return []  # deleted by someone else
        except TenantqError as error:
            what = "the queue" if self._is_own else "messages in the queue"
            return [f"{what} {self._queue.name}: {error.message}"]
        return []

    async def _delete(self) -> None:
        await self._queue.delete(confirm=self._queue.name, reason=_REASON, force=True)

    async def _purge(self) -> None:
        there = await self._queue.stats()
        if there.added_total - self._added_before > self._added_at_most:
            raise Conflict("another client added messages, so the queue was not purged")
        if _held(there):
            await self._queue.purge(confirm=self._queue.name, reason=_REASON)


def _held(stats: QueueReply) -> int:
    return stats.ready + stats.delayed + stats.in_flight + stats.blocked
