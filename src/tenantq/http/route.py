"""One row of the route table: how a call is found, decoded, answered and described."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tenantq.domain.validation import explain
from tenantq.errors import Invalid
from tenantq.http.batch_limit import begin_decoding, with_counted_items
from tenantq.http.duplicate_keys import check_keys, check_keys_in_slices
from tenantq.http.item_limit import check_items
from tenantq.http.problem import malformed
from tenantq.http.sliced_lists import SlicedLists

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tenantq.http.reply import Reply, Stream
    from tenantq.http.request import Request
    from tenantq.service import Service

    Handler = Callable[[Service, Request, Any], Awaitable[Reply | Stream | Coroutine[Any, Any, Reply]]]


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


_PLATFORM_PATHS: Final = frozenset((
    "/v1/tenants", "/v1/erasures", "/v1/erasures/{id}", "/v1/audit", "/v1/platform/keys", "/v1/platform/keys/{key_id}",
    "/v1/backups", "/v1/cluster", "/v1/cluster/members/{id}/drain", "/metrics",
))  # fmt: skip
_ANY_CREDENTIAL_PATHS: Final = frozenset(("/healthz", "/readyz", "/openapi.json", "/docs", "/v1/topology", "/v1/poll"))

Scope = Literal["tenant", "platform", "any"]


def _scope_of(path: str) -> Scope:
    """Return the scope of a path: one tenant, the platform, or anything that every valid credential may call."""
    if path in _PLATFORM_PATHS:
        return "platform"
    return "any" if path in _ANY_CREDENTIAL_PATHS else "tenant"


@dataclass(slots=True, eq=False)
class Route:
    """A method and path, its handler, and everything that OpenAPI says about it.

    ``request`` is the type of the JSON body. The body may be omitted if all of its fields may.
    ``describes`` replaces it in OpenAPI where the service checks a free mapping.
    """

    method: str
    path: str
    handler: Handler
    _: KW_ONLY
    tag: str
    summary: str = ""  # the first sentence of the handler's docstring, unless given
    action: str = ""  # in access.MATRIX
    request: Any = Empty
    describes: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    reply: Any = None
    reply_kind: str = "application/json"
    statuses: tuple[int, ...] = (200,)  # of successful repliesful replies
    conflicts: bool = False  # 409 is possible
    batch: bool = False  # items succeed or fail one by one
    secured: bool = True  # requires a credential
    interrupted: Reply | None = None  # the reply of a waiting call when the server stops
    kinds: tuple[str, ...] = ()  # other content types that the client may ask for
    body_bytes_max: int = SMALL_BODY_BYTES_MAX  # as sent and inflated; the listener may allow less
    items_max: int = ITEMS_MAX  # list items and object members of a large body
    scope: Scope = field(init=False)
    default: Any = field(init=False, default=None)  # the request of an empty body; None: a body is required
    _decode: Callable[[bytes | bytearray], Any] = field(init=False)
    _lists: SlicedLists | None = field(init=False, default=None)  # created for the first large body

    def __post_init__(self) -> None:
        """Derive the scope and the decoder."""
        self.scope = _scope_of(self.path)
        self.summary = self.summary or (self.handler.__doc__ or "").partition("\n")[0].removesuffix(".")
        self._decode = msgspec.json.Decoder(with_counted_items(self.request)).decode
        with suppress(msgspec.ValidationError):
            self.default = msgspec.json.decode(b"{}", type=self.request)

    def decode(self, body: bytes | bytearray) -> Any:
        """Return the body as the route's request type; Invalid for wrong or duplicate fields, a 400 for what is not JSON."""
        if not body and self.default is not None:
            return self.default
        decoded = self._decoded(body)
        check_keys(body, decoded)
        return decoded

    def _decoded(self, body: bytes | bytearray) -> Any:
        begin_decoding()
        with _errors_of(self.request, body):
            return self._decode(body)

    async def decode_large(self, body: bytes | bytearray) -> Any:
        """Return a large body as ``decode`` does, after counting its items. Its lists are decoded in slices."""
        await check_items(body, self.items_max)
        if self._lists is None:
            self._lists = SlicedLists(self.request)
        if not self._lists:
            decoded = self._decoded(body)
            await check_keys_in_slices(body)
            return decoded
        with _errors_of(self.request, body):
            return await self._lists.decode(body)

    def in_own_tenant(self) -> Route:
        """Return the same route for the credential's own tenant."""
        return replace(self, path=self.path.replace("/v1/tenants/{tenant}/", "/v1/"))


@contextmanager
def _errors_of(request: Any, body: bytes | bytearray) -> Iterator[None]:
    """Raise Invalid for wrong fields of a body, and a 400 for a body that is not JSON."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise Invalid(explain(error, request)) from error
    except UnicodeDecodeError as error:
        raise malformed("body: must be UTF-8. Send other bytes in body_base64.") from error
    except RecursionError as error:
        raise malformed("body: nested too deeply") from error
    except msgspec.DecodeError as error:
        raise malformed(f"body: {error}" if body else "body: missing. Send a JSON object.") from error
