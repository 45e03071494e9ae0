"""Sends concurrent polls of one queue, with one lease length, as one request and shares out the messages.

Each caller gets at most ``max`` messages and waits at most ``wait_ms``. Messages for callers that were cancelled go to other waiting
callers, or are released immediately.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tenantq.client.dispatcher import REQUESTS_MAX, Departure, Dispatcher, refuse
from tenantq.client.session import ClientSession
from tenantq.domain import limits
from tenantq.errors import TenantqError
from tenantq.runtime.clock import Timer
from tenantq.runtime.futures import wake

M = TypeVar("M")

STOP_S: Final = 2.0
"""How long a cancelled caller waits for its request to end."""


class _PollInFlight(Generic[M]):
    """A request in flight and the demands it was sent for."""

    __slots__ = ("demands", "ended", "stop")

    def __init__(self, demands: list[_Demand[M]], loop: asyncio.AbstractEventLoop) -> None:
        self.demands = demands
        self.stop: asyncio.Future[None] = loop.create_future()  # resolved when no caller waits any longer
        self.ended: asyncio.Future[None] = loop.create_future()
        for demand in demands:
            demand.request = self


@dataclass(slots=True, eq=False)
class _Demand(Generic[M]):
    """The poll of one caller."""

    max: int
    until_ms: int  # on the monotonic clock
    future: asyncio.Future[list[M]]
    request: _PollInFlight[M] | None = None


class PollBatcher(Generic[M]):
    """Gathers the polls of one queue with one lease length. Polls that wait and polls that do not have separate batchers.

    ``ask`` polls once for (max, wait_ms) and stops when the given future is resolved. ``release`` releases unwanted messages.
    """

    def __init__(
        self,
        session: ClientSession,
        ask: Callable[[int, int, asyncio.Future[None]], Awaitable[Sequence[M]]],
        release: Callable[[Sequence[M]], Coroutine[Any, Any, None]],
        *,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        self._session = session
        self._ask = ask
        self._release = release
        self._gathered: deque[_Demand[M]] = deque()
        self._dispatcher = Dispatcher(
            session, self._start, self._refuse_all, requests_max=requests_max, maybe_done=False
        )
        self._timer: Timer | None = None
        self._timer_ms = 0  # when the timer fires

    @property
    def idle(self) -> bool:
        """Whether no poll is gathered or in flight."""
        return not self._gathered and not self._dispatcher.in_flight

    async def poll(self, max: int, wait_ms: int) -> list[M]:
        """Return up to ``max`` messages, shared fairly among the callers; after ``wait_ms`` possibly none.

        A cancelled caller keeps nothing: its messages are released. If it was the last caller of its request, the request has
        ended at the server when this returns.
        """
        loop = self._session.loop
        demand = _Demand[M](max, self._session.clock.monotonic_ms() + wait_ms, loop.create_future())
        self._gathered.append(demand)
        self._dispatcher.schedule()
        self._watch(demand.until_ms)
        try:
            return await demand.future
        except asyncio.CancelledError:
            if demand.future.done() and not demand.future.cancelled() and demand.future.exception() is None:
                self._release_unwanted(demand.future.result())
            await _stop_if_unwanted(demand.request)
            raise

    def _watch(self, until_ms: int) -> None:
        """Set the timer for a gathered demand: requests of earlier callers may take longer than its wait."""
        if self._dispatcher.free <= 0 and (self._timer is None or until_ms < self._timer_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = until_ms
            delay_ms = max(0, until_ms - self._session.clock.monotonic_ms())
            self._timer = self._session.clock.call_later(delay_ms, self._end_expired)

    def _end_expired(self) -> None:
        """Answer gathered demands whose time is over."""
        self._timer = None
        now = self._session.clock.monotonic_ms()
        gathered, self._gathered = self._gathered, deque()
        for demand in gathered:
            if demand.until_ms > now:
                self._gathered.append(demand)
            elif not demand.future.done():
                demand.future.set_result([])
        self._watch_gathered()

    def _watch_gathered(self) -> None:
        if self._gathered:
            self._watch(min(demand.until_ms for demand in self._gathered))

    def _refuse_all(self, error: TenantqError) -> None:
        refuse((demand.future for demand in self._gathered), error)
        self._gathered.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> Departure | None:
        demands = self._take()
        if not demands:
            return None
        request = _PollInFlight(demands, self._session.loop)
        return [demand.future for demand in demands], self._run(request)

    def _take(self) -> list[_Demand[M]]:
        demands: list[_Demand[M]] = []
        total = 0
        while self._gathered:
            demand = self._gathered[0]
            if demand.future.done():
                self._gathered.popleft()
                continue
            total += demand.max
            if demands and total > limits.BATCH_MESSAGES_MAX:
                break
            demands.append(self._gathered.popleft())
        return demands

    async def _run(self, request: _PollInFlight[M]) -> None:
        demands = request.demands
        self._watch_gathered()
        try:
            now = self._session.clock.monotonic_ms()
            wait_ms = max(0, min(demand.until_ms for demand in demands) - now)
            messages = await self._ask(sum(demand.max for demand in demands), wait_ms, request.stop)
            await self._dispatcher.before_answering()
            self._share_out(messages, demands)
        finally:
            request.ended.set_result(None)

    def _share_out(self, messages: Sequence[M], demands: list[_Demand[M]]) -> None:
        """Share messages among the callers, first come, first served. Callers that get none keep waiting while they have time."""
        present = [demand for demand in demands if not demand.future.done()]
        wanted = sum(demand.max for demand in present)
        while wanted < len(messages) and self._gathered:
            demand = self._gathered.popleft()
            if not demand.future.done():
                present.append(demand)
                wanted += demand.max
        shares = _shares(messages, [demand.max for demand in present])
        now = self._session.clock.monotonic_ms()
        again = []
        for demand, share in zip(present, shares, strict=True):
            if share or demand.until_ms <= now:
                demand.future.set_result(share)
            else:
                demand.request = None
                again.append(demand)
        self._gathered.extendleft(reversed(again))
        if wanted < len(messages):
            self._release_unwanted(messages[wanted:])

    def _release_unwanted(self, messages: Sequence[M]) -> None:
        if messages and not self._session.closed:
            self._session.spawn(self._release(messages), final=True)


def _shares(messages: Sequence[M], demands: list[int]) -> list[list[M]]:
    """Return one share per demand: in each turn one message for every demand that is not satisfied."""
    if len(demands) == 1:
        return [list(messages[: demands[0]])]
    shares: list[list[M]] = [[] for _ in demands]
    open_shares = list(range(len(demands)))
    source = iter(messages)
    while open_shares:
        still_open = []
        for index in open_shares:
            message = next(source, None)
            if message is None:
                return shares
            shares[index].append(message)
            if len(shares[index]) < demands[index]:
                still_open.append(index)
        open_shares = still_open
    return shares


async def _stop_if_unwanted(request: _PollInFlight[M] | None) -> None:
    """End a request that no caller waits for, so that it takes no messages from others."""
    if request is not None and not request.ended.done() and all(one.future.done() for one in request.demands):
        wake(request.stop)
        await asyncio.wait([request.ended], timeout=STOP_S)
