"""HTTP/1.x parsing with a bound on everything a client can send.

llhttp does the parsing and is strict: it already refuses repeated or mixed lengths, bare line feeds and folded headers.
"""

from __future__ import annotations

import enum
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from httptools import HttpParserError, HttpParserInvalidMethodError, HttpParserUpgrade, HttpRequestParser

from tenantq.errors import TenantqError, TooLarge
from tenantq.http.problem import Refusal, malformed
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
from tenantq.service import Call
from tenantq.service.problems import no_room
from tenantq.service.request_ids import request_id_of, user_agent_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.http.listener import HttpListener

log = logging.getLogger("tenantq.http")

SILENT_BYTES_MAX: Final = 64 << 10
"""Bytes that llhttp may consume without a callback: it buffers unfinished headers itself."""

_UNKNOWN_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} ([^ ]{1,8192}) HTTP/1\.[01]\r\n")


class Stage(enum.Enum):
    """What the next byte of a connection belongs to."""

    IDLE = 0
    HEAD = 1
    BODY = 2


IDLE, HEAD, BODY = Stage  # looked up for every request, and an enumeration's own names are slow to look up


_OTHER_VERSIONS: Final = frozenset(("Invalid HTTP version", "Pause on PRI/Upgrade"))
"""What llhttp reports for HTTP/2 and for unknown versions."""

_NO_MATCH: Final = Match(None)

COPIED_BYTES_MAX: Final = 256 << 10


class _Stop(Exception):
    """The request was refused inside one of the parser's callbacks."""


class RequestParser:
    """The reading half of one connection. Hands each complete or refused request to ``deliver``, in order."""

    __slots__ = (
        "_cacheable",
        "_certificate",
        "_chunk_start",
        "_connection",
        "_deliver",
        "_header_bytes_left",
        "_headers",
        "_headers_left",
        "_is_cacheable",
        "_is_secure",
        "_listener",
        "_more",
        "_others",
        "_parser",
        "_remote",
        "_request",
        "_silent_bytes",
        "_target",
        "body_bytes",
        "expects_continue",
        "is_over",
        "since_ms",
        "stage",
    )

    def __init__(
        self,
        listener: HttpListener,
        deliver: Callable[[Request], None],
        *,
        connection: object,
        remote: str,
        certificate: dict[str, object] | None,
        is_secure: bool = False,
    ) -> None:
        self._listener = listener
        self._deliver = deliver
        self._connection = connection
        self._remote = remote
        self._certificate = certificate
        self._is_secure = is_secure
        self._parser = HttpRequestParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._others: list[tuple[bytes, bytes]] = []  # headers that only protocol routes use
        self._headers_left = self._header_bytes_left = self._silent_bytes = 0
        self._target = b""
        self._request: Request | None = None  # whose body is being read
        self._more = bytearray()  # its body, once a second part has arrived
        self._cacheable: RequestHead | None = None  # of the last request delivered, if its head can be cached
        self._is_cacheable = False
        self._chunk_start = False  # nothing of the data fed now has been parsed yet
        self.body_bytes = 0
        self.expects_continue = False  # the client waits for "100 Continue" before it sends the body
        self.stage = IDLE
        self.since_ms = listener.now_ms  # when the stage began, or last made progress
        self.is_over = False  # nothing more is read: after a refusal, or the last request

    def feed(self, data: bytes | memoryview) -> None:
        """Parse what arrived. Any error in it becomes one refusal, the connection's last reply."""
        if self.is_over:
            return
        is_start = self.stage is IDLE
        if is_start and type(data) is bytes:
            end = data.find(HEAD_END) + len(HEAD_END)
            head = self._listener.heads.get(data[:end])
            if head is not None and len(data) - end == head.content_length:
                self._take_cached(head, data[end:])
                return
        self._silent_bytes += len(data)
        self._chunk_start = is_start
        self._cacheable = None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.is_over = True  # the request was delivered and is answered as any other
        except HttpParserInvalidMethodError:
            self._refuse_method(bytes(data[: 1 << 14]))
        except HttpParserError as error:
            if not self.is_over:  # else: bytes behind a request that said it was the last
                cause = error.__context__
                if cause is not None:  # raised in a callback
                    log.exception("internal error while reading a request", exc_info=cause)
                    self.refuse(TenantqError("the request could not be read; the server's log says why"))
                elif str(error) in _OTHER_VERSIONS:
                    self.refuse(_wrong_version())
                else:
                    self.refuse(malformed(f"this is not HTTP/1.1: {error}"))
        else:
            if is_start and type(data) is bytes:
                self._cache_head(data)
            if self._silent_bytes > SILENT_BYTES_MAX:
                self.refuse(_headers_too_large() if self.stage is HEAD else malformed("this is not HTTP/1.1"))

    def _cache_head(self, data: bytes) -> None:
        if self._cacheable is not None:
            self._listener.heads.add(data, self._cacheable)

    def _take_cached(self, head: RequestHead, body: bytes) -> None:
        """Deliver a request whose head was parsed before."""
        listener = self._listener
        self.since_ms = listener.now_ms
        request = Request(listener, head, self._call(head), body)
        if listener.hold(request, head.content_length):
            self._deliver(request)
        else:
            self._request = request
            self.refuse(no_room())

    @property
    def unfinished(self) -> Request | None:
        """The request whose body is still to come."""
        return self._request

    def give_way(self) -> None:
        """Give up the request that is being read, so that smaller ones find room."""
        self.refuse(no_room())

    @property
    def held_bytes(self) -> int:
        """What is held of a request that has not arrived wholly."""
        return self._request.held_bytes if self._request is not None else 0

    def refuse(self, refusal: TenantqError) -> None:
        """Answer what is being read with ``refusal``, as the last reply of the connection."""
        if self.is_over:
            return
        self.is_over = True
        request = self._request
        if request is None:
            head = RequestHead(**self._sender())
            request = Request(self._listener, head, self._call(head))
        self._forget_body(request)
        request.refusal = refusal
        request.close = request.is_unfinished = True
        self._request = None
        self.expects_continue = False
        self.stage = IDLE
        self._deliver(request)

    def stop(self) -> None:
        """Read nothing more, and let go of what was read of an unfinished request."""
        self.is_over = True
        if self._request is not None:
            self._forget_body(self._request)
            self._request = None
        self._headers = {}

    def _forget_body(self, request: Request) -> None:
        self._listener.release(request)
        self._more = bytearray()
        request.body = b""

    def _refuse_method(self, data: bytes) -> None:
        """Tell a method nobody knows from garbage: it has the form of a request."""
        found = _UNKNOWN_METHOD.match(data) if self._chunk_start else None
        if found is None:
            self.refuse(malformed("this is not HTTP/1.1: no request line was found"))
            return
        try:
            self._listener.router.find(b"?", found[1].partition(b"?")[0])
        except TenantqError as refusal:
            self.refuse(refusal)

    # ---- called by the parser ----

    def on_message_begin(self) -> None:
        """Expect a head."""
        self.stage = HEAD
        self.since_ms = self._listener.now_ms
        self._target = b""
        settings = self._listener.settings
        self._headers_left = settings.headers_max
        self._header_bytes_left = settings.header_bytes_max
        self.body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take the request target, or the next part of it."""
        self._target += url
        if len(self._target) > self._listener.settings.request_target_bytes_max:
            self._stop(
                Refusal(
                    414, "too_large", f"the path and query are longer than {self._limit('request_target_bytes_max')}"
                )
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; those that mean nothing here are only counted."""
        self._headers_left -= 1
        self._header_bytes_left -= len(name) + len(value) + 4
        if self._header_bytes_left < 0 or self._headers_left < 0:
            self._stop(_headers_too_large())
        key = KNOWN.get(name)
        if key is None:
            key = KNOWN.get(name.lower())
        if not key or self.stage is not HEAD:  # trailers mean nothing anywhere
            if self.stage is HEAD:
                self._others.append((name, value))
            return
        headers = self._headers
        if key in headers and key in ONCE:
            self._stop(malformed(f"the header {key.decode()} is given twice"))
        headers[key] = value

    def on_headers_complete(self) -> None:
        """Decide, before the body is read, whether the request can be taken at all."""
        self.stage = BODY
        self.since_ms = self._listener.now_ms
        self._chunk_start = False
        self._silent_bytes = 0
        headers, parser = self._headers, self._parser
        others, self._others = self._others, []
        is_last, is_old = not parser.should_keep_alive(), False
        if is_last or b"connection" in headers:  # else it can only be 1.1
            version = parser.get_http_version()
            is_old = version == "1.0"
            if not is_old and version != "1.1":
                self._stop(_wrong_version())
        if b"host" not in headers and not is_old:
            self._stop(malformed("the header host is missing"))
        has_body = self._check_length(headers, is_old=is_old)
        if parser.should_upgrade():
            if has_body:
                self._stop(malformed("an upgrade is not offered here; send the body without asking for one"))
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
        """Return the request with its head; its refusal is set if it cannot be routed or read."""
        headers = self._headers
        path, _, raw_query = self._target.partition(b"?")
        match, encoding, refusal = _NO_MATCH, b"", None
        own: dict[str, Any] = {}
        sender = self._sender()
        try:
            match = self._listener.router.find(method, _without_origin(path))
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
        request = Request(self._listener, head, self._call(head))
        request.refusal = refusal or self._listener.early_refusal(request)
        return request

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body, within the request's and the listener's bounds."""
        self._silent_bytes = 0
        self.expects_continue = False
        listener, request = self._listener, self._request
        assert request is not None
        self.body_bytes += len(data)
        if self.body_bytes > request.body_bytes_max:
            self._stop(body_too_large(request.body_bytes_max))
        if request.refusal is not None:
            return  # read to the end and thrown away, so that the connection can go on
        if not listener.hold(request, len(data)):
            self._stop(no_room())
        if not request.body:
            request.body = data
        elif self._more:
            self._more += data
        else:
            self._more = bytearray(request.body) + data

    def on_message_complete(self) -> None:
        """Hand over the request."""
        self.stage = IDLE
        self.since_ms = self._listener.now_ms
        self._silent_bytes = 0
        self.expects_continue = False
        request = self._request
        assert request is not None
        self._request = None
        if self._more:
            is_large = len(self._more) > COPIED_BYTES_MAX and type(request.route) is not ProtocolRoute
            request.body = self._more if is_large else bytes(self._more)  # a copy of many megabytes would take too long
            self._more = bytearray()
        if request.close:
            self.is_over = True
        else:
            self._cacheable = request.head if self._is_cacheable else None
        self._headers = {}
        self._deliver(request)

    # ---- parts of a head ----

    def _sender(self) -> dict[str, Any]:
        """Return the fields of a head that say who sends the request, from the headers read so far."""
        authorization = self._headers.get(b"authorization")
        return {
            "bearer": bearer_of(authorization) if authorization else None,
            "user_agent": user_agent_of(self._headers.get(b"user-agent", b"")),
        }

    def _call(self, head: RequestHead) -> Call:
        raw_id = self._headers.get(b"x-request-id")
        return Call(
            bearer=head.bearer,
            certificate=self._certificate,
            remote=self._remote,
            request_id=(request_id_of(raw_id) if raw_id is not None else None) or self._listener.next_request_id(),
            user_agent=head.user_agent,
            connection=self._connection,
        )

    def _check_length(self, headers: dict[bytes, bytes], *, is_old: bool) -> bool:
        """Return whether a body follows."""
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if is_old or coding.lower() != b"chunked":
                self._stop(malformed("transfer-encoding: only 'chunked' is understood, in HTTP/1.1"))
            return True
        length = headers.get(b"content-length")
        if length is None:
            return False
        return length != b"0"

    def _check_expect(self, request: Request, expect: bytes, *, has_body: bool) -> None:
        if expect.lower() != b"100-continue":
            self._stop(Refusal(417, "invalid", "expect: only 100-continue is understood"))
        if not has_body:
            return
        if request.refusal is not None:
            self._stop(request.refusal)
        self.expects_continue = True

    def _limit(self, setting: str) -> str:
        return f"{getattr(self._listener.settings, setting)} bytes, the limit of this server"

    def _stop(self, refusal: TenantqError) -> None:
        self.refuse(refusal)
        raise _Stop


def _without_origin(path: bytes) -> bytes:
    """Return the path of a request target that may be a whole URL, as proxies send it."""
    if path.startswith(b"/"):
        return path
    scheme, found, rest = path.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if found and scheme.lower() in {b"http", b"https"} else path


def body_too_large(bytes_max: int) -> TooLarge:
    """Return the refusal of a body that is larger than a call's may be."""
    return TooLarge(f"body: is larger than {bytes_max} bytes, the limit of this call")


def _wrong_version() -> Refusal:
    return Refusal(505, "invalid", "only HTTP/1.1 and HTTP/1.0 are spoken here")


def _headers_too_large() -> Refusal:
    return Refusal(431, "too_large", "the headers are too many or too long for this server")
