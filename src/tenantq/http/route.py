"""One row of the route table: how a call is found, decoded, answered and described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.domain.validation import explain
from tenantq.errors import Invalid
from tenantq.http.batch_limit import begin_decoding, with_counted_items
from tenantq.http.problem import malformed
from tenantq.http.scope import scope_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.http.reply import Reply, Stream
    from tenantq.http.request import Request
    from tenantq.service import Service

    Handler = Callable[[Service, Request, Any], Awaitable[Reply | Stream]]


SMALL_BODY_BYTES_MAX: Final = 1 << 20
"""What is enough for a call that brings no messages: settings, a reason, a thousand receipts."""

LIST_BODY_BYTES_MAX: Final = 8 << 20
"""What is enough for a call that names a hundred thousand tenants or messages."""

BATCH_BODY_BYTES_MAX: Final = 1 << 30
"""Of a batch of messages: as much as the listener takes."""


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No fields: an empty body, or ``{}``."""


class Route:
    """A method and path, what serves it, and everything that OpenAPI has to say about it.

    ``request`` is the type of the JSON body; where every field of it may be left out, the body may be, too.
    ``describes`` stands in for it in OpenAPI where the service itself checks a free mapping.
    """

    __slots__ = (
        "_decode",
        "action",
        "batch",
        "body_bytes_max",
        "conflicts",
        "default",
        "describes",
        "handler",
        "interrupted",
        "kinds",
        "method",
        "path",
        "query",
        "reply",
        "reply_kind",
        "request",
        "scope",
        "secured",
        "statuses",
        "summary",
        "tag",
    )

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        summary: str,
        *,
        tag: str,
        action: str = "",
        request: Any = Empty,
        describes: type[msgspec.Struct] | None = None,
        query: type[msgspec.Struct] | None = None,
        reply: Any = None,
        reply_kind: str = "application/json",
        statuses: tuple[int, ...] = (200,),
        conflicts: bool = False,
        batch: bool = False,
        secured: bool = True,
        interrupted: Reply | None = None,
        kinds: tuple[str, ...] = (),
        body_bytes_max: int = SMALL_BODY_BYTES_MAX,
    ) -> None:
        self.method = method
        self.path = path
        self.scope = scope_of(path)
        self.handler = handler
        self.summary = summary
        self.tag = tag
        self.action = action  # of access.MATRIX
        self.request = request
        self.describes = describes
        self.query = query
        self.reply = reply
        self.reply_kind = reply_kind
        self.statuses = statuses  # of success
        self.conflicts = conflicts  # 409 is possible
        self.batch = batch  # items are judged one by one
        self.secured = secured  # wants a credential
        self.kinds = kinds  # other types of content that the reply may have on request
        self.interrupted = interrupted  # the call may wait for long; its answer when it is told to stop
        self.body_bytes_max = body_bytes_max  # as sent and as inflated; the listener's own bound may be lower
        self._decode = msgspec.json.Decoder(with_counted_items(request)).decode
        try:
            self.default: Any = msgspec.json.decode(b"{}", type=request)
        except msgspec.ValidationError:
            self.default = None

    def decode(self, body: bytes) -> Any:
        """Return the body as the route's request type; Invalid for wrong fields, a 400 for what is not JSON."""
        if not body and self.default is not None:
            return self.default
        begin_decoding()
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise Invalid(explain(error, self.request)) from error
        except UnicodeDecodeError as error:
            raise malformed("body: is not UTF-8; give other bytes in body_base64") from error
        except RecursionError as error:
            raise malformed("body: is nested too deeply") from error
        except msgspec.DecodeError as error:
            raise malformed(f"body: {error}" if body else "body: a JSON object is expected, none was sent") from error

    def in_own_tenant(self) -> Route:
        """Return the same route for the credential's own tenant."""
        return Route(
            self.method,
            self.path.replace("/v1/tenants/{tenant}/", "/v1/"),
            self.handler,
            self.summary,
            tag=self.tag,
            action=self.action,
            request=self.request,
            describes=self.describes,
            query=self.query,
            reply=self.reply,
            reply_kind=self.reply_kind,
            statuses=self.statuses,
            conflicts=self.conflicts,
            batch=self.batch,
            secured=self.secured,
            interrupted=self.interrupted,
            kinds=self.kinds,
            body_bytes_max=self.body_bytes_max,
        )
