"""The calls of each case, through the SDK."""

from collections.abc import Callable
from typing import Final

from tenantq.client import AsyncQueue
from tenantq.errors import TimedOut
from tenantq.load.closed_loop import LoadCall, PartlyDoneError

QueueOf = Callable[[int], AsyncQueue]
"""Returns the queue of a loop, by its number."""

_POLL_WAIT_MS: Final = 5_000


def make_add(queue_of: QueueOf, body: str) -> LoadCall:
    """Return a call that adds one message."""

    async def add(number: int) -> int:
        await queue_of(number).add(body)
        return 1

    return add


def make_batch_add(queue_of: QueueOf, body: str, batch: int) -> LoadCall:
    """Return a call that adds a batch."""
    bodies = [body] * batch

    async def add(number: int) -> int:
        added = await queue_of(number).add_many(bodies, errors="return")
        errors = [one.error for one in added if one.error is not None]
        if errors and len(errors) < batch:
            raise PartlyDoneError(batch - len(errors), errors[0])
        if errors:
            raise errors[0]
        return batch

    return add


def make_cycle(queue_of: QueueOf, body: str) -> LoadCall:
    """Return a call that adds a message, leases one and acks it."""

    async def cycle(number: int) -> int:
        queue = queue_of(number)
        await queue.add(body)
        messages = await queue.poll(1, wait_ms=_POLL_WAIT_MS)
        if not messages:
            raise _nothing_came(queue)
        await messages[0].ack()
        return 1

    return cycle


def make_batch_cycle(queue_of: QueueOf, body: str, batch: int) -> LoadCall:
    """Return a call that adds a batch, leases the same number of messages and acks them."""
    bodies = [body] * batch

    async def cycle(number: int) -> int:
        queue = queue_of(number)
        await queue.add_many(bodies)
        left = batch
        while left:
            messages = await queue.poll(left, wait_ms=_POLL_WAIT_MS)
            if not messages:
                raise _nothing_came(queue)
            await queue.ack_many(messages)
            left -= len(messages)
        return batch

    return cycle


def _nothing_came(queue: AsyncQueue) -> TimedOut:
    return TimedOut(
        f"no message arrived within {_POLL_WAIT_MS} ms; another consumer may be polling the queue", queue=queue.name
    )
