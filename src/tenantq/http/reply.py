"""Replies: what a handler returns, and its bytes."""

import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

import msgspec

from tenantq.runtime.loop_slices import SLICE_ITEMS, joined, next_slice, slices_of

_T = TypeVar("_T")

JSON: Final = b"application/json"
PROBLEM: Final = b"application/problem+json"
BYTES: Final = b"application/octet-stream"
HTML: Final = b"text/html; charset=utf-8"
PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"

COMPRESSION_LEVEL: Final = 1  # shrinks large JSON to a fifth; higher levels cost more than they save
_GZIP_FRAME: Final = 31
_PAYS_BELOW: Final = 0.9
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_GZIP_LINES: Final = b"Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
_VARY_LINE: Final = b"Vary: Accept-Encoding\r\n"


class Reply(msgspec.Struct, gc=False):
    """A status, a body and its type. Each extra header line ends with a line end."""

    body: bytes = b""
    status: int = 200
    kind: bytes = JSON
    headers: bytes = b""


class JsonReply(Reply, Generic[_T], gc=False):
    """A reply whose body is the JSON of a ``_T``."""


class Stream:
    """A reply of unknown length, sent as it is produced: in chunks, or to an HTTP/1.0 client until the connection ends."""

    __slots__ = ("headers", "kind", "parts")

    def __init__(self, parts: AsyncIterator[bytes], kind: bytes, headers: bytes = b"") -> None:
        self.parts = parts
        self.kind = kind
        self.headers = headers  # extra header lines


encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
NO_CONTENT: Final = Reply(status=204)


def json_reply(value: _T, status: int = 200, headers: bytes = b"") -> JsonReply[_T]:
    """Return a JSON reply."""
    return JsonReply(encode(value), status, JSON, headers)


async def list_reply(
    field: str,
    items: Sequence[_T],
    wire: Callable[[_T], object],
    size_of: Callable[[_T], int] | None = None,
    rest: Mapping[str, object] | None = None,
) -> JsonReply[Any]:
    """Return a JSON object with the wire forms of ``items`` as ``field``, and the members of ``rest``. Encodes in slices."""
    end = b"," + encode(rest)[1:] if rest else b"}"
    if size_of is None and len(items) <= SLICE_ITEMS:
        return JsonReply(b'{"%b":%b%b' % (field.encode(), encode([wire(one) for one in items]), end))
    encoded = [b'{"%b":[' % field.encode()]
    for part in slices_of(items, size_of or _no_bytes):
        if len(encoded) > 1:
            encoded.append(b",")
            await next_slice()
        encoded.append(encode([wire(one) for one in part])[1:-1])
    encoded += (b"]", end)
    return JsonReply(await joined(encoded))


def _no_bytes(_: object) -> int:
    return 0


_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_starts: dict[tuple[int, bytes], bytes] = {}


def _start(status: int, kind: bytes) -> bytes:
    """Return the status line, the content type and the name of the next header. Cached per pair."""
    start = _starts.get((status, kind))
    if start is None:
        start = b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: " % (status, _PHRASES[status], kind)
        _starts[status, kind] = start
    return start


def head(reply: Reply, lines: bytes, request_id: str) -> bytes:
    """Return everything up to the body. ``lines`` are the header lines of the connection and the listener."""
    status = reply.status
    if status == 204:  # a number, because names of HTTPStatus are slow to look up
        return b"HTTP/1.1 204 No Content\r\nX-Request-Id: %b\r\n%b%b\r\n" % (
            request_id.encode(),
            lines,
            reply.headers,
        )
    return b"%b%d\r\nX-Request-Id: %b\r\n%b%b\r\n" % (
        _start(status, reply.kind),
        len(reply.body),
        request_id.encode(),
        lines,
        reply.headers,
    )


def stream_head(stream: Stream, lines: bytes, request_id: str, *, chunked: bool) -> bytes:
    """Return everything up to the first part of a stream."""
    coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%bX-Request-Id: %b\r\n%b%b\r\n" % (
        stream.kind,
        coding,
        request_id.encode(),
        lines,
        stream.headers,
    )


def compress(body: bytes) -> bytes:
    """Return ``body`` in gzip's frame."""
    packer = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, _GZIP_FRAME)
    return packer.compress(body) + packer.flush()


def compressed(reply: Reply, packed: bytes) -> Reply:
    """Return ``reply`` with the body ``packed`` if that is smaller, else unchanged."""
    if len(packed) > len(reply.body) * _PAYS_BELOW:
        return Reply(reply.body, reply.status, reply.kind, reply.headers + _VARY_LINE)
    return Reply(packed, reply.status, reply.kind, reply.headers + _GZIP_LINES)


def accepts_gzip(header: bytes) -> bool:
    """Return whether an ``Accept-Encoding`` value accepts gzip."""
    wanted: dict[bytes, bool] = {}
    for part in header.lower().split(b","):
        coding, _, parameters = part.partition(b";")
        quality = parameters.strip().removeprefix(b"q=").strip()
        wanted[coding.strip()] = not quality or quality.strip(b"0.") != b""
    return wanted.get(b"gzip", wanted.get(b"*", False))
