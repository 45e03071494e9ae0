"""Messages that are added in the order they were given: one request after the other, however often a limit says to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tenantq.client.coalesce import BYTES_MAX, ITEMS_MAX, ONE_MAY_BE_AT_FAULT, own_copy
from tenantq.client.outgoing import Outgoing, new_message, outgoing
from tenantq.client.values import Added
from tenantq.domain.message import NewMessage
from tenantq.errors import Limited, TenantqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tenantq.client.queue_calls import QueueCalls


class OrderedAdds:
    """One ``add_many``: makes batches of what the caller gives, in the caller's thread, and sends them one by one."""

    def __init__(self, calls: QueueCalls, options: dict[str, Any]) -> None:
        """Prepare to add to one queue; ``options`` are for messages that are bodies alone."""
        self._calls = calls
        self._options = options
        self._outcomes: list[Added | TenantqError] = []  # of what was ready to be sent
        self._refused: dict[int, TenantqError] = {}  # by place: what was found wrong before sending
        self._waits = 0  # for a limit, since something was added
        self._stopped: Limited | None = None  # a limit that was not waited for any longer: nothing goes out after it

    def batches(self, messages: Iterable[object]) -> Iterator[list[Outgoing]]:
        """Yield the messages ready to ``send``, in requests of at most 1,000 or 8 MiB. What is wrong keeps nobody out."""
        batch: list[Outgoing] = []
        size = 0
        for place, message in enumerate(messages):
            try:
                ready = outgoing(message if isinstance(message, NewMessage) else new_message(message, **self._options))
            except TenantqError as error:
                self._refused[place] = error
                continue
            if batch and (len(batch) >= ITEMS_MAX or size + ready.size > BYTES_MAX):
                yield batch
                batch, size = [], 0
            batch.append(ready)
            size += ready.size
        if batch:
            yield batch

    async def send(self, batch: list[Outgoing]) -> None:
        """Add a batch, in as many requests as it takes; raise what concerns neither its messages nor a limit."""
        parts = [batch]  # what is still to be sent, the next one last
        while parts and self._stopped is None:
            part = parts.pop()
            try:
                self._outcomes += await self._calls.send_adds(part)
                self._waits = 0
            except TenantqError as error:
                if error.maybe_done or not isinstance(error, (Limited, *ONE_MAY_BE_AT_FAULT)):
                    # Sent otherwise than it was sent, it might be added twice.
                    error.add_note(f"{len(self._outcomes)} messages had been sent before")
                    raise
                if isinstance(error, Limited):
                    parts += await self._after(error, part)
                elif len(part) > 1:
                    parts += _halves(part)
                else:
                    self._outcomes.append(error)
        if self._stopped is not None:
            self._outcomes += [own_copy(self._stopped) for part in parts for _ in part]

    def told(self, errors: Literal["raise", "return"]) -> list[Added]:
        """Return what became of each message, once all were sent; raise the first error, or have each stand in its place."""
        outcomes = list(self._outcomes)
        for place, refusal in self._refused.items():
            outcomes.insert(place, refusal)
        if errors == "raise":
            raise_first(outcomes)
        return [Added("", error=one) if isinstance(one, TenantqError) else one for one in outcomes]

    async def _after(self, limit: Limited, part: list[Outgoing]) -> list[list[Outgoing]]:
        """Return what to send of a part that a limit has refused, when it is time to."""
        core = self._calls.core
        pause_ms = core.pause_ms(self._waits + 1, limit)
        if pause_ms is not None:
            self._waits += 1
            await core.sleep(pause_ms)
        elif len(part) > 1 and self._waits < core.settings.retries.count:
            return _halves(
                part
            )  # the server asks for a longer pause than the policy allows, and for less it may be shorter
        else:
            self._stopped = limit
        return [part]


def _halves(part: list[Outgoing]) -> list[list[Outgoing]]:
    """Return the halves of a part, the first one last."""
    middle = (len(part) + 1) // 2
    return [part[middle:], part[:middle]]


def raise_first(outcomes: Sequence[object]) -> None:
    """Raise the first error among ``outcomes``, if there is one, with a note on the others."""
    failed = [(place, one) for place, one in enumerate(outcomes) if isinstance(one, TenantqError)]
    if failed:
        place, error = failed[0]
        error.add_note(f"number {place} of {len(outcomes)}, from 0; {len(failed)} failed, the others are done")
        raise error
