"""One row of the route table: how a call is found, decoded, answered and described."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from tenantq.domain.validation import explain
from tenantq.errors import Invalid, TenantqError
from tenantq.http.batch_limit import FEW_ITEMS_BYTES_MAX, begin_decoding, with_counted_items
from tenantq.http.body_item_count import check_item_count
from tenantq.http.duplicate_keys import check_keys, check_keys_in_slices
from tenantq.http.problem import malformed
from tenantq.http.reply import JsonReply, Reply, Stream
from tenantq.http.sliced_decoding import SlicedDecoder
from tenantq.service.service import Service

RouteHandler = Callable[[Service, Any, Any], Awaitable[object]]

SMALL_BODY_BYTES_MAX: Final = 1 << 20
"""Enough for a call without messages: settings, a reason, a thousand receipts."""

LIST_BODY_BYTES_MAX: Final = 8 << 20
"""Enough for a call that names a hundred thousand tenants or messages."""

BATCH_BODY_BYTES_MAX: Final = 1 << 30
"""Batches of messages are limited by the listener only."""

ITEMS_MAX: Final = 50_000
"""List items and object members of a body: a thousand messages with all their fields and attributes."""

LIST_ITEMS_MAX: Final = 150_000
"""For a call that names a hundred thousand tenants or messages."""

IMPORT_ITEMS_MAX: Final = 1_000_000
"""For one part of an export, with its idempotency keys."""


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No fields: an empty body, or ``{}``."""


RouteScope = Literal["tenant", "platform", "any"]
"""What a route works on: one tenant, the platform, or anything that every valid credential may ask for."""


@dataclass(slots=True, eq=False)
class Route:
    """A method and path, its handler, and everything that OpenAPI says about it.

    The handler's signature has the types of the query, ``QueryRequest[…]``, of the JSON body and of the reply. A handler returns a JSON
    value, a stream, or a ``JsonReply`` if the route's first status or the default headers do not fit. None is a reply without content.
    The body may be omitted if all of its fields may. ``describes`` replaces it in OpenAPI where the service checks a free mapping.
    """

    method: str
    path: str
    handler: RouteHandler
    _: KW_ONLY
    tag: str
    scope: RouteScope
    summary: str = ""  # the first sentence of the handler's docstring, unless given
    action: str = ""  # in access.MATRIX
    describes: type[msgspec.Struct] | None = None
    reply_kind: str = "application/json"
    statuses: tuple[int, ...] = (200,)  # of successful replies
    conflicts: bool = False  # 409 is possible
    batch: bool = False  # items succeed or fail one by one
    secured: bool = True  # requires a credential
    interrupted: Reply | None = None  # the reply of a waiting call when the server stops
    kinds: tuple[str, ...] = ()  # other content types that the client may ask for
    body_bytes_max: int = SMALL_BODY_BYTES_MAX  # as sent and inflated; the listener may allow less
    items_max: int = ITEMS_MAX  # list items and object members of a large body
    request: Any = field(init=False)
    query: type[msgspec.Struct] | None = field(init=False)
    reply: Any = field(init=False)  # None: not JSON
    default: Any = field(init=False, default=None)  # the request of an empty body; None: a body is required
    _decode: Callable[[bytes], Any] = field(init=False)
    _decode_few: Callable[[bytes], Any] = field(init=False)  # without counting the items
    _sliced: SlicedDecoder | None = field(init=False, default=None)  # created for the first large body

    def __post_init__(self) -> None:
        """Derive the types and the decoder."""
        hints = get_type_hints(self.handler)
        self.request = hints.get("body", Empty)
        (self.query,) = get_args(hints.get("request")) or (None,)
        self.reply = _json_type(hints["return"])
        if self.reply is NoneType:
            self.reply, self.statuses = None, (204,)
        self.summary = self.summary or (self.handler.__doc__ or "").partition("\n")[0].removesuffix(".")
        self._decode = msgspec.json.Decoder(with_counted_items(self.request)).decode
        self._decode_few = msgspec.json.Decoder(self.request).decode
        with suppress(msgspec.ValidationError):
            self.default = msgspec.json.decode(b"{}", type=self.request)

    def decode(self, body: bytes) -> Any:
        """Return the body as the route's request type; Invalid for wrong or duplicate fields, a 400 for what is not JSON."""
        if not body and self.default is not None:
            return self.default
        decoded = self._decoded(body)
        check_keys(body, decoded)
        return decoded

    def _decoded(self, body: bytes) -> Any:
        begin_decoding()
        try:
            return (self._decode_few if len(body) <= FEW_ITEMS_BYTES_MAX else self._decode)(body)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise _decoding_error(error, self.request, body) from error

    async def decode_large(self, body: bytes) -> Any:
        """Return a large body as ``decode`` does, after counting its items. Its lists are decoded in slices."""
        await check_item_count(body, self.items_max)
        if self._sliced is None:
            self._sliced = SlicedDecoder(self.request)
        if not self._sliced.has_lists:
            decoded = self._decoded(body)
            await check_keys_in_slices(body)
            return decoded
        try:
            return await self._sliced.decode(body)
        except (ValueError, RecursionError) as error:
            raise _decoding_error(error, self.request, body) from error

    def in_own_tenant(self) -> Route:
        """Return the same route for the credential's own tenant."""
        return replace(self, path=self.path.replace("/v1/tenants/{tenant}/", "/v1/"))


def _json_type(returned: Any) -> Any:
    """Return the type of the JSON that a handler returns, directly or as one of its kinds of reply; None: other content."""
    for kind in (returned, *get_args(returned)):
        if get_origin(kind) is JsonReply:
            return get_args(kind)[0]
    return None if returned in (Reply, Stream) else returned


def _decoding_error(error: ValueError | RecursionError, request: Any, body: bytes) -> TenantqError:
    """Return Invalid for wrong fields of a body, and a 400 for a body that is not JSON. Raises any other error."""
    if isinstance(error, msgspec.ValidationError):
        return Invalid(explain(error, request))
    if isinstance(error, UnicodeDecodeError):
        return malformed("body: must be UTF-8. Send other bytes in body_base64.")
    if isinstance(error, RecursionError):
        return malformed("body: nested too deeply")
    if isinstance(error, msgspec.DecodeError):
        return malformed(f"body: {error}" if body else "body: missing. Send a JSON object.")
    raise error
