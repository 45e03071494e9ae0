"""Polls one queue for a worker, as long as the worker works."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from tenantq.errors import Closed, NotFound, TenantqError, Unauthenticated
from tenantq.runtime.backoff import Backoff
from tenantq.worker.named_fleet import NamedFleet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.client.async_client import AsyncClient
    from tenantq.client.async_fleet import AsyncFleet
    from tenantq.client.async_message import AsyncMessage
    from tenantq.client.async_queue import AsyncQueue
    from tenantq.worker.capacity import Capacity
    from tenantq.worker.plan import Plan
    from tenantq.worker.task import Task

log = logging.getLogger("tenantq.worker")

_BACKOFF: Final = Backoff(100, 10_000)  # after a poll that failed
_ABSENT_PAUSE_MS: Final = 1_000  # after a poll of a queue that nobody has made yet


class Poller:
    """Asks for as much as there is room for, for ever; outlives whatever trouble may pass.

    A queue that had messages is polled without waiting, for the whole room, which is reserved meanwhile. One that had none is polled
    with a wait, for a part of the room, which is not: so idle queues take no room from busy ones. What they bring when the room is
    used up is given back, and they wait for their turn here.
    """

    def __init__(
        self,
        client: AsyncClient,
        task: Task[Any, Any],
        plan: Plan,
        room: Capacity,
        *,
        take: Callable[[Task[Any, Any], list[AsyncMessage]], Awaitable[None]],
        rest: Callable[[str, int], Awaitable[None]] | None,
    ) -> None:
        """Prepare it. ``take`` gets what came; ``rest``, in a burst, is called after each poll that brought nothing."""
        self._task = task
        self._plan = plan
        self._room = room
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
        """Poll until cancelled. Raises Unauthenticated, and in a burst that the address leads nowhere."""
        try:
            is_busy = True
            while True:
                ended_count = self._room.ended_count
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
        """Return what one poll brought; None where it failed, after a pause."""
        reserve = is_busy and self._has_others
        wait_ms = 0 if reserve or self._rest is not None else self._plan.wait_ms
        asking = await self._room.ask(1 if is_busy else len(self._plan.tasks), reserve=reserve)
        try:
            messages = await self._source.poll(asking.count, wait_ms=wait_ms, lease_ms=self._plan.lease_ms)
        except (Unauthenticated, Closed):
            raise
        except NotFound as error:
            asking.end()
            return await self._after_absence(error)
        except TenantqError as error:
            asking.end()
            queue = self._task.queue
            log.warning("polling %s failed: %s", queue, error, extra={"queue": queue, "code": error.code})
            await self._pause()
            return None
        finally:
            asking.end()
        self._failures = 0
        return messages

    async def _after_absence(self, error: NotFound) -> list[AsyncMessage] | None:
        """Wait for what is not there; a burst does not, and takes a queue that nobody has made for an empty one."""
        queue = self._task.queue
        extra = {"queue": queue, "code": error.code}
        is_lost = (
            error.queue is None and error.tenant is None
        )  # it is not the queue that is missing, but the whole server
        if self._rest is not None:
            if is_lost:
                raise error
            return []
        if is_lost:
            if not self._failures:
                log.error("polling %s: nothing answers at %s as a tenantq server does: check the address, which ends before /v1: %s",
                          queue, self._address, error, extra=extra)  # fmt: skip
            await self._pause()
            return None
        if not self._failures:
            log.warning("%s: %s; waiting for it", queue, error, extra=extra)
        self._failures += 1
        await asyncio.sleep(_ABSENT_PAUSE_MS / 1_000)
        return None

    async def _pause(self) -> None:
        """Pause for longer after each failure, and not just as long as others do."""
        self._failures += 1
        await asyncio.sleep(_BACKOFF.half_jitter_ms(self._failures, self._plan.randomness) / 1_000)
