"""Concurrent calls of one kind, on one queue, sent together, without changing what any caller sees.

The first call goes out at once: at the end of the event loop's turn, so that all callers of that turn go along. While requests are
out, newcomers gather and go with the next. Nothing ever waits for company. Answers that arrive together are handed out one after the
other, and who was answered first goes out again first: the server has work while this process still prepares the rest.

Each caller gets its own outcome. Where a whole request is refused because of what may be the fault of one item in it, the items are
sent again in smaller parts, so that nobody is refused for a neighbour's sake.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tenantq.client.core import Core, closed
from tenantq.errors import Conflict, Invalid, Limited, TenantqError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence


Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

ITEMS_MAX: Final = 1_000
BYTES_MAX: Final = 8 << 20
REQUESTS_MAX: Final = 2
"""Requests of one lane that may be out: two, so that the server has the next one when it has answered the last."""
SHARED_FROM: Final = 32
"""From this many gathered items on, they are shared out among the requests that may go."""

ONE_MAY_BE_AT_FAULT: Final = (Invalid, TooLarge, Conflict)
"""Refusals of a whole request for what may be the fault of one item in it, or of their number."""


class _Entry(Generic[Item, Outcome]):
    __slots__ = ("future", "item", "retries", "size")

    def __init__(self, item: Item, size: int, future: asyncio.Future[Outcome]) -> None:
        self.item = item
        self.size = size
        self.future = future
        self.retries = 0

    def settle(self, outcome: Outcome | TenantqError) -> None:
        if self.future.done():
            return  # its caller is gone
        if isinstance(outcome, TenantqError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Lane(Generic[Item, Outcome]):
    """Where the calls of one kind on one queue gather.

    ``send`` sends a batch and tells one outcome or error per item, in order; it raises what concerns the batch as a whole.
    """

    def __init__(
        self,
        core: Core,
        send: Callable[[list[Item]], Awaitable[Sequence[Outcome | TenantqError]]],
        *,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        self._core = core
        self._send = send
        self._requests_max = requests_max
        self._gathered: deque[_Entry[Item, Outcome]] = deque()
        self._out = 0  # requests on their way
        self._resting = 0  # entries that pause before another try
        self._scheduled = False
        self._waking = False  # callers who were just answered have not gone out again yet

    @property
    def idle(self) -> bool:
        """Whether there is nothing gathered, resting or out."""
        return not self._gathered and not self._out and not self._resting

    def put(self, item: Item, size: int) -> asyncio.Future[Outcome]:
        """Have ``item`` done with others; ``size`` is about what it takes in the request, in bytes.

        Who cancels the future before its request has gone out takes the item back.
        """
        loop = self._core.loop
        future: asyncio.Future[Outcome] = loop.create_future()
        self._gathered.append(_Entry(item, size, future))
        if not self._scheduled and self._out < self._requests_max:
            self._scheduled = True
            loop.call_soon(self._depart)
        return future

    def _depart(self) -> None:
        """Send what has gathered, as far as requests may go."""
        self._scheduled = False
        self._waking = False
        if self._core.closed:
            _refuse(self._gathered, closed())
            self._gathered.clear()
        while self._gathered and self._out < self._requests_max:
            batch = self._take(self._share())
            if batch:
                self._out += 1
                self._core.spawn(self._request(batch))

    def _share(self) -> int:
        count = len(self._gathered)
        if count < SHARED_FROM:
            return count
        free = self._requests_max - self._out
        return min(ITEMS_MAX, -(-count // free))

    def _take(self, count: int) -> list[_Entry[Item, Outcome]]:
        batch: list[_Entry[Item, Outcome]] = []
        size = 0
        gathered = self._gathered
        while gathered and len(batch) < count:
            entry = gathered[0]
            if entry.future.done():
                gathered.popleft()
                continue
            size += entry.size
            if batch and size > BYTES_MAX:
                break
            batch.append(gathered.popleft())
        return batch

    async def _request(self, batch: list[_Entry[Item, Outcome]]) -> None:
        """Have a batch answered, then let the next one go."""
        try:
            await self._deliver(batch)
        except asyncio.CancelledError:
            _refuse(batch, closed(maybe_done=True))
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to those who wait
            bug = TenantqError(f"internal error of the client: {error!r}")
            bug.__cause__ = error
            _refuse(batch, bug)
        finally:
            self._out -= 1
            if self._core.closed:
                self._depart()
            else:
                self._depart_later()

    def _depart_later(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._core.loop.call_soon(self._depart_next_turn)

    def _depart_next_turn(self) -> None:
        """Let the callers who were just answered go along: they wake in this turn of the loop."""
        self._core.loop.call_soon(self._depart)

    async def _deliver(self, batch: list[_Entry[Item, Outcome]]) -> None:
        """Give every entry its outcome, in as many requests as that takes."""
        try:
            outcomes = await self._send([entry.item for entry in batch])
        except TenantqError as error:
            if error.maybe_done:
                _refuse(batch, error)  # to send it otherwise than it was sent might do it twice
            elif isinstance(error, Limited):
                await self._wait_for_limit(batch, error)
            elif len(batch) > 1 and isinstance(error, ONE_MAY_BE_AT_FAULT):
                await self._deliver_halves(batch)
            else:
                _refuse(batch, error)
        else:
            while self._waking:  # noqa: ASYNC110  # a turn of the loop or two: nothing to be told of
                await asyncio.sleep(0)
            self._waking = True
            for entry, outcome in zip(batch, outcomes, strict=True):
                entry.settle(outcome)
            self._depart_later()

    async def _deliver_halves(self, batch: list[_Entry[Item, Outcome]]) -> None:
        middle = (len(batch) + 1) // 2
        for half in (batch[:middle], batch[middle:]):
            wanted = [entry for entry in half if not entry.future.done()]
            if wanted:
                await self._deliver(wanted)

    async def _wait_for_limit(self, batch: list[_Entry[Item, Outcome]], error: Limited) -> None:
        """Let a batch that a limit has refused pause as the server asks, and try again.

        Where the policy does not wait for it, there may still be room for some of it. The smallest item alone tells: if the limit
        refuses that one too, it refuses them all.
        """
        if len(batch) > 1 and self._core.pause_ms(max(entry.retries for entry in batch) + 1, error) is None:
            smallest = min(batch, key=lambda entry: entry.size)
            others = [entry for entry in batch if entry is not smallest]
            try:
                (outcome,) = await self._send([smallest.item])
            except Limited as again:
                if again.maybe_done:
                    smallest.settle(again)
                    batch = others
                else:
                    error = again
            except TenantqError as other:
                smallest.settle(other)
                await self._deliver(others)
                return
            else:
                smallest.settle(outcome)
                await self._deliver_halves(others)
                return
        self._rest(batch, error)

    def _rest(self, batch: list[_Entry[Item, Outcome]], error: Limited) -> None:
        """Let entries pause as long as the error says, each as often as the policy allows; then they gather again."""
        pauses: dict[int, list[_Entry[Item, Outcome]]] = {}
        for entry in batch:
            entry.retries += 1
            pauses.setdefault(entry.retries, []).append(entry)
        for retry, entries in pauses.items():
            pause_ms = self._core.pause_ms(retry, error)
            if self._core.closed:
                _refuse(entries, closed())
            elif pause_ms is None:
                _refuse(entries, error)
            else:
                self._resting += len(entries)
                self._core.spawn(self._gather_again(entries, pause_ms))

    async def _gather_again(self, entries: list[_Entry[Item, Outcome]], pause_ms: int) -> None:
        try:
            await self._core.sleep(pause_ms)
        except asyncio.CancelledError:
            _refuse(entries, closed())
            raise
        finally:
            self._resting -= len(entries)
        self._gathered.extendleft(reversed(entries))
        if not self._scheduled:
            self._scheduled = True
            self._core.loop.call_soon(self._depart)


def own_copy(error: TenantqError) -> TenantqError:
    """Return the same error as an object of its own, for another caller."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    if hasattr(error, "__notes__"):
        own.__notes__ = list(error.__notes__)
    return own


def refuse(futures: Iterable[asyncio.Future[Any]], error: TenantqError) -> None:
    """Give everyone who still waits the error, each its own copy: an exception keeps the trace of whoever raised it."""
    for future in futures:
        if not future.done():
            future.set_exception(own_copy(error))


def _refuse(entries: Iterable[_Entry[Item, Outcome]], error: TenantqError) -> None:
    refuse((entry.future for entry in entries), error)
