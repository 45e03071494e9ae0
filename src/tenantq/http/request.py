"""One request as the handlers see it, and how its query and body become typed values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from tenantq.errors import Invalid
from tenantq.http.problem import malformed

if TYPE_CHECKING:
    from tenantq.errors import TenantqError
    from tenantq.http.listener import Listener
    from tenantq.http.protocol_route import ProtocolHead
    from tenantq.http.route import Route
    from tenantq.service import Call

_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INT_CHARS_MAX: Final = 16


class Request:
    """A request: where it goes, who sends it, and what it says."""

    __slots__ = (
        "accept_encoding",
        "body",
        "call",
        "close",
        "encoding",
        "foreign",
        "head_only",
        "held_bytes",
        "is_old",
        "is_unfinished",
        "listener",
        "name",
        "query",
        "queue",
        "raw_query",
        "refusal",
        "route",
        "tenant",
    )

    def __init__(self, listener: Listener, call: Call) -> None:
        self.listener = listener
        self.call = call
        self.route: Route | None = None  # None: it was refused before there was one
        self.tenant: str | None = None  # None: the credential's own
        self.queue = ""
        self.name = ""  # the last name of the path: a message id, key id, principal or task
        self.raw_query = b""
        self.query: Any = None  # of the route's query type
        self.body = b""
        self.encoding = b""  # of the body as sent
        self.accept_encoding = b""
        self.foreign: ProtocolHead | None = None  # of a route where another protocol is spoken
        self.head_only = False
        self.is_old = False  # HTTP/1.0
        self.is_unfinished = False  # it was refused before all of it had arrived
        self.held_bytes = 0  # of the listener's bound on buffered bytes
        self.close = False  # the connection ends with the reply
        self.refusal: TenantqError | None = None  # what to answer instead of asking the service

    @property
    def body_bytes_max(self) -> int:
        """How large its body may be, as sent and as inflated."""
        most = self.listener.settings.body_bytes_max
        return most if self.route is None else min(most, self.route.body_bytes_max)

    def likeness(self, body: bytes) -> Request:
        """Return the same request with another body, not compressed, and to be answered so."""
        other = Request(self.listener, self.call)
        other.route = self.route
        other.tenant, other.queue, other.name = self.tenant, self.queue, self.name
        other.body = body
        return other


def unescape(raw: bytes) -> str:
    """Undo percent-encoding once, or refuse what is not well formed."""
    if _BAD_ESCAPE.search(raw) is not None:
        raise malformed("path or query: a '%' is not followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise malformed("path or query: is not UTF-8 once unescaped") from error


def parse_query(raw: bytes, kind: type[msgspec.Struct] | None) -> Any:
    """Return the query as a ``kind``; an unknown, repeated or malformed parameter is refused by name."""
    if not raw:
        return kind() if kind is not None else None
    known = {field.encode_name: field for field in msgspec.structs.fields(kind)} if kind is not None else {}
    values: dict[str, str | int] = {}
    for part in raw.split(b"&"):
        if not part:
            continue
        name_raw, _, value_raw = part.replace(b"+", b" ").partition(b"=")
        name, value = unescape(name_raw), unescape(value_raw)
        field = known.get(name)
        if field is None:
            there_are = f"there are {', '.join(known)}" if known else "this call takes none"
            raise Invalid(f"{name[:80]}: no such query parameter; {there_are}")
        if name in values:
            raise Invalid(f"{name}: is given twice")
        values[name] = _number(name, value) if _takes_number(field.type) else value
    if kind is None:
        return None
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise Invalid(explain(error)) from error


def _takes_number(kind: Any) -> bool:
    inner = msgspec.inspect.type_info(kind)
    options = inner.types if isinstance(inner, msgspec.inspect.UnionType) else (inner,)
    return any(isinstance(one, msgspec.inspect.IntType) for one in options)


def _number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > _INT_CHARS_MAX:
        raise Invalid(f"{name}: must be a whole number")
    return int(text)


def explain(error: msgspec.ValidationError) -> str:
    """Return a validation error's text with the field first, as all of tenantq's texts have it."""
    text, found, path = str(error).rpartition(" - at `$")
    if not found:
        return f"body: {error}"
    field = path.removesuffix("`").lstrip(".")
    return f"{field[:200] or 'body'}: {text}"
