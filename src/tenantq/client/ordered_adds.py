"""Adds messages in order: one request after the other, also across rate limits."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from tenantq.client.batcher import BYTES_MAX, ITEMS_MAX, ONE_MAY_BE_AT_FAULT
from tenantq.client.bodies import to_bytes
from tenantq.client.outgoing_message import OutgoingMessage, new_message, prepare_message, prepare_text
from tenantq.client.queue_calls import QueueCalls
from tenantq.client.values import Added
from tenantq.domain.message import NewMessage, is_plain
from tenantq.errors import Invalid, Limited, TenantqError


class OrderedAdds:
    """One ``add_many``: divides the messages into batches, in the caller's thread, and sends them one by one."""

    def __init__(self, calls: QueueCalls, **options: Any) -> None:
        """Prepare to add to one queue. ``options`` are for messages that are not a ``NewMessage``."""
        self._calls = calls
        self._template = new_message("", **options)
        self._plain = is_plain(self._template)
        self._outcomes: list[Added | TenantqError] = []  # of valid messages
        self._refused: dict[int, TenantqError] = {}  # by index: invalid messages, which are not sent
        self._waits = 0  # for a limit, since a message was added
        self._stopped: Limited | None = None  # a limit that was not waited for: nothing is sent after it

    def batches(self, messages: Iterable[object]) -> Iterator[list[OutgoingMessage]]:
        """Yield batches for ``send``, each of at most 1,000 messages or 8 MiB. Invalid messages are left out.

        Raises Invalid for a single body, which would be divided into characters.
        """
        if isinstance(messages, str | bytes | bytearray | memoryview):
            raise Invalid("messages: must be an iterable of bodies, not a single body. Use add for one message.")
        batch: list[OutgoingMessage] = []
        size = 0
        for index, message in enumerate(messages):
            try:
                ready = self._prepare(message)
            except TenantqError as error:
                self._refused[index] = error
                continue
            if batch and (len(batch) >= ITEMS_MAX or size + ready.size > BYTES_MAX):
                yield batch
                batch, size = [], 0
            batch.append(ready)
            size += ready.size
        if batch:
            yield batch

    def _prepare(self, message: object) -> OutgoingMessage:
        if isinstance(message, NewMessage):
            return prepare_message(message)
        plain = prepare_text(message, self._template.priority) if self._plain and type(message) is str else None
        return plain or prepare_message(replace(self._template, body=to_bytes(message)))

    async def send(self, batch: list[OutgoingMessage]) -> None:
        """Add a batch, in as many requests as needed. Raises errors that are neither a message's nor a limit's."""
        with self._calls.sending(batch) as ready:
            await self._send(ready)

    async def _send(self, batch: list[OutgoingMessage]) -> None:
        parts = [batch]  # left to send, the next one last
        while parts and self._stopped is None:
            part = parts.pop()
            try:
                self._outcomes += await self._calls.send_adds(part)
                self._waits = 0
            except TenantqError as error:
                if error.maybe_done or not isinstance(error, (Limited, *ONE_MAY_BE_AT_FAULT)):
                    # Sending it in another form could add it twice.
                    error.add_note(f"{len(self._outcomes)} earlier messages were sent")
                    raise
                if isinstance(error, Limited):
                    parts += await self._after(error, part)
                elif len(part) > 1:
                    parts += _halves(part)
                else:
                    self._outcomes.append(error)
        if self._stopped is not None:
            self._outcomes += [self._stopped.copy() for part in parts for _ in part]

    def results(self, errors: Literal["raise", "return"]) -> list[Added]:
        """Return the result of each message once all were sent. Raises the first error, or returns each at its position."""
        outcomes = list(self._outcomes)
        for index, error in self._refused.items():
            outcomes.insert(index, error)
        if errors == "raise":
            raise_first(outcomes)
        return [Added("", error=one) if isinstance(one, TenantqError) else one for one in outcomes]

    async def _after(self, limit: Limited, part: list[OutgoingMessage]) -> list[list[OutgoingMessage]]:
        """Wait as a limit asks that refused ``part``, and return what to send next."""
        session = self._calls.session
        delay_ms = session.retry_delay_ms(self._waits + 1, limit)
        if delay_ms is not None:
            self._waits += 1
            await session.sleep(delay_ms)
        elif len(part) > 1 and self._waits < session.settings.retries.count:
            return _halves(part)  # the requested delay exceeds the policy; a smaller part may need less
        else:
            self._stopped = limit
        return [part]


def _halves(part: list[OutgoingMessage]) -> list[list[OutgoingMessage]]:
    """Return the halves of a part, the first half last."""
    middle = (len(part) + 1) // 2
    return [part[middle:], part[:middle]]


def raise_first(outcomes: Sequence[object]) -> None:
    """Raise the first error among ``outcomes``, if any, with a note on the others."""
    failed = [(index, one) for index, one in enumerate(outcomes) if isinstance(one, TenantqError)]
    if failed:
        index, error = failed[0]
        error.add_note(f"item {index} (from 0); {len(failed)} of {len(outcomes)} failed, the others succeeded")
        raise error
