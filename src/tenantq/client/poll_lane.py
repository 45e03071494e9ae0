"""Concurrent polls of one queue, with one lease length, sent as one and dealt out in turns.

Each caller gets at most what it asked for, and waits at most as long as it said. What arrives for callers that are gone meanwhile
goes to others who wait, and is released at once where nobody does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tenantq.client.coalesce import refuse
from tenantq.client.core import Core, closed
from tenantq.domain import limits
from tenantq.errors import TenantqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence

    from tenantq.runtime.clock import Timer

M = TypeVar("M")

REQUESTS_MAX: Final = 2
"""Polls of one lane that may be out at once."""
STOP_S: Final = 2.0
"""How long a cancelled caller waits for its request to end; it then ends by itself."""


class _Out(Generic[M]):
    """A request on its way, and those it was sent for."""

    __slots__ = ("demands", "ended", "stop")

    def __init__(self, demands: list[_Demand[M]], loop: asyncio.AbstractEventLoop) -> None:
        self.demands = demands
        self.stop: asyncio.Future[None] = loop.create_future()  # resolved when nobody waits for it any more
        self.ended: asyncio.Future[None] = loop.create_future()


class _Demand(Generic[M]):
    __slots__ = ("future", "max", "out", "until_ms")

    def __init__(self, max: int, until_ms: int, future: asyncio.Future[list[M]]) -> None:
        self.max = max
        self.until_ms = until_ms  # on the monotonic clock
        self.future = future
        self.out: _Out[M] | None = None  # the request it went with


class PollLane(Generic[M]):
    """Where the polls of one queue with one lease length gather; those that wait and those that do not in lanes of their own.

    ``ask`` polls once for (max, wait_ms), and stops when the future it gets is resolved; ``release`` gives back what nobody wants.
    """

    def __init__(
        self,
        core: Core,
        ask: Callable[[int, int, asyncio.Future[None]], Awaitable[Sequence[M]]],
        release: Callable[[Sequence[M]], Coroutine[Any, Any, None]],
        *,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        self._core = core
        self._ask = ask
        self._release = release
        self._requests_max = requests_max
        self._gathered: deque[_Demand[M]] = deque()
        self._out = 0
        self._scheduled = False
        self._waking = False  # callers who were just answered have not gone out again yet
        self._timer: Timer | None = None
        self._timer_ms = 0  # when it rings

    @property
    def idle(self) -> bool:
        """Whether nobody waits and nothing is out."""
        return not self._gathered and not self._out

    async def poll(self, max: int, wait_ms: int) -> list[M]:
        """Return up to ``max`` messages, dealt fairly among the callers; after ``wait_ms`` maybe none.

        A caller that is cancelled keeps nothing: what was dealt to it is released, and where it was the last that a request was sent
        for, the server is told, and has stopped when this returns.
        """
        loop = self._core.loop
        demand = _Demand[M](max, self._core.clock.monotonic_ms() + wait_ms, loop.create_future())
        self._gathered.append(demand)
        if self._out < self._requests_max:
            self._schedule()
        else:
            self._watch(demand.until_ms)
        try:
            return await demand.future
        except asyncio.CancelledError:
            if demand.future.done() and not demand.future.cancelled() and demand.future.exception() is None:
                self._give_back(demand.future.result())
            await _stop_if_unwanted(demand.out)
            raise

    def _watch(self, until_ms: int) -> None:
        """Look after one who has gathered: requests of earlier callers may be out for longer than it wants to wait."""
        if self._timer is None or until_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = until_ms
            pause_ms = max(0, until_ms - self._core.clock.monotonic_ms())
            self._timer = self._core.clock.call_later(pause_ms, self._send_away)

    def _send_away(self) -> None:
        """Answer those whose time is over while they have not even gone out."""
        self._timer = None
        now = self._core.clock.monotonic_ms()
        staying: deque[_Demand[M]] = deque()
        for demand in self._gathered:
            if demand.until_ms > now:
                staying.append(demand)
            elif not demand.future.done():
                demand.future.set_result([])
        self._gathered = staying
        self._watch_all()

    def _watch_all(self) -> None:
        if self._gathered:
            self._watch(min(demand.until_ms for demand in self._gathered))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._core.loop.call_soon(self._depart)

    def _depart(self) -> None:
        self._scheduled = False
        self._waking = False
        if self._core.closed:
            refuse(_futures(self._gathered), closed())
            self._gathered.clear()
            if self._timer is not None:
                self._timer.cancel()
        while self._gathered and self._out < self._requests_max:
            demands = self._take()
            if demands:
                self._out += 1
                out = _Out(demands, self._core.loop)
                for demand in demands:
                    demand.out = out
                self._core.spawn(self._request(out))
        self._watch_all()

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

    async def _request(self, out: _Out[M]) -> None:
        demands = out.demands
        try:
            now = self._core.clock.monotonic_ms()
            wait_ms = max(0, min(demand.until_ms for demand in demands) - now)
            messages = await self._ask(sum(demand.max for demand in demands), wait_ms, out.stop)
            while self._waking:  # noqa: ASYNC110  # a turn of the loop or two: nothing to be told of
                await asyncio.sleep(0)
            self._waking = True
            self._deal(messages, demands)
        except asyncio.CancelledError:
            refuse(_futures(demands), closed())
            raise
        except TenantqError as error:
            refuse(_futures(demands), error)
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to those who wait
            bug = TenantqError(f"internal error of the client: {error!r}")
            bug.__cause__ = error
            refuse(_futures(demands), bug)
        finally:
            out.ended.set_result(None)
            self._out -= 1
            if self._core.closed:
                self._depart()
            elif not self._scheduled:
                self._scheduled = True
                self._core.loop.call_soon(self._depart_next_turn)

    def _depart_next_turn(self) -> None:
        """Let the callers who were just answered go along: they wake in this turn of the loop."""
        self._core.loop.call_soon(self._depart)

    def _deal(self, messages: Sequence[M], demands: list[_Demand[M]]) -> None:
        """Deal messages out in turns, to those who asked first; who gets none goes on waiting while it has time."""
        present = [demand for demand in demands if not demand.future.done()]
        room = sum(demand.max for demand in present)
        while room < len(messages) and self._gathered:
            demand = self._gathered.popleft()
            if not demand.future.done():
                present.append(demand)
                room += demand.max
        hands = _dealt(messages, [demand.max for demand in present])
        now = self._core.clock.monotonic_ms()
        again = []
        for demand, hand in zip(present, hands, strict=True):
            if hand or demand.until_ms <= now:
                demand.future.set_result(hand)
            else:
                demand.out = None
                again.append(demand)
        self._gathered.extendleft(reversed(again))
        if room < len(messages):
            self._give_back(messages[room:])

    def _give_back(self, messages: Sequence[M]) -> None:
        if messages and not self._core.closed:
            self._core.spawn(self._release(messages), last=True)


def _dealt(messages: Sequence[M], demands: list[int]) -> list[list[M]]:
    """Return one hand per demand: in each turn one message for everyone who has not enough yet."""
    if len(demands) == 1:
        return [list(messages[: demands[0]])]
    hands: list[list[M]] = [[] for _ in demands]
    open_hands = list(range(len(demands)))
    source = iter(messages)
    while open_hands:
        still_open = []
        for place in open_hands:
            message = next(source, None)
            if message is None:
                return hands
            hands[place].append(message)
            if len(hands[place]) < demands[place]:
                still_open.append(place)
        open_hands = still_open
    return hands


async def _stop_if_unwanted(out: _Out[M] | None) -> None:
    """End a request when nobody waits for it any more, so that it takes nothing that others could have."""
    if out is not None and not out.ended.done() and all(demand.future.done() for demand in out.demands):
        if not out.stop.done():
            out.stop.set_result(None)
        await asyncio.wait([out.ended], timeout=STOP_S)


def _futures(demands: Iterable[_Demand[M]]) -> Iterator[asyncio.Future[list[M]]]:
    return (demand.future for demand in demands)
