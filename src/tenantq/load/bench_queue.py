"""The queue that a measurement works on: its own, made and deleted, or an empty one that is lent to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantq.domain.formatting import plural
from tenantq.errors import Conflict, Forbidden, NotFound, TenantqError

if TYPE_CHECKING:
    from tenantq.client import AsyncQueue
    from tenantq.wire.queues import QueueReply

_ATTEMPTS: Final = 1_000
"""Deliveries before a message is a dead letter: so many that no dead-letter queue comes to be."""
_REASON: Final = "tenantq bench is done with it"


class BenchQueue:
    """One queue, empty at the start of each case. What it is called is never that of a queue in use."""

    def __init__(self, queue: AsyncQueue, *, reuse: bool) -> None:
        self._queue = queue
        self._reuse = reuse
        self._is_own = False
        self._added_before = 0
        self._added_at_most = 0  # by the measurements so far
        self._is_used = False

    async def open(self) -> None:
        """Make the queue, or see that the one that is there is empty and lent. Raises Conflict and leaves it alone otherwise."""
        name = self._queue.name
        try:
            there = await self._queue.stats()
        except NotFound:
            await self._make()
            return
        if not self._reuse:
            raise Conflict(
                f"there is a queue {name} already: name another, or give --reuse if it is empty and yours to use"
            )
        held = _held(there)
        if held or there.status != "active":
            state = f"holds {plural(held, 'message')}" if held else f"is {there.status}"
            raise Conflict(f"the queue {name} {state}: only an empty, active one is used")
        self._added_before = there.added_total

    async def _make(self) -> None:
        try:
            await self._queue.configure(max_attempts=_ATTEMPTS)
        except Forbidden as error:
            error.args = (f"{error.message} Or give an empty queue to use, with --queue and --reuse.",)
            raise
        self._is_own = True

    def added(self, at_most: int) -> None:
        """Note how many messages a measurement may have added."""
        self._is_used = True
        self._added_at_most += at_most

    async def empty(self) -> None:
        """Have it as new for the next measurement."""
        if self._is_used and self._is_own:
            await self._delete()
            await self._make()  # another one of the same name: nothing of the old one's rows is in its way
        elif self._is_used:
            await self._purge()
        self._is_used = False

    async def close(self) -> list[str]:
        """Delete it, or empty it where it was lent; return what is left behind, and why."""
        try:
            if self._is_own:
                await self._delete()
            else:
                await self._purge()
        except NotFound:
            return []  # somebody was quicker
        except TenantqError as error:
            what = "the queue" if self._is_own else "messages in the queue"
            return [f"{what} {self._queue.name}: {error.message}"]
        return []

    async def _delete(self) -> None:
        await self._queue.delete(confirm=self._queue.name, reason=_REASON, force=True)

    async def _purge(self) -> None:
        there = await self._queue.stats()
        if there.added_total - self._added_before > self._added_at_most:
            raise Conflict("somebody else has added to it meanwhile, so it is not emptied")
        if _held(there):
            await self._queue.purge(confirm=self._queue.name, reason=_REASON)


def _held(stats: QueueReply) -> int:
    return stats.ready + stats.delayed + stats.in_flight + stats.blocked
