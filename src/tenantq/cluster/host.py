"""The shards that one process owns, each in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from tenantq.cluster.shard_loads import ShardLoads
from tenantq.cluster.shard_thread import HostedShard, ShardThread
from tenantq.domain.cluster_view import Member
from tenantq.errors import StoreFailed, StoreFormat
from tenantq.runtime.clock import Clock
from tenantq.runtime.futures import BackgroundTasks
from tenantq.store.shard_lease import ReleaseSignal

log = logging.getLogger("tenantq.shards")

OPENING_MAX: Final = 64
"""Shards that are opened at the same time; most of them wait for their last owner."""


class ShardHost:
    """Opens and closes shards, and finds them. Used on the main event loop, except where a method says otherwise."""

    def __init__(
        self,
        make: Callable[[int, ReleaseSignal], HostedShard],
        clock: Clock,
        new_loop: Callable[[], asyncio.AbstractEventLoop],
    ) -> None:
        """Prepare. ``make`` creates a shard, in its thread; the signal tells it that the last owner has released the shard."""
        self._make = make
        self._clock = clock
        self._new_loop = new_loop
        self.on_change: Callable[[], None] = lambda: None  # called after a shard has opened or closed
        self.on_wait: Callable[[], None] = lambda: None  # called when one more shard waits for its last owner
        self._threads: dict[int, ShardThread] = {}
        self.fault: BaseException | None = None  # why the last shard could not be opened, unless its store failed
        self.successors: dict[int, tuple[int, str]] = {}  # by shard: the epoch that ended, and who got it
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._watching = BackgroundTasks()
        self._loads = ShardLoads(clock.monotonic_ms())

    # ---- membership ----

    def owned(self) -> dict[int, int]:
        """Return the owned shards with their epochs."""
        return {number: thread.epoch for number, thread in self._threads.items() if thread.is_open}

    def loads(self) -> dict[int, float]:
        """Return the load of each owned shard. See ``shard_loads.ShardLoads``."""
        busy_us = {thread.number: thread.shard.loop.figures.took.sum_us for thread in self.threads()}
        return self._loads.measure(self._clock.monotonic_ms(), busy_us)

    async def acquire(self, shard: int, is_assigned: Callable[[], bool]) -> None:
        """Own a shard and serve it. Raises StoreLocked while another member owns it, or why it cannot be opened.

        While ``is_assigned``, which is called in another thread, returns False, only ``released`` has it claim the shard.
        """
        before = self._threads.get(shard)
        if before is not None:
            if before.is_open or before.is_opening:
                return
            await asyncio.shield(before.ended)
            self._threads.pop(shard, None)
        loop = asyncio.get_running_loop()
        released = ReleaseSignal(lambda: self._begins_to_wait(loop), is_assigned)
        thread = ShardThread(shard, lambda: self._make(shard, released), self._new_loop, released)
        self._threads[shard] = thread
        try:
            async with self._opening:
                await thread.open()
        except BaseException as error:
            self._threads.pop(shard, None)
            if isinstance(error, StoreFormat) or not isinstance(error, StoreFailed | asyncio.CancelledError):
                self.fault = error
            raise
        self.fault = None
        self.successors.pop(shard, None)
        self._watching.start(self._watch(thread))
        self.on_change()

    async def release(self, shard: int, successor: Member | None = None, *, exports: bool = False) -> float:
        """Stop serving a shard, and give it up. Calls that have begun finish; later ones get NotOwner.

        Return since when they do, on the clock of the event loop.
        """
        thread = self._threads.get(shard)
        if thread is None:
            return asyncio.get_running_loop().time()
        epoch = thread.epoch if thread.is_open else -1
        _, named = self.successors.setdefault(shard, (epoch, successor.id if successor is not None else ""))
        await thread.close(exports=exports, successor=named)
        return thread.refused_at

    def _begins_to_wait(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the process ends
            loop.call_soon_threadsafe(self.on_wait)

    def waiting(self) -> set[int]:
        """Return the shards that can be served here as soon as their last owners release them."""
        return {number for number, thread in self._threads.items() if thread.is_opening and thread.released.is_awaited}

    def released(self, shard: int) -> None:
        """Claim a shard that is being opened at once: its last owner has released it."""
        thread = self._threads.get(shard)
        if thread is not None:
            thread.released.set()

    async def close(self, *, exports: bool = True) -> None:
        """Give all shards up."""
        await asyncio.gather(*(self.release(number, exports=exports) for number in list(self._threads)))
        await self._watching.finish()

    async def _watch(self, thread: ShardThread) -> None:
        """Forget a shard when its thread has ended. A shard that lost its store ends alone; the process continues."""
        await asyncio.shield(thread.ended)
        if self._threads.get(thread.number) is thread:
            del self._threads[thread.number]
        if thread.failure is not None:
            log.error("shard %d has stopped: %s", thread.number, thread.failure.message)
        self.on_change()

    # ---- shards ----

    def thread(self, shard: int) -> ShardThread | None:
        """Return an owned shard; None: another member has it, or nobody. Safe from any thread."""
        thread = self._threads.get(shard)
        return thread if thread is not None and thread.is_open else None

    def is_opening(self, shard: int) -> bool:
        """Return whether a shard will be served here soon."""
        thread = self._threads.get(shard)
        return thread is not None and thread.is_opening

    def threads(self) -> list[ShardThread]:
        """Return all owned shards. Safe from any thread."""
        return [thread for thread in list(self._threads.values()) if thread.is_open]

    def fallback(self) -> ShardThread | None:
        """Return any owned shard whose store answers."""
        threads = self.threads()
        return next((one for one in threads if not one.shard.loop.is_doubtful), threads[0] if threads else None)
