"""One run of a worker, from the first poll to the last ack."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tenantq.client.portal import Portal
from tenantq.errors import Closed, NotFound, TenantqError, Unauthenticated
from tenantq.worker.job import Job
from tenantq.worker.threads import Threads

if TYPE_CHECKING:
    from tenantq.client.async_client import AsyncClient
    from tenantq.client.async_fleet import AsyncFleet
    from tenantq.client.async_message import AsyncMessage
    from tenantq.client.async_queue import AsyncQueue
    from tenantq.worker.plan import Plan
    from tenantq.worker.task import Task

log = logging.getLogger("tenantq.worker")

TIMEOUT_REASON: Final = "timeout"
_PAUSE_MS: Final = (100, 10_000)  # after a poll that failed: from, up to
_ABSENT_PAUSE_MS: Final = 1_000  # after a poll of a queue that nobody has made yet


class Shift:
    """Polls, runs handlers, settles. One per run; belongs to the running event loop."""

    def __init__(self, client: AsyncClient, plan: Plan, *, burst: bool) -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.is_stopping = False
        self._plan = plan
        self._burst = burst
        self._portal = Portal(self.loop, threading.current_thread())
        self._threads = Threads(plan.concurrency)
        self._waiting: deque[Job] = deque()  # leased, and no place to run yet
        self._running: set[asyncio.Task[None]] = set()
        self._places = plan.concurrency
        self._held = 0  # leased and not settled
        self._finished_count = 0
        self._changed = asyncio.Event()  # there is room again, or it is time to stop
        self._stopped = asyncio.Event()
        self._forced = asyncio.Event()
        self._pollers: list[asyncio.Task[None]] = []
        self._unfinished = 0

    # ---- from beginning to end ----

    async def work(self) -> bool:
        """Work until stopped; return whether every handler that was begun has finished."""
        plan = self._plan
        names = [task.queue for task in plan.tasks]
        log.info("working on %s", ", ".join(names), extra={"queues": names, "concurrency": plan.concurrency})
        self._pollers = [asyncio.create_task(self._keep_polling(task)) for task in plan.tasks]
        stopped = asyncio.create_task(self._stopped.wait())
        trouble: BaseException | None = None
        try:
            await self._until_over(stopped)
        except BaseException as error:  # noqa: BLE001  # raised again when everything is given back
            trouble = error
        finally:
            stopped.cancel()
        await self._drain()
        self._threads.close()
        self._portal.stop()
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
        while self._burst and (self._running or self._waiting) and not stopped.done():
            await asyncio.wait({stopped, *self._running}, return_when=asyncio.FIRST_COMPLETED)

    def stop(self, *, force: bool) -> None:
        """Begin to stop, or, with ``force``, end at once."""
        if not self.is_stopping:
            log.info("stopping: %d handlers may finish", len(self._running), extra={"running": len(self._running)})
        self.is_stopping = True
        self._stopped.set()
        self._changed.set()
        if force:
            self._forced.set()

    async def _drain(self) -> None:
        """Stop polling, give back what has not begun, let handlers finish in time, and give back the rest."""
        self.is_stopping = True
        self._changed.set()
        for poller in self._pollers:
            poller.cancel()
        await asyncio.gather(*self._pollers, return_exceptions=True)
        waiting = [job.message for job in self._waiting]
        self._waiting.clear()
        giving_back = asyncio.gather(*(self._give_back(message) for message in waiting))
        if self._running:
            forced = asyncio.create_task(self._forced.wait())
            late = asyncio.create_task(asyncio.sleep(self._plan.drain_ms / 1_000))
            while self._running and not forced.done() and not late.done():
                await asyncio.wait({forced, late, *self._running}, return_when=asyncio.FIRST_COMPLETED)
            forced.cancel()
            late.cancel()
        self._unfinished = len(self._running)
        for task in self._running:
            task.cancel()
        await asyncio.gather(giving_back, *self._running, return_exceptions=True)

    async def _give_back(self, message: AsyncMessage) -> None:
        try:
            await message.release()
        except TenantqError as error:
            log.warning("%r could not be released: %s", message, error)

    # ---- polling ----

    async def _keep_polling(self, task: Task[Any, Any]) -> None:
        """Poll one queue for as much as there is room for, for ever; in a burst, until it is empty."""
        plan = self._plan
        source: AsyncQueue | AsyncFleet = (
            self.client.fleet(task.queue, tenants=plan.tenants) if plan.fleet else self.client.queue(task.queue)
        )
        failures = 0
        wait_ms = 0 if self._burst else plan.wait_ms
        while True:
            room = await self._room()
            finished = self._finished_count
            try:
                messages = await source.poll(room, wait_ms=wait_ms, lease_ms=plan.lease_ms)
            except Unauthenticated:
                raise
            except Closed:
                return
            except NotFound as error:
                if self._burst:
                    return
                if failures == 0:
                    log.warning("%s: %s; waiting for it", task.queue, error, extra={"queue": task.queue})
                failures += 1
                await self._pause(_ABSENT_PAUSE_MS)
                continue
            except TenantqError as error:
                failures += 1
                low, high = _PAUSE_MS
                pause_ms = min(high, low * 2 ** min(failures - 1, 20))
                log.warning("polling %s failed: %s", task.queue, error, extra={"queue": task.queue, "code": error.code})
                await self._pause(pause_ms // 2 + int(pause_ms / 2 * plan.randomness.random()))
                continue
            failures = 0
            self._take(task, messages)
            if self._burst and not messages and finished == self._finished_count:
                if not self._held:
                    return
                await self._some_change()  # what is under way may add more

    async def _room(self) -> int:
        """Return how many messages to ask for, once that is enough to be worth a request."""
        plan = self._plan
        worth = max(1, plan.prefetch // 2)
        while True:
            room = plan.concurrency + plan.prefetch - self._held
            if room >= worth or (room > 0 and not self._waiting):
                return room
            await self._some_change()

    async def _some_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _pause(self, ms: int) -> None:
        await asyncio.sleep(ms / 1_000)

    def _take(self, task: Task[Any, Any], messages: list[AsyncMessage]) -> None:
        for message in messages:
            message.start_heartbeat()
            self._waiting.append(Job(task, message, self._plan, self._threads, self._portal, self._leave_place))
        self._held += len(messages)
        self._begin()

    def _begin(self) -> None:
        """Start handlers while there are places."""
        while self._places and self._waiting and not self.is_stopping:
            job = self._waiting.popleft()
            if job.message.lost:
                self._held -= 1  # another worker may have it by now
                continue
            self._places -= 1
            running = asyncio.create_task(job.handle())
            self._running.add(running)
            running.add_done_callback(self._finished)

    def _finished(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._held -= 1
        self._finished_count += 1
        self._changed.set()
        if not running.cancelled() and (error := running.exception()) is not None:
            log.error("a fault of the worker itself", exc_info=error)

    def _leave_place(self) -> None:
        self._places += 1
        self._begin()
