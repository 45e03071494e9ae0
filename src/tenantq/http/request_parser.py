"""HTTP/1.x parsing with a bound on everything a client can send.

llhttp does the parsing and is strict: it already refuses repeated or mixed lengths, bare line feeds and folded headers.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable
from typing import Any, Final

from httptools import HttpParserError, HttpParserInvalidMethodError, HttpParserUpgrade, HttpRequestParser

from tenantq.errors import TenantqError, TooLarge
from tenantq.http.context import HttpContext
from tenantq.http.early_checks import region_refusal
from tenantq.http.problem import HttpError, malformed
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.http.request import Request
from tenantq.http.request_head import (
    HEAD_END,
    KNOWN,
    NEVER_CACHED,
    ONCE,
    RequestHead,
    all_headers,
    bearer_of,
    body_encoding,
    presigning_bearer,
)
from tenantq.http.router import Match
from tenantq.service.call import Call
from tenantq.service.problems import no_room
from tenantq.service.request_ids import request_id_of, traceparent_of, user_agent_of

log = logging.getLogger("tenantq.http")

SILENT_BYTES_MAX: Final = 64 << 10
"""Bytes that llhttp may consume without a callback: it buffers unfinished headers itself."""

_UNKNOWN_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} ([^ ]{1,8192}) HTTP/1\.[01]\r\n")


class Stage(enum.Enum):
    """What the next byte of a connection belongs to."""

    IDLE = 0
    HEAD = 1
    BODY = 2


IDLE, HEAD, BODY = Stage  # read for every request; attributes of an enumeration are slow to read


_OTHER_VERSIONS: Final = frozenset(("Invalid HTTP version", "Pause on PRI/Upgrade"))
"""What llhttp reports for HTTP/2 and for unknown versions."""

_NO_MATCH: Final = Match(None)

JOINED_BYTES_MAX: Final = 256 << 10
"""Larger bodies stay in parts until they are processed."""

PART_BYTES_MIN: Final = 4 << 10
"""Smaller parts of a body are collected first. Each object takes memory, and a client can send a byte at a time."""

BLOCK_PARTS: Final = 160
"""Parts that become one block. It usually has more than 2 MiB; blocks of that size return to the system when they are freed."""


class _Stop(Exception):
    """The request was refused inside one of the parser's callbacks."""


class RequestParser:
    """Parses the requests of one connection, and passes each complete or refused one to ``deliver``, in order."""

    __slots__ = (
        "_blocks", "_cacheable", "_certificate", "_chunk_start", "_context", "_deliver", "_header_bytes_left",
        "_headers", "_headers_left", "_is_cacheable", "_is_secure", "_more", "_others", "_parser",
        "_parts", "_remote", "_request", "_silent_bytes", "_target", "body_bytes", "expects_continue", "is_over",
        "since_ms", "stage",
    )  # fmt: skip

    def __init__(
        self,
        context: HttpContext,
        deliver: Callable[[Request], None],
        *,
        remote: str,
        certificate: dict[str, object] | None,
        is_secure: bool = False,
    ) -> None:
        self._context = context
        self._deliver = deliver
        self._remote = remote
        self._certificate = certificate
        self._is_secure = is_secure
        self._parser = HttpRequestParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._others: list[tuple[bytes, bytes]] = []  # headers that only protocol routes need
        self._headers_left = self._header_bytes_left = self._silent_bytes = 0
        self._target = b""
        self._request: Request | None = None  # whose body is being read
        self._blocks: list[bytes] = []  # of its body, behind the first part
        self._parts: list[bytes] = []  # of the next block
        self._more = bytearray()  # the next part, while it is small
        self._cacheable: RequestHead | None = None  # the head of the last request, if it can be cached
        self._is_cacheable = False
        self._chunk_start = False  # no byte of the current data has been parsed yet
        self.body_bytes = 0
        self.expects_continue = False  # the client waits for "100 Continue" before it sends the body
        self.stage = IDLE
        self.since_ms = context.now_ms  # when the stage began, or last made progress
        self.is_over = False  # ignores further bytes: after a refusal or the last request

    def feed(self, data: bytes | memoryview) -> None:
        """Parse received bytes. An error in them becomes a refusal, which is the last reply of the connection."""
        if self.is_over:
            return
        is_start = self.stage is IDLE
        if is_start and type(data) is bytes:
            end = data.find(HEAD_END) + len(HEAD_END)
            head = self._context.heads.get(data[:end])
            if head is not None and len(data) - end == head.content_length:
                self._take_cached(head, data[end:])
                return
        self._silent_bytes += len(data)
        self._chunk_start = is_start
        self._cacheable = None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.is_over = True  # the request was delivered and gets a reply
        except HttpParserInvalidMethodError:
            self._refuse_method(bytes(data[: 1 << 14]))
        except HttpParserError as error:
            if not self.is_over:  # otherwise: bytes after a request that ends the connection
                cause = error.__context__
                if cause is not None:  # raised in a callback
                    log.exception("internal error while reading a request", exc_info=cause)
                    self.refuse(TenantqError("internal server error; see the server log for this request ID"))
                elif str(error) in _OTHER_VERSIONS:
                    self.refuse(_wrong_version())
                else:
                    self.refuse(malformed(f"malformed HTTP/1.1: {error}"))
        else:
            if is_start and type(data) is bytes:
                self._cache_head(data)
            if self._silent_bytes > SILENT_BYTES_MAX:
                self.refuse(_headers_too_large() if self.stage is HEAD else malformed("this is not HTTP/1.1"))

    def _cache_head(self, data: bytes) -> None:
        if self._cacheable is not None:
            self._context.heads.add(data, self._cacheable)

    def _take_cached(self, head: RequestHead, body: bytes) -> None:
        """Deliver a request whose head was parsed before."""
        context = self._context
        self.since_ms = context.now_ms
        request = Request(context, head, self._call(head), body)
        if request.hold(head.content_length):
            self._deliver(request)
        else:
            self._request = request
            self.refuse(no_room())

    @property
    def unfinished(self) -> Request | None:
        """The request whose body is still arriving."""
        return self._request

    def give_way(self) -> None:
        """Drop the request that is being read, to make room for smaller ones."""
        self.refuse(no_room())

    @property
    def held_bytes(self) -> int:
        """The bytes in memory of a request that is still arriving."""
        return self._request.held_bytes if self._request is not None else 0

    def refuse(self, refusal: TenantqError) -> None:
        """Reply with ``refusal`` to the request that is being read, and end the connection."""
        if self.is_over:
            return
        self.is_over = True
        request = self._request
        if request is None:
            head = RequestHead(**self._sender())
            request = Request(self._context, head, self._call(head))
        self._forget_body(request)
        request.refusal = refusal
        request.close = request.is_unfinished = True
        self._request = None
        self.expects_continue = False
        self.stage = IDLE
        self._deliver(request)

    def stop(self) -> None:
        """Stop reading, and drop an unfinished request."""
        self.is_over = True
        if self._request is not None:
            self._forget_body(self._request)
            self._request = None
        self._headers = {}

    def _forget_body(self, request: Request) -> None:
        request.release()
        self._blocks, self._parts = [], []
        self._more.clear()
        request.body = b""

    def _refuse_method(self, data: bytes) -> None:
        """Refuse an unknown method. Anything without a request line is not HTTP."""
        found = _UNKNOWN_METHOD.match(data) if self._chunk_start else None
        if found is None:
            self.refuse(malformed("malformed HTTP/1.1: no request line"))
            return
        try:
            self._context.router.find(b"?", found[1].partition(b"?")[0])
        except TenantqError as refusal:
            self.refuse(refusal)

    # ---- called by the parser ----

    def on_message_begin(self) -> None:
        """Start a new head."""
        self.stage = HEAD
        self.since_ms = self._context.now_ms
        self._target = b""
        settings = self._context.settings
        self._headers_left = settings.headers_max
        self._header_bytes_left = settings.header_bytes_max
        self.body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Collect the request target."""
        self._target += url
        if len(self._target) > self._context.settings.request_target_bytes_max:
            most = self._context.settings.request_target_bytes_max
            self._stop(HttpError(414, "too_large", f"path and query: too long (limit: {most:,} bytes)"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header. Unknown headers are only counted."""
        self._headers_left -= 1
        self._header_bytes_left -= len(name) + len(value) + 4
        if self._header_bytes_left < 0 or self._headers_left < 0:
            self._stop(_headers_too_large())
        key = KNOWN.get(name)
        if key is None:
            key = KNOWN.get(name.lower())
        if not key or self.stage is not HEAD:  # trailers are ignored
            if self.stage is HEAD:
                self._others.append((name, value))
            return
        headers = self._headers
        if key in headers and key in ONCE:
            self._stop(malformed(f"header {key.decode()}: must not be repeated"))
        headers[key] = value

    def on_headers_complete(self) -> None:
        """Check and route the request before its body is read."""
        self.stage = BODY
        self.since_ms = self._context.now_ms
        self._chunk_start = False
        self._silent_bytes = 0
        headers, parser = self._headers, self._parser
        others, self._others = self._others, []
        is_last, is_old = not parser.should_keep_alive(), False
        if is_last or b"connection" in headers:  # otherwise it is 1.1
            version = parser.get_http_version()
            is_old = version == "1.0"
            if not is_old and version != "1.1":
                self._stop(_wrong_version())
        if b"host" not in headers and not is_old:
            self._stop(malformed("header host: required"))
        has_body = self._check_length(headers, is_old=is_old)
        if parser.should_upgrade():
            if has_body:
                self._stop(malformed("header upgrade: not supported in requests with a body"))
            is_last = True
        request = self._request = self._new_request(parser.get_method(), others, is_old=is_old, has_body=has_body)
        request.close = is_last
        if has_body and request.head.content_length > request.body_bytes_max:
            self._stop(body_too_large(request.body_bytes_max))
        expect = headers.get(b"expect")
        if expect is not None and not is_old:
            self._check_expect(request, expect, has_body=has_body)
        self._is_cacheable = (
            request.refusal is None
            and not is_old
            and not request.head.method
            and headers.keys().isdisjoint(NEVER_CACHED)
        )

    def _new_request(
        self, method: bytes, others: list[tuple[bytes, bytes]], *, is_old: bool, has_body: bool
    ) -> Request:
        """Return the request with its head. If it cannot be routed or read, its refusal is set."""
        headers = self._headers
        path, _, raw_query = self._target.partition(b"?")
        match, encoding, refusal = _NO_MATCH, b"", None
        own: dict[str, Any] = {}
        sender = self._sender()
        try:
            match = self._context.router.find(method, _without_origin(path))
            if type(match.route) is ProtocolRoute:
                own = {
                    "method": method,
                    "target": self._target,
                    "headers": all_headers(headers, others),
                    "is_secure": self._is_secure,
                }
                sender["bearer"] = sender["bearer"] or presigning_bearer(raw_query)
            elif has_body and (headers.get(b"content-type") != b"application/json" or b"content-encoding" in headers):
                encoding = body_encoding(headers)
        except TenantqError as error:
            refusal = error
        head = RequestHead(
            route=match.route,
            tenant=match.tenant,
            queue=match.queue,
            name=match.name,
            raw_query=raw_query,
            encoding=encoding,
            accept_encoding=headers.get(b"accept-encoding", b""),
            head_only=method == b"HEAD",
            is_old=is_old,
            content_length=int(headers.get(b"content-length", b"0")),
            **sender,
            **own,
        )
        request = Request(self._context, head, self._call(head))
        request.refusal = refusal or region_refusal(request)
        return request

    def on_body(self, data: bytes) -> None:
        """Collect a part of the body, within the limits of the request and the listener."""
        self._silent_bytes = 0
        self.expects_continue = False
        request = self._request
        assert request is not None
        self.body_bytes += len(data)
        if self.body_bytes > request.body_bytes_max:
            self._stop(body_too_large(request.body_bytes_max))
        if request.refusal is not None:
            return  # the body of a refused request is read and dropped, to keep the connection
        if not request.hold(len(data)):
            self._stop(no_room())
        if not request.body:
            request.body = data
            return
        if self._more or len(data) < PART_BYTES_MIN:
            self._more += data
            if len(self._more) < PART_BYTES_MIN:
                return
            data = bytes(self._more)
            self._more.clear()
        self._parts.append(data)
        if len(self._parts) == BLOCK_PARTS:
            self._blocks.append(b"".join(self._parts))
            self._parts = []

    def on_message_complete(self) -> None:
        """Deliver the request."""
        self.stage = IDLE
        self.since_ms = self._context.now_ms
        self._silent_bytes = 0
        self.expects_continue = False
        request = self._request
        assert request is not None
        self._request = None
        if self.body_bytes > len(request.body) and request.refusal is None:
            parts = [request.body, *self._blocks, *self._parts, bytes(self._more)]
            if self.body_bytes > JOINED_BYTES_MAX:
                request.body, request.parts = b"", parts
            else:
                request.body = b"".join(parts)
            self._blocks, self._parts = [], []
            self._more.clear()
        if request.close:
            self.is_over = True
        else:
            self._cacheable = request.head if self._is_cacheable else None
        self._headers = {}
        self._deliver(request)

    # ---- parts of a head ----

    def _sender(self) -> dict[str, Any]:
        """Return the credential and other facts about the sender, from the headers read so far."""
        authorization = self._headers.get(b"authorization")
        return {
            "bearer": bearer_of(authorization) if authorization else None,
            "user_agent": user_agent_of(self._headers.get(b"user-agent", b"")),
        }

    def _call(self, head: RequestHead) -> Call:
        raw_id, trace = self._headers.get(b"x-request-id"), self._headers.get(b"traceparent")
        return Call(
            bearer=head.bearer,
            certificate=self._certificate,
            remote=self._remote,
            request_id=(request_id_of(raw_id) if raw_id is not None else None) or self._context.next_request_id(),
            user_agent=head.user_agent,
            traceparent=traceparent_of(trace) if trace is not None else "",
        )

    def _check_length(self, headers: dict[bytes, bytes], *, is_old: bool) -> bool:
        """Return whether a body follows."""
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if is_old or coding.lower() != b"chunked":
                self._stop(malformed("header transfer-encoding: must be chunked, and requires HTTP/1.1"))
            return True
        return headers.get(b"content-length", b"0") != b"0"

    def _check_expect(self, request: Request, expect: bytes, *, has_body: bool) -> None:
        if expect.lower() != b"100-continue":
            self._stop(HttpError(417, "invalid", "header expect: must be 100-continue"))
        if not has_body:
            return
        if request.refusal is not None:
            self._stop(request.refusal)
        self.expects_continue = True

    def _stop(self, refusal: TenantqError) -> None:
        self.refuse(refusal)
        raise _Stop


def _without_origin(path: bytes) -> bytes:
    """Return the path of a request target. Proxies send full URLs."""
    if path.startswith(b"/"):
        return path
    scheme, found, rest = path.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if found and scheme.lower() in {b"http", b"https"} else path


def body_too_large(bytes_max: int) -> TooLarge:
    """Return the refusal of a body that exceeds the limit of its call."""
    return TooLarge(f"body: too large (limit: {bytes_max:,} bytes)")


def _wrong_version() -> HttpError:
    return HttpError(505, "invalid", "unsupported HTTP version. Use HTTP/1.1 or HTTP/1.0.")


def _headers_too_large() -> HttpError:
    return HttpError(431, "too_large", "headers: too many or too large")
