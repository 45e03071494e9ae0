"""Which queues of a tenant have the dead letters of its other queues."""

from collections.abc import Iterable
from typing import Final

from tenantq.domain.names import FIFO_SUFFIX, dead_letter_name
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.runtime.loop_slices import next_slice

_TAILS: Final = ("-dlq", "-dlq" + FIFO_SUFFIX)
_SLICE: Final = 512  # queues


class DeadLetterQueues:
    """The dead-letter queues of a tenant."""

    def __init__(self) -> None:
        self._of: dict[str, QueueState] = {}  # by the name of the queue they belong to
        self.names: set[str] = set()

    def add(self, queue: QueueState, letters: QueueState) -> None:
        """Add the dead-letter queue of a queue."""
        self._of[queue.name] = letters
        self.names.add(letters.name)

    def depth_of(self, queues: Iterable[QueueState]) -> int:
        """Return how many dead letters some queues have."""
        if not self._of:
            return 0
        return sum([letters.messages for queue in queues if (letters := self._of.get(queue.name)) is not None])


async def find_dead_letter_queues(tenant: TenantState) -> DeadLetterQueues:
    """Return the dead-letter queues of a tenant. Other work runs between slices."""
    found, queues, has_tails = DeadLetterQueues(), list(tenant.queues.values()), False
    parts = [queues[at : at + _SLICE] for at in range(0, len(queues), _SLICE)]
    for part in parts:
        has_tails = has_tails or any(queue.name.endswith(_TAILS) for queue in part)
        if part is not parts[-1]:
            await next_slice()
    for part in parts:
        for queue in part:
            # building the default name takes longer than reading the queue, and most tenants have no such queue
            name = queue.config.dead_letter or (has_tails and dead_letter_name(queue.name))
            if name and name != queue.name and (letters := tenant.queues.get(name)) is not None:
                found.add(queue, letters)
        if part is not parts[-1]:
            await next_slice()
    return found
