"""What one call of each case does, through the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantq.errors import TimedOut
from tenantq.load.drive import PartlyDoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenantq.client import Added, AsyncQueue
    from tenantq.errors import TenantqError
    from tenantq.load.drive import Work

    QueueOf = Callable[[int], AsyncQueue]
    """Which queue a loop works on, by its number."""

_POLL_WAIT_MS: Final = 5_000


def adding(queue_of: QueueOf, body: str) -> Work:
    """Add one message."""

    async def add(number: int) -> int:
        await queue_of(number).add(body)
        return 1

    return add


def adding_many(queue_of: QueueOf, body: str, batch: int) -> Work:
    """Add a batch."""
    bodies = [body] * batch

    async def add(number: int) -> int:
        added = await queue_of(number).add_many(bodies, errors="return")
        errors = _errors(added)
        if errors and len(errors) < batch:
            raise PartlyDoneError(batch - len(errors), errors[0])
        if errors:
            raise errors[0]
        return batch

    return add


def cycling(queue_of: QueueOf, body: str) -> Work:
    """Add one message, lease one and ack it."""

    async def cycle(number: int) -> int:
        queue = queue_of(number)
        await queue.add(body)
        messages = await queue.poll(1, wait_ms=_POLL_WAIT_MS)
        if not messages:
            raise _nothing_came(queue)
        await messages[0].ack()
        return 1

    return cycle


def cycling_many(queue_of: QueueOf, body: str, batch: int) -> Work:
    """Add a batch, lease as many and ack them."""
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


def _errors(added: Sequence[Added]) -> list[TenantqError]:
    return [one.error for one in added if one.error is not None]


def _nothing_came(queue: AsyncQueue) -> TimedOut:
    return TimedOut(f"no message came within {_POLL_WAIT_MS} ms: does somebody else take them?", queue=queue.name)
