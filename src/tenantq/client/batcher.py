"""Sends concurrent calls of one kind, on one queue, in shared requests.

Each caller gets its own result. If a request is refused because of what may be one item, the items are sent again in smaller parts,
so that only the caller at fault gets the error.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tenantq.client.dispatcher import REQUESTS_MAX, Departure, Dispatcher, refuse
from tenantq.client.session import ClientSession, closed
from tenantq.errors import Conflict, Invalid, Limited, TenantqError, TooLarge

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

ITEMS_MAX: Final = 1_000
BYTES_MAX: Final = 8 << 20
SHARED_FROM: Final = 32
"""From this many gathered items on, they are divided among the free requests."""

ONE_MAY_BE_AT_FAULT: Final = (Invalid, TooLarge, Conflict)
"""Errors of a whole request that one of its items, or their number, may have caused."""


@dataclass(slots=True, eq=False)
class _BatchEntry(Generic[Item, Outcome]):
    item: Item
    size: int
    future: asyncio.Future[Outcome]
    retries: int = 0

    def settle(self, outcome: Outcome | TenantqError) -> None:
        if self.future.done():
            return  # the caller was cancelled
        if isinstance(outcome, TenantqError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Batcher(Generic[Item, Outcome]):
    """Gathers the calls of one kind on one queue.

    ``send`` sends a batch and returns one outcome or error per item, in order. It raises errors of the batch as a whole.
    """

    def __init__(
        self,
        session: ClientSession,
        send: Callable[[list[Item]], Awaitable[Sequence[Outcome | TenantqError]]],
        *,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        self._session = session
        self._send = send
        self._gathered: deque[_BatchEntry[Item, Outcome]] = deque()
        self._delayed = 0  # entries that wait before a retry
        self._dispatcher = Dispatcher(
            session, self._start, self._refuse_all, requests_max=requests_max, maybe_done=True
        )

    @property
    def idle(self) -> bool:
        """Whether no call is gathered, delayed or in flight."""
        return not self._gathered and not self._dispatcher.in_flight and not self._delayed

    def put(self, item: Item, size: int) -> asyncio.Future[Outcome]:
        """Send ``item`` together with others and return the future of its outcome. ``size`` is about its bytes in the request.

        Cancelling the future before the request was sent withdraws the item.
        """
        future: asyncio.Future[Outcome] = self._session.loop.create_future()
        self._gathered.append(_BatchEntry(item, size, future))
        self._dispatcher.schedule()
        return future

    def _refuse_all(self, error: TenantqError) -> None:
        _refuse(self._gathered, error)
        self._gathered.clear()

    def _start(self) -> Departure | None:
        count = len(self._gathered)
        if count >= SHARED_FROM:
            count = min(ITEMS_MAX, -(-count // self._dispatcher.free))
        batch = self._take(count)
        return ([entry.future for entry in batch], self._deliver(batch)) if batch else None

    def _take(self, count: int) -> list[_BatchEntry[Item, Outcome]]:
        batch: list[_BatchEntry[Item, Outcome]] = []
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

    async def _deliver(self, batch: list[_BatchEntry[Item, Outcome]]) -> None:
        """Settle every entry, in as many requests as needed."""
        try:
            outcomes = await self._send([entry.item for entry in batch])
        except TenantqError as error:
            if error.maybe_done:
                _refuse(batch, error)  # sending it in another form could execute it twice
            elif isinstance(error, Limited):
                await self._wait_for_limit(batch, error)
            elif len(batch) > 1 and isinstance(error, ONE_MAY_BE_AT_FAULT):
                await self._deliver_halves(batch)
            else:
                _refuse(batch, error)
        else:
            await self._dispatcher.before_answering()
            for entry, outcome in zip(batch, outcomes, strict=True):
                entry.settle(outcome)
            self._dispatcher.schedule_after_answers()

    async def _deliver_halves(self, batch: list[_BatchEntry[Item, Outcome]]) -> None:
        middle = (len(batch) + 1) // 2
        for half in (batch[:middle], batch[middle:]):
            wanted = [entry for entry in half if not entry.future.done()]
            if wanted:
                await self._deliver(wanted)

    async def _wait_for_limit(self, batch: list[_BatchEntry[Item, Outcome]], error: Limited) -> None:
        """Retry a batch that a limit refused, after the delay that the server asks for.

        If the retry policy does not wait, the limit may still admit a part of the batch. The smallest item decides: if the limit
        refuses that one alone, it refuses all.
        """
        if len(batch) > 1 and self._session.retry_delay_ms(max(entry.retries for entry in batch) + 1, error) is None:
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
        self._delay(batch, error)

    def _delay(self, batch: list[_BatchEntry[Item, Outcome]], error: Limited) -> None:
        """Gather entries again after the delay for their number of retries. Entries without retries left get the error."""
        by_retries: dict[int, list[_BatchEntry[Item, Outcome]]] = {}
        for entry in batch:
            entry.retries += 1
            by_retries.setdefault(entry.retries, []).append(entry)
        for retry, entries in by_retries.items():
            delay_ms = self._session.retry_delay_ms(retry, error)
            if self._session.closed:
                _refuse(entries, closed())
            elif delay_ms is None:
                _refuse(entries, error)
            else:
                self._delayed += len(entries)
                self._session.spawn(self._gather_again(entries, delay_ms))

    async def _gather_again(self, entries: list[_BatchEntry[Item, Outcome]], delay_ms: int) -> None:
        try:
            await self._session.sleep(delay_ms)
        except asyncio.CancelledError:
            _refuse(entries, closed())
            raise
        finally:
            self._delayed -= len(entries)
        self._gathered.extendleft(reversed(entries))
        self._dispatcher.schedule()


def _refuse(entries: Iterable[_BatchEntry[Item, Outcome]], error: TenantqError) -> None:
    refuse((entry.future for entry in entries), error)
