"""Polls one queue for a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tenantq.client.async_client import AsyncClient
from tenantq.client.async_message import AsyncMessage
from tenantq.client.async_queue import AsyncFleet, AsyncQueue
from tenantq.errors import Closed, NotFound, TenantqError, Unauthenticated
from tenantq.runtime.backoff import Backoff
from tenantq.worker.capacity import WorkerCapacity
from tenantq.worker.named_fleet import NamedFleet
from tenantq.worker.plan import WorkerPlan
from tenantq.worker.task import Task

log = logging.getLogger("tenantq.worker")

_BACKOFF: Final = Backoff(100, 10_000)  # after a failed poll
_ABSENT_PAUSE_MS: Final = 1_000  # between polls of a queue that does not exist yet


class Poller:
    """Polls for as many messages as the worker can hold, until cancelled. Survives errors that may pass.

    A queue that had messages is polled without wait for the whole free capacity, which is reserved meanwhile. A queue that had none is
    polled with a wait for a part of it, without a reservation. So idle queues take no capacity from busy ones. Messages that arrive
    when no capacity is left are released.
    """

    def __init__(
        self,
        client: AsyncClient,
        task: Task[Any, Any],
        plan: WorkerPlan,
        capacity: WorkerCapacity,
        *,
        take: Callable[[Task[Any, Any], list[AsyncMessage]], Awaitable[None]],
        rest: Callable[[str, int], Awaitable[None]] | None,
    ) -> None:
        """``take`` receives the messages. In a burst, ``rest`` is called after each empty poll."""
        self._task = task
        self._plan = plan
        self._capacity = capacity
        self._take = take
        self._rest = rest
        self._address = client.settings.url
        self._has_others = len(plan.tasks) > 1
        self._failures = 0
        self._source: AsyncQueue | AsyncFleet | NamedFleet
        if not plan.fleet:
            self._source = client.queue(task.queue)
        elif plan.tenants is None:
            self._source = client.fleet(task.queue)
        else:
            self._source = NamedFleet(client, task.queue, plan.tenants)

    async def keep_polling(self) -> None:
        """Poll until cancelled. Raises Unauthenticated, and in a burst NotFound if the address is wrong."""
        try:
            is_busy = True
            while True:
                ended_count = self._capacity.ended_count
                messages = await self._poll(is_busy=is_busy)
                is_busy = bool(messages)
                if messages:
                    await self._take(self._task, messages)
                elif messages is not None and self._rest is not None:
                    await self._rest(self._task.queue, ended_count)
        except Closed:
            return
        finally:
            if isinstance(self._source, NamedFleet):
                self._source.close()

    async def _poll(self, *, is_busy: bool) -> list[AsyncMessage] | None:
        """Poll once and return the messages; None after a failure and its delay."""
        reserve = is_busy and self._has_others
        wait_ms = 0 if reserve or self._rest is not None else self._plan.wait_ms
        reservation = await self._capacity.ask(1 if is_busy else len(self._plan.tasks), reserve=reserve)
        try:
            messages = await self._source.poll(reservation.count, wait_ms=wait_ms, lease_ms=self._plan.lease_ms)
        except (Unauthenticated, Closed):
            raise
        except NotFound as error:
            reservation.end()
            return await self._after_absence(error)
        except TenantqError as error:
            reservation.end()
            queue = self._task.queue
            log.warning("%s: poll failed: %s", queue, error, extra={"queue": queue, "code": error.code})
            await self._pause()
            return None
        finally:
            reservation.end()
        self._failures = 0
        return messages

    async def _after_absence(self, error: NotFound) -> list[AsyncMessage] | None:
        """Wait for a queue that does not exist. A burst does not wait and treats it as empty."""
        queue = self._task.queue
        extra = {"queue": queue, "code": error.code}
        is_wrong_server = error.queue is None and error.tenant is None  # the server has no such API at all
        if self._rest is not None:
            if is_wrong_server:
                raise error
            return []
        if is_wrong_server:
            if not self._failures:
                log.error("%s: no tenantq server at %s. Check the address, without /v1: %s",
                          queue, self._address, error, extra=extra)  # fmt: skip
            await self._pause()
            return None
        if not self._failures:
            log.warning("%s: %s Waiting for the queue.", queue, error, extra=extra)
        self._failures += 1
        await asyncio.sleep(_ABSENT_PAUSE_MS / 1_000)
        return None

    async def _pause(self) -> None:
        """Wait longer after each failure, with jitter."""
        self._failures += 1
        await asyncio.sleep(_BACKOFF.half_jitter_ms(self._failures, self._plan.randomness) / 1_000)
