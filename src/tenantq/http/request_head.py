"""The head of a request: what its request line and headers say, as far as the server uses them."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from tenantq.http.problem import HttpError
from tenantq.http.route import Route

_NAMES: Final = (
    b"Authorization", b"Host", b"Content-Type", b"Content-Length", b"Content-Encoding", b"Transfer-Encoding",
    b"Accept-Encoding", b"Expect", b"X-Request-Id", b"User-Agent", b"Connection", b"Traceparent",
)  # fmt: skip
_IGNORED: Final = (b"Accept", b"accept", b"Accept-Language", b"Cache-Control", b"Origin", b"Referer")

SIGNED: Final = "AWS4-HMAC-SHA256"
"""The scheme of a signed request. Until the signature is verified, the scheme and the key ID replace the bearer token."""

KNOWN: Final = {spelling: name.lower() for name in _NAMES for spelling in (name, name.lower(), name.upper())}
"""Usual spellings of headers, which saves lower-casing them. Common headers that the server ignores map to an empty name."""
KNOWN[b"X-Request-ID"] = b"x-request-id"
KNOWN.update(dict.fromkeys(_IGNORED, b""))

ONCE: Final = frozenset(
    (
        b"authorization",
        b"host",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        b"expect",
    )
)
"""A request with two of these is ambiguous."""

NEVER_CACHED: Final = frozenset((b"x-request-id", b"traceparent", b"transfer-encoding", b"expect"))
"""A head with one of these changes with each request, or needs more than its body."""

HEADS_MAX: Final = 1_024
HEAD_BYTES_MAX: Final = 1_024
HEAD_END: Final = b"\r\n\r\n"


class RequestHead(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request line with its headers. The fields after ``content_length`` are set for protocol routes only."""

    route: Route | None = None  # None: the request was refused before routing
    tenant: str | None = None  # None: the credential's own
    queue: str = ""
    name: str = ""  # the last name of the path: a message id, key id, principal or task
    raw_query: bytes = b""
    encoding: bytes = b""  # of the body as sent
    accept_encoding: bytes = b""
    bearer: str | None = None
    user_agent: str = ""
    head_only: bool = False
    is_old: bool = False  # HTTP/1.0
    content_length: int = 0
    method: bytes = b""
    target: bytes = b""  # path and query, as sent
    headers: dict[bytes, bytes] = {}  # frozen; all headers by their names in lower case
    is_secure: bool = False  # the client uses TLS with this server


class HeadCache:
    """A bounded cache from the bytes of a head to the parsed head, shared by the connections of a listener.

    Clients send the same head again and again. A lookup takes 1.6 us and parsing 8.6 us (``python -m bench --only
    request-heads``), of about 100 us that the server spends on a single add. When the cache is full it starts over.
    """

    __slots__ = ("_heads", "get")

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}
        self.get = self._heads.get  # by the bytes up to the empty line, and including it

    def __len__(self) -> int:
        return len(self._heads)

    def add(self, data: bytes, head: RequestHead) -> None:
        """Keep the head of ``data`` if ``data`` is exactly one request."""
        end = data.find(HEAD_END) + len(HEAD_END)
        if end > HEAD_BYTES_MAX or len(data) - end != head.content_length:
            return
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[data[:end]] = head


def bearer_of(authorization: bytes) -> str:
    """Return the bearer token.

    For a signed request, whose header differs each time, return the scheme and the key id. For any other scheme return the
    whole header, which authentication then refuses.
    """
    text = authorization.decode("latin-1")
    scheme, _, token = text.partition(" ")
    token = token.strip()
    if scheme.lower() == "bearer" and token:
        return token
    key_id = signing_key_id(authorization)
    return f"{scheme} {key_id}" if key_id is not None else text


def signing_key_id(authorization: bytes) -> str | None:
    """Return the id of the key that signed a request (AWS Signature Version 4), or None."""
    if not authorization.startswith(SIGNED.encode()):
        return None
    _, found, rest = authorization.partition(b"Credential=")
    return rest.partition(b"/")[0].decode("latin-1") if found else None


def presigning_bearer(raw_query: bytes) -> str | None:
    """Return what ``bearer_of`` would return for the key that a presigned URL names, or None."""
    _, found, rest = raw_query.partition(b"X-Amz-Credential=")
    if not found:
        return None
    key_id = unquote_to_bytes(rest.partition(b"&")[0]).partition(b"/")[0].decode("latin-1")
    return f"{SIGNED} {key_id}" if key_id else None


def body_encoding(headers: Mapping[bytes, bytes]) -> bytes:
    """Return how a JSON body is compressed; raise HttpError for a content type or an encoding that is not supported."""
    kind = headers.get(b"content-type")
    if kind is not None:
        kind, _, parameters = kind.lower().partition(b";")
        parameters = parameters.replace(b" ", b"").replace(b'"', b"")
        if kind.strip() != b"application/json" or parameters not in {b"", b"charset=utf-8"}:
            raise HttpError(415, "invalid", "content-type: must be application/json, in UTF-8")
    coding = headers.get(b"content-encoding")
    if coding is None:
        return b""
    coding = coding.lower()
    if coding not in {b"gzip", b"x-gzip", b"identity", b""}:
        accepted = b"Accept-Encoding: gzip\r\n"
        raise HttpError(415, "invalid", "content-encoding: only gzip is supported", headers=accepted)
    return b"gzip" if coding.endswith(b"gzip") else b""


def all_headers(known: Mapping[bytes, bytes], others: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return all headers by their names in lower case; repeated ones are joined with commas."""
    headers = dict(known)
    for spelled, value in others:
        name = spelled.lower()
        before = headers.get(name)
        headers[name] = value if before is None else before + b"," + value
    return headers
