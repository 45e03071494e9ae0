"""Polls one queue for a worker, in its own tenant or in many."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from tenantq.client.async_client import AsyncClient
from tenantq.client.async_message import AsyncMessage
from tenantq.client.async_queue import AsyncFleet, AsyncQueue
from tenantq.errors import Closed, Forbidden, NotFound, QuotaExceeded, TenantqError, Unauthenticated
from tenantq.runtime.backoff import Backoff
from tenantq.worker.capacity import WorkerCapacity
from tenantq.worker.plan import WorkerPlan
from tenantq.worker.task import Task

log = logging.getLogger("tenantq.worker")

RECHECK_MS: Final = 5_000
"""Interval of checks whether skipped tenants can be polled again."""
ALL_SKIPPED_MS: Final = 100
"""Minimum length of a poll while all tenants are skipped."""
_BACKOFF: Final = Backoff(100, 10_000)  # after a failed poll
_ABSENT_PAUSE_MS: Final = 1_000  # between polls of a queue that does not exist yet


class NamedFleet:
    """Polls like a fleet, but skips tenants that refuse polls. The server refuses a whole poll then; the error names the tenant.

    Raises Forbidden if all tenants refuse the first poll.
    """

    def __init__(self, client: AsyncClient, queue: str, tenants: list[str]) -> None:
        self._client = client
        self._queue = queue
        self._tenants = list(dict.fromkeys(tenants))
        self._skipped: dict[str, TenantqError] = {}  # with the reason
        self._has_worked = False
        self._fleet = client.fleet(queue, tenants=self._tenants)
        self._recheck: asyncio.Task[None] | None = None  # checks the skipped tenants

    async def poll(self, max: int, *, wait_ms: int, lease_ms: int) -> list[AsyncMessage]:
        """Lease messages of all tenants that this credential may poll. The others are checked again regularly."""
        while True:
            if self._skipped:
                recheck = self._start_recheck()
                if len(self._skipped) == len(self._tenants):
                    await asyncio.wait({recheck}, timeout=(wait_ms or ALL_SKIPPED_MS) / 1_000)
                    if len(self._skipped) == len(self._tenants):
                        return []
            try:
                messages = await self._fleet.poll(max, wait_ms=wait_ms, lease_ms=lease_ms)
            except (Forbidden, NotFound, QuotaExceeded) as error:
                if error.tenant is None or error.tenant in self._skipped or error.tenant not in self._tenants:
                    raise
                self._skipped[error.tenant] = error
                if not self._has_worked and self._is_forbidden_everywhere():
                    raise
                log.warning(
                    "%s: skipping tenant %s, checking again every %d s: %s",
                    self._queue, error.tenant, RECHECK_MS // 1_000, error,
                    extra={"queue": self._queue, "tenant": error.tenant, "code": error.code},
                )  # fmt: skip
                self._choose()
            else:
                self._has_worked = True
                return messages

    def close(self) -> None:
        """Stop checking skipped tenants."""
        if self._recheck is not None and not self._recheck.cancel() and not self._recheck.cancelled():
            self._recheck.exception()  # marks it as retrieved

    def _is_forbidden_everywhere(self) -> bool:
        reasons = self._skipped.values()
        return len(reasons) == len(self._tenants) and all(isinstance(one, Forbidden) for one in reasons)

    def _choose(self) -> None:
        served = [name for name in self._tenants if name not in self._skipped]
        if served:
            self._fleet = self._client.fleet(self._queue, tenants=served)

    def _start_recheck(self) -> asyncio.Task[None]:
        """Return the task that ends when a tenant can be polled again. Raises its error."""
        if self._recheck is not None and self._recheck.done():
            self._recheck.result()
            self._recheck = None
        if self._recheck is None:
            self._recheck = asyncio.create_task(self._check_until_back())
        return self._recheck

    async def _check_until_back(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_MS / 1_000)
            back = [name for name in sorted(self._skipped) if await self._is_back(name)]
            for name in back:
                extra = {"queue": self._queue, "tenant": name}
                log.warning("%s: tenant %s can be polled again", self._queue, name, extra=extra)
            if back:
                for name in back:
                    del self._skipped[name]
                self._choose()
                return

    async def _is_back(self, tenant: str) -> bool:
        """Return whether a tenant can be polled. Messages leased by the check are released."""
        try:
            for message in await self._client.fleet(self._queue, tenants=[tenant]).poll():
                await message.release()
        except Unauthenticated:
            raise
        except TenantqError:
            return False
        return True


@dataclass(eq=False)
class Poller:
    """Polls for as many messages as the worker can hold, until cancelled. Survives temporary errors.

    A queue that had messages is polled without wait for the whole free capacity, which is reserved meanwhile. A queue that had none is
    polled with a wait for a part of it, without a reservation. So idle queues take no capacity from busy ones. Messages that arrive
    when no capacity is left are released.
    """

    _client: AsyncClient
    _task: Task[Any, Any]
    _plan: WorkerPlan
    _capacity: WorkerCapacity
    _take: Callable[[Task[Any, Any], list[AsyncMessage]], Awaitable[None]]  # receives the messages
    _rest: Callable[[str, int], Awaitable[None]] | None  # called after each empty poll of a burst
    _failures: int = 0
    _has_worked: bool = False  # a poll succeeded

    def __post_init__(self) -> None:
        client, queue, plan = self._client, self._task.queue, self._plan
        self._source: AsyncQueue | AsyncFleet | NamedFleet
        if not plan.fleet:
            self._source = client.queue(queue)
        elif plan.tenants is None:
            self._source = client.fleet(queue)
        else:
            self._source = NamedFleet(client, queue, plan.tenants)

    async def keep_polling(self) -> None:
        """Poll until cancelled. Raises Unauthenticated, Forbidden if no poll succeeded before, and some errors in a burst.

        A burst raises every Forbidden, and NotFound if the address is wrong.
        """
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
        reserve = is_busy and len(self._plan.tasks) > 1
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
            if isinstance(error, Forbidden) and (self._rest is not None or not self._has_worked):
                raise  # a wrong credential, which waiting does not change
            level = logging.ERROR if isinstance(error, Forbidden) else logging.WARNING
            queue = self._task.queue
            log.log(level, "%s: poll failed: %s", queue, error, extra={"queue": queue, "code": error.code})
            await self._pause()
            return None
        finally:
            reservation.end()
        self._failures = 0
        self._has_worked = True
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
                          queue, self._client.settings.url, error, extra=extra)  # fmt: skip
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
