"""Prepares messages for an add request."""

from typing import Any, Final

import msgspec

from tenantq.client.bodies import to_bytes
from tenantq.domain import limits
from tenantq.domain.message import NewMessage, check_message, is_plain
from tenantq.domain.validation import projected
from tenantq.wire.json_bytes import SHORT_BYTES, bloats, text_or_base64
from tenantq.wire.messages import WireMessage

_ITEM_BYTES: Final = 160  # about the size of a message in a request, without its body


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False):
    """A validated message in its wire format."""

    message: WireMessage
    own_key: bool  # the caller set a key
    size: int
    trace: Any = None  # context of the span that adds it


def new_message(body: object, *, attributes: dict[str, str] | None = None, **options: Any) -> NewMessage:
    """Return a message with its body as bytes. ``options`` are fields of NewMessage."""
    return NewMessage(body=to_bytes(body), attributes=attributes or {}, **options)


def prepare_message(message: NewMessage) -> OutgoingMessage:
    """Validate a message and return its wire format."""
    plain = is_plain(message)
    if not plain:
        check_message(message)
    text, encoded = text_or_base64(message.body)
    size = _ITEM_BYTES + (len(message.body) if encoded is None else len(encoded))
    if plain:
        ready = WireMessage(body=text, body_base64=encoded, priority=message.priority)
        return OutgoingMessage(ready, own_key=False, size=size)
    size += sum(len(name) + len(value) for name, value in message.attributes.items())
    ready = projected(WireMessage, message, body=text, body_base64=encoded)
    return OutgoingMessage(ready, message.key is not None, size)


def prepare_text(text: str, priority: int) -> OutgoingMessage | None:
    """Return the wire format of a plain text message, which most are, in few steps; None: use ``prepare_message``."""
    size = len(text)
    if (
        text.isascii()
        and size <= limits.BODY_BYTES_MAX
        and type(priority) is int
        and priority in limits.PRIORITIES
        and (size <= SHORT_BYTES or not bloats(text.encode()))
    ):
        return OutgoingMessage(WireMessage(body=text, priority=priority), own_key=False, size=_ITEM_BYTES + size)
    return None
