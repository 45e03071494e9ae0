"""One run of a worker, from the first poll to the last ack."""

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import Any, Final

from tenantq.client.async_client import AsyncClient
from tenantq.client.async_message import AsyncMessage
from tenantq.client.loop_thread import LoopThread
from tenantq.errors import TenantqError
from tenantq.worker.capacity import WorkerCapacity
from tenantq.worker.handler_threads import HandlerThreads
from tenantq.worker.job import Job
from tenantq.worker.plan import WorkerPlan
from tenantq.worker.poller import Poller
from tenantq.worker.task import Task

log = logging.getLogger("tenantq.worker")

_LAST_MS: Final = 1_000
"""Time limit for cancelled handlers to end, and then for messages to be released."""
_FORCED_MS: Final = 250
"""The same for a forced stop: time for one request to a healthy server."""


class WorkerRun:
    """Polls, runs handlers and settles messages. Belongs to the running event loop."""

    def __init__(self, client: AsyncClient, plan: WorkerPlan, *, burst: bool) -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self._plan = plan
        self._burst = burst
        self._loop_thread = LoopThread(self.loop, threading.current_thread())
        self._threads = HandlerThreads(plan.concurrency)
        self._capacity = WorkerCapacity(plan.concurrency, plan.prefetch)
        self._free_slots = plan.concurrency
        self._pollers: list[asyncio.Task[None]] = []
        self._returning: set[asyncio.Task[None]] = set()  # messages being released
        self._found_empty = {task.queue: -1 for task in plan.tasks}  # in a burst: ended handlers at the last empty poll
        self._stopped = asyncio.Event()
        self._forced = asyncio.Event()
        self._unfinished = 0

    @property
    def is_stopping(self) -> bool:
        """Whether no more handlers are started."""
        return self._stopped.is_set()

    # ---- start to stop ----

    async def work(self) -> bool:
        """Work until stopped. Returns whether every started handler finished."""
        plan = self._plan
        names = [task.queue for task in plan.tasks]
        log.info("working on %s", ", ".join(names), extra={"queues": names, "concurrency": plan.concurrency})
        rest = self._rest if self._burst else None
        for task in () if self.is_stopping else plan.tasks:  # stopped before it started: poll nothing
            poller = Poller(self.client, task, plan, self._capacity, self._take, rest)
            self._pollers.append(asyncio.create_task(poller.keep_polling()))
        stopped = asyncio.create_task(self._stopped.wait())
        trouble: BaseException | None = None
        try:
            await self._until_over(stopped)
        except BaseException as error:  # noqa: BLE001  # raised again after the drain
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
        """Return after ``stop`` or, in a burst, when all work is done. Raises a poller's fatal error."""
        pollers: set[asyncio.Task[None]] = set(self._pollers)
        while pollers and not stopped.done():
            done, _ = await asyncio.wait({stopped, *pollers}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                pollers.discard(task)
                task.result()

    async def _rest(self, queue: str, ended_count: int) -> None:
        """Wait until a handler has ended since the last poll, because handlers may add messages.

        The burst is over when every queue was empty after the last handler ended, and no message is held.
        """
        capacity = self._capacity
        self._found_empty[queue] = ended_count
        if capacity.is_empty and all(count == capacity.ended_count for count in self._found_empty.values()):
            self._stopped.set()
        while ended_count == capacity.ended_count:
            await capacity.change()

    def stop(self, *, force: bool) -> None:
        """Start a graceful stop or, with ``force``, stop immediately."""
        if not self.is_stopping:
            count = len(self._capacity.running) + len(self._capacity.overdue)
            log.info("stopping: waiting for %d handlers", count, extra={"running": count})
        self._stopped.set()
        if force:
            self._forced.set()

    async def _drain(self) -> None:
        """Stop polling, release waiting messages, wait for handlers to finish and release the rest.

        Every step has a time limit, also if a handler ignores its cancellation or the server does not answer.
        """
        capacity = self._capacity
        self._stopped.set()
        for poller in self._pollers:
            poller.cancel()
        self._return_waiting()
        await self._ended([*capacity.running, *capacity.overdue], self._plan.drain_ms, forced_ms=0)
        cut = [running for running, job in capacity.running.items() if not job.has_ended]
        self._unfinished = len(cut) + len(capacity.overdue)
        for running in cut:
            running.cancel()
        await self._ended(capacity.running, _LAST_MS, forced_ms=_FORCED_MS)
        for job in capacity.running.values():
            if not job.has_ended:
                log.error("%s: the handler ignores its cancellation and is abandoned", job.task.name)
                self._return(job.message)
        settling = [running for running, job in capacity.running.items() if job.has_ended]
        await self._ended([*self._returning, *self._pollers, *settling], _LAST_MS, forced_ms=_FORCED_MS)
        late = len(self._returning) + sum(job.has_ended for job in capacity.running.values())
        if late:
            log.warning("%d messages were not settled in time; they return when their leases expire", late)
        self._unfinished += sum(running not in cut for running in capacity.running)
        for task in (*capacity.running, *self._returning):
            task.cancel()
        for poller in self._pollers:
            if poller.done() and not poller.cancelled():
                poller.exception()  # marks it as retrieved

    async def _ended(self, tasks: Iterable[asyncio.Future[Any]], ms: int, *, forced_ms: int) -> None:
        """Wait until all have ended, at most ``ms``, or ``forced_ms`` after a forced stop."""
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

    # ---- messages ----

    async def _take(self, task: Task[Any, Any], messages: list[AsyncMessage]) -> None:
        """Hold messages up to the capacity and start handlers. Returns when the rest is released."""
        space = 0 if self.is_stopping else self._capacity.space
        for message in messages[:space]:
            message.start_heartbeat()
            job = Job(
                task, message, self._plan, self._threads, self._loop_thread, self._free_slot, self._stopped.is_set
            )
            self._capacity.waiting.append(job)
        self._begin()
        beyond = messages[space:]
        if beyond:
            await asyncio.wait([self._return(message) for message in beyond])

    def _return(self, message: AsyncMessage) -> asyncio.Task[None]:
        """Release a message in the background."""
        returning = asyncio.create_task(_released(message))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)
        return returning

    def _return_waiting(self) -> None:
        while self._capacity.waiting:
            self._return(self._capacity.waiting.popleft().message)

    def _begin(self) -> None:
        """Start handlers while slots are free."""
        capacity = self._capacity
        while self._free_slots and capacity.waiting and not self.is_stopping:
            job = capacity.waiting.popleft()
            if job.message.lost:
                continue  # another worker may have it already
            self._free_slots -= 1
            running = asyncio.create_task(job.handle())
            capacity.running[running] = job
            running.add_done_callback(self._finished)

    def _finished(self, running: asyncio.Task[None]) -> None:
        capacity = self._capacity
        capacity.running.pop(running).message.stop_heartbeat()
        capacity.ended_count += 1
        capacity.changed()
        if not running.cancelled() and (error := running.exception()) is not None:
            log.error("internal error in the worker", exc_info=error)

    def _free_slot(self, thread: asyncio.Future[Any] | None) -> None:
        """Free a slot, immediately or when the overdue ``thread`` has ended."""
        if thread is None:
            self._free_slots += 1
            self._begin()
            return
        self._capacity.overdue.add(thread)
        thread.add_done_callback(self._thread_ended)
        if not self._capacity.has_slots and not self.is_stopping:
            log.error("all slots are occupied by handlers that timed out; polling resumes when one of them ends")
            self._return_waiting()

    def _thread_ended(self, thread: asyncio.Future[Any]) -> None:
        if not thread.cancelled():
            thread.exception()  # marks it as retrieved
        capacity = self._capacity
        capacity.overdue.discard(thread)
        capacity.ended_count += 1
        capacity.changed()
        self._free_slot(None)


async def _released(message: AsyncMessage) -> None:
    try:
        await message.release()
    except TenantqError as error:
        log.warning("%r: cannot release the message: %s", message, error)
