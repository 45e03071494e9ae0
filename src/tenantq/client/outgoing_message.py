"""Messages on their way to a queue: from what a caller hands in to what stands in a request."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq import wire
from tenantq.client.bodies import to_bytes
from tenantq.domain import limits
from tenantq.domain.message import NewMessage, check_message, is_plain
from tenantq.wire.json_bytes import SHORT_BYTES, bloats, text_or_base64

_ITEM_BYTES: Final = 160  # what a message takes in a request beside its body, about


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False):
    """A message on its way to the queue."""

    message: wire.WireMessage
    own_key: bool  # the caller gave a key
    size: int


def new_message(
    body: object,
    *,
    priority: int = 0,
    delay_ms: int = 0,
    ttl_ms: int | None = None,
    key: str | None = None,
    group: str | None = None,
    attributes: dict[str, str] | None = None,
    max_attempts: int | None = None,
) -> NewMessage:
    """Return a message with its body as bytes."""
    return NewMessage(
        body=to_bytes(body),
        priority=priority,
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
        key=key,
        group=group,
        attributes=attributes or {},
        max_attempts=max_attempts,
    )


def prepare_message(message: NewMessage) -> OutgoingMessage:
    """Check a message and make it ready to go."""
    plain = is_plain(message)
    if not plain:
        check_message(message)
    text, encoded = text_or_base64(message.body)
    size = _ITEM_BYTES + (len(message.body) if encoded is None else len(encoded))
    if plain:
        return OutgoingMessage(
            wire.WireMessage(body=text, body_base64=encoded, priority=message.priority), own_key=False, size=size
        )
    ready = wire.WireMessage(
        body=text,
        body_base64=encoded,
        priority=message.priority,
        delay_ms=message.delay_ms,
        ttl_ms=message.ttl_ms,
        key=message.key,
        group=message.group,
        attributes=message.attributes,
        max_attempts=message.max_attempts,
    )
    if message.attributes:
        size += sum(len(name) + len(value) for name, value in message.attributes.items())
    return OutgoingMessage(ready, message.key is not None, size)


def prepare_text(text: str, priority: int) -> OutgoingMessage | None:
    """Make a message that is nothing but a text, as most are, ready to go in few steps; None: it has to be looked at closely."""
    size = len(text)
    if (
        text.isascii()
        and size <= limits.BODY_BYTES_MAX
        and type(priority) is int
        and 0 <= priority <= limits.PRIORITY_MAX
        and (size <= SHORT_BYTES or not bloats(text.encode()))
    ):
        return OutgoingMessage(wire.WireMessage(body=text, priority=priority), own_key=False, size=_ITEM_BYTES + size)
    return None
