"""One run of a worker, from the first poll to the last ack."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from tenantq.client.loop_thread import LoopThread
from tenantq.errors import TenantqError
from tenantq.worker.capacity import Capacity
from tenantq.worker.job import Job
from tenantq.worker.poller import Poller
from tenantq.worker.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenantq.client.async_client import AsyncClient
    from tenantq.client.async_message import AsyncMessage
    from tenantq.worker.plan import Plan
    from tenantq.worker.task import Task

log = logging.getLogger("tenantq.worker")

_LAST_MS: Final = 1_000
"""How long cancelled handlers may take to end and, after that, what is given back to arrive: a server may be out of reach."""
_FORCED_MS: Final = 250
"""The same where the worker is told to end at once: time for one request to a server that is well."""


class WorkerRun:
    """Polls, runs handlers, settles. One per run; belongs to the running event loop."""

    def __init__(self, client: AsyncClient, plan: Plan, *, burst: bool) -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self._plan = plan
        self._burst = burst
        self._loop_thread = LoopThread(self.loop, threading.current_thread())
        self._threads = Threads(plan.concurrency)
        self._room = Capacity(plan.concurrency, plan.prefetch)
        self._places = plan.concurrency
        self._pollers: list[asyncio.Task[None]] = []
        self._returning: set[asyncio.Task[None]] = set()  # messages on their way back
        self._found_empty = {task.queue: -1 for task in plan.tasks}  # in a burst: after how many handlers had ended
        self._stopped = asyncio.Event()
        self._forced = asyncio.Event()
        self._unfinished = 0

    @property
    def is_stopping(self) -> bool:
        """Whether nothing new is begun any more."""
        return self._stopped.is_set()

    # ---- from beginning to end ----

    async def work(self) -> bool:
        """Work until stopped; return whether every handler that was begun has finished."""
        plan = self._plan
        names = [task.queue for task in plan.tasks]
        log.info("working on %s", ", ".join(names), extra={"queues": names, "concurrency": plan.concurrency})
        rest = self._rest if self._burst else None
        for task in () if self.is_stopping else plan.tasks:  # told to before it began: nothing is even asked for
            poller = Poller(self.client, task, plan, self._room, take=self._take, rest=rest)
            self._pollers.append(asyncio.create_task(poller.keep_polling()))
        stopped = asyncio.create_task(self._stopped.wait())
        trouble: BaseException | None = None
        try:
            await self._until_over(stopped)
        except BaseException as error:  # noqa: BLE001  # raised again when everything is given back
            trouble = error
        finally:
            stopped.cancel()
        try:
            await self._drain()
        finally:
            self._threads.close()
            self._loop_thread.stop()
        if trouble is not None:
            raise trouble
        log.info("stopped", extra={"unfinished": self._unfinished})
        return self._unfinished == 0

    async def _until_over(self, stopped: asyncio.Task[bool]) -> None:
        """Return when told to stop or, in a burst, when all is done; raise what no poller can get over."""
        pollers: set[asyncio.Task[None]] = set(self._pollers)
        while pollers and not stopped.done():
            done, _ = await asyncio.wait({stopped, *pollers}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                pollers.discard(task)
                task.result()

    async def _rest(self, queue: str, ended_count: int) -> None:
        """Return when a queue that was empty may not be so any more: a handler has ended since it was polled.

        The burst is over when no queue has had anything since the last handler ended, and nothing is held.
        """
        room = self._room
        self._found_empty[queue] = ended_count
        if room.is_empty and all(count == room.ended_count for count in self._found_empty.values()):
            self._stopped.set()
        while ended_count == room.ended_count:
            await room.change()

    def stop(self, *, force: bool) -> None:
        """Begin to stop, or, with ``force``, end at once."""
        if not self.is_stopping:
            count = len(self._room.running) + len(self._room.kept)
            log.info("stopping: %d handlers may finish", count, extra={"running": count})
        self._stopped.set()
        if force:
            self._forced.set()

    async def _drain(self) -> None:
        """Stop polling, give back what has not begun, let handlers finish in time, and give back the rest.

        Nothing takes longer than its time: no handler that does not heed its cancellation, and no server that does not answer.
        """
        room = self._room
        self._stopped.set()
        for poller in self._pollers:
            poller.cancel()
        self._return_waiting()
        await self._ended([*room.running, *room.kept], self._plan.drain_ms, forced_ms=0)
        cut = [running for running, job in room.running.items() if not job.has_ended]
        self._unfinished = len(cut) + len(room.kept)
        for running in cut:
            running.cancel()
        await self._ended(room.running, _LAST_MS, forced_ms=_FORCED_MS)
        for job in room.running.values():
            if not job.has_ended:
                log.error("%s: does not end, although it was cancelled; it is left to itself", job.task.name)
                self._return(job.message)
        settling = [running for running, job in room.running.items() if job.has_ended]
        await self._ended([*self._returning, *self._pollers, *settling], _LAST_MS, forced_ms=_FORCED_MS)
        late = len(self._returning) + sum(job.has_ended for job in room.running.values())
        if late:
            log.warning("%d messages could not be settled in time: they come back when their leases end", late)
        self._unfinished += sum(running not in cut for running in room.running)
        for task in (*room.running, *self._returning):
            task.cancel()
        for poller in self._pollers:
            if poller.done() and not poller.cancelled():
                poller.exception()  # looked at, so that nobody complains

    async def _ended(self, tasks: Iterable[asyncio.Future[Any]], ms: int, *, forced_ms: int) -> None:
        """Return when all have ended, or after ``ms`` or, from when the worker is forced to end, ``forced_ms``."""
        pending = {task for task in tasks if not task.done()}
        if not pending:
            return
        forced = asyncio.create_task(self._forced.wait())
        everything = asyncio.create_task(asyncio.wait(pending))
        try:
            await asyncio.wait({forced, everything}, timeout=ms / 1_000, return_when=asyncio.FIRST_COMPLETED)
            if forced.done() and forced_ms:
                await asyncio.wait({everything}, timeout=forced_ms / 1_000)
        finally:
            forced.cancel()
            everything.cancel()

    # ---- messages that come and go ----

    async def _take(self, task: Task[Any, Any], messages: list[AsyncMessage]) -> None:
        """Hold what there is room for, and begin; return when the rest is given back."""
        space = 0 if self.is_stopping else self._room.space
        for message in messages[:space]:
            message.start_heartbeat()
            job = Job(
                task, message, self._plan, self._threads, self._loop_thread, self._leave_place, self._stopped.is_set
            )
            self._room.waiting.append(job)
        self._begin()
        beyond = messages[space:]
        if beyond:
            await asyncio.wait([self._return(message) for message in beyond])

    def _return(self, message: AsyncMessage) -> asyncio.Task[None]:
        """Have a message given back, without using up its attempt."""
        returning = asyncio.create_task(_released(message))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)
        return returning

    def _return_waiting(self) -> None:
        while self._room.waiting:
            self._return(self._room.waiting.popleft().message)

    def _begin(self) -> None:
        """Start handlers while there are places."""
        room = self._room
        while self._places and room.waiting and not self.is_stopping:
            job = room.waiting.popleft()
            if job.message.lost:
                continue  # another worker may have it by now
            self._places -= 1
            running = asyncio.create_task(job.handle())
            room.running[running] = job
            running.add_done_callback(self._finished)

    def _finished(self, running: asyncio.Task[None]) -> None:
        room = self._room
        room.running.pop(running).message.stop_heartbeat()
        room.ended_count += 1
        room.changed()
        if not running.cancelled() and (error := running.exception()) is not None:
            log.error("a fault of the worker itself", exc_info=error)

    def _leave_place(self, thread: asyncio.Future[Any] | None) -> None:
        """Free a place, at once or when the thread has ended that nobody waits for any more."""
        if thread is None:
            self._places += 1
            self._begin()
            return
        self._room.kept.add(thread)
        thread.add_done_callback(self._thread_ended)
        if not self._room.has_places and not self.is_stopping:
            log.error(
                "every place is kept by a handler that did not end in time: no messages are taken before one does"
            )
            self._return_waiting()

    def _thread_ended(self, thread: asyncio.Future[Any]) -> None:
        if not thread.cancelled():
            thread.exception()  # looked at, so that nobody complains
        room = self._room
        room.kept.discard(thread)
        room.ended_count += 1
        room.changed()
        self._leave_place(None)


async def _released(message: AsyncMessage) -> None:
    try:
        await message.release()
    except TenantqError as error:
        log.warning("%r could not be released: %s", message, error)
