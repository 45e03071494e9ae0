"""One HTTP connection. One task answers its requests in order; a slow or vanished client affects no other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from http import HTTPStatus
from typing import Final

from tenantq.errors import TenantqError, Unavailable
from tenantq.http.call_wait import CallWait
from tenantq.http.context import HttpContext
from tenantq.http.dispatch import answer
from tenantq.http.problem import HttpError, problem_reply
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.http.reply import CONTINUE, Reply, Stream, head, stream_head
from tenantq.http.request import Request
from tenantq.http.request_parser import BODY, HEAD, IDLE, RequestParser
from tenantq.runtime.futures import wake
from tenantq.runtime.listener_context import ListenerConnection
from tenantq.runtime.loop_slices import loop_slices

log = logging.getLogger("tenantq.http")

SLICE_BYTES: Final = 16 << 10
"""Parsed at a time. Between two slices the connection checks whether enough requests wait already."""

_ONE_READ_BYTES: Final = 64 << 10
_ONE_WRITE_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 256 << 10


class HttpConnection(ListenerConnection[HttpContext]):
    """The protocol of one accepted connection."""

    def __init__(self, context: HttpContext) -> None:
        super().__init__(context)
        self._requests: deque[Request] = deque()  # complete, not started
        self._current: Request | None = None  # in progress
        self._at_end = False  # the client has ended its side
        self._unread: memoryview | None = None  # arrived, not parsed yet
        self._reads = True
        self._wake: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None  # while too much is unsent
        self._body_bytes_seen = 0
        self._unsent_reply_bytes = 0  # not handed to the transport yet
        self._known_bearer: str | None = None  # that was accepted last
        self._lingers_until_ms: int | None = None  # the connection stays open so that the client can read why it ends

    # ---- events of the transport ----

    def over_limit_reply(self) -> bytes:
        """Return the reply for a connection beyond the limit."""
        request_id = self.context.next_request_id()
        reply = problem_reply(Unavailable("too many connections are open. Try again later."), request_id)
        return head(reply, self.context.lines + b"Connection: close\r\n", request_id) + reply.body

    def begin(self) -> None:
        """Start serving."""
        self._parser = RequestParser(
            self.context,
            self._take,
            remote=self.remote,
            certificate=self.certificate,
            is_secure=self._transport.get_extra_info("sslcontext") is not None,
        )
        self._wait = CallWait(self.context.loop.create_task(self._serve()))

    def data_received(self, data: bytes) -> None:
        """Parse what arrived. Stop reading while enough requests wait."""
        if self._is_lost:
            return
        if self._unread is not None:
            self._unread = memoryview(bytes(self._unread) + data)
        elif len(data) <= SLICE_BYTES:
            self._parser.feed(data)
            if len(self._requests) >= self.context.settings.pipeline_max:
                self._pause()
        elif len(data) <= _ONE_READ_BYTES:
            self._parse(memoryview(data))
        else:  # part of a large body: of all connections, one parses per turn of the loop
            self._unread = memoryview(data)
            self._pause()
            loop_slices(self.context.loop).enter(self._parse_unread)
        if self._parser.expects_continue:
            wake(self._wake)

    def eof_received(self) -> bool:
        """Answer the complete requests, then close. A waiting call is answered now."""
        self._at_end = True
        if self._is_lost or self._is_closing:
            return False
        self._parser.stop()
        self._wait.stop()
        return self._current is not None or bool(self._requests)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the reason changes nothing
        """Release all resources and cancel a waiting call."""
        self._is_lost = True
        self.context.closed(self)
        if not hasattr(self, "_wait"):
            return  # it was refused
        self._parser.stop()
        while self._requests:
            self._requests.pop().release()
        self._unread = None
        self._wait.abandon()
        wake(self._wake)
        wake(self._writable)

    def pause_writing(self) -> None:
        """Start no further request until the client has read what was sent."""
        if self._writable is None:
            self._writable = self.context.loop.create_future()

    def resume_writing(self) -> None:
        """Resume after ``pause_writing``."""
        wake(self._writable)
        self._writable = None

    # ---- called by the listener ----

    def check(self, now_ms: int) -> int:
        """Disconnect the client if it is too slow. Return the number of unsent bytes."""
        if self._is_lost:
            return 0
        if self._is_stuck_writing(now_ms):
            self._cut("write")
            self.abort()
        elif self._is_closing:
            if self._lingers_until_ms is not None and now_ms >= self._lingers_until_ms:
                self.abort()
        elif not self._reads or (self._unsent_seen_bytes and self._parser.stage is IDLE):
            self._parser.since_ms = now_ms  # the server is not waiting for the client
        else:
            self._check_reading(now_ms - self._parser.since_ms)
        return self._unsent_seen_bytes + self._unsent_reply_bytes

    def _check_reading(self, waited_ms: int) -> None:
        settings, parser = self.context.settings, self._parser
        if parser.stage is HEAD:
            if waited_ms >= settings.head_timeout_ms:
                self._cut("head")
                parser.refuse(HttpError(408, "unavailable", "the request's headers took too long to arrive"))
        elif parser.stage is BODY:
            if waited_ms < settings.body_timeout_ms:
                return
            if parser.body_bytes - self._body_bytes_seen >= settings.body_progress_bytes:
                parser.since_ms += waited_ms
                self._body_bytes_seen = parser.body_bytes
            else:
                self._cut("body")
                parser.refuse(HttpError(408, "unavailable", "the request's body took too long to arrive"))
        elif self._current is None and not self._requests and waited_ms >= settings.idle_timeout_ms:
            self._cut("idle")
            self._close()

    def is_answering(self) -> bool:
        """Return whether a request is being answered."""
        return self._current is not None or bool(self._requests)

    def unfinished_bytes(self) -> int:
        """Return the bytes held for a request that has not fully arrived."""
        return self._parser.held_bytes

    def give_way(self) -> None:
        """Discard the request that has not fully arrived."""
        self._parser.give_way()

    def drain(self) -> None:
        """Finish the current request, start no other, and close."""
        self._wait.stop()
        if self._current is None and not self._requests and self._parser.stage is IDLE:
            self._close()

    def abort(self) -> None:
        """Close at once, even during a request."""
        self._lingers_until_ms = None
        super().abort()

    # ---- reading ----

    def _take(self, request: Request) -> None:
        self._body_bytes_seen = 0
        if self._is_lost:
            request.release()
            return
        self._requests.append(request)
        if self._wake is not None and not self._wake.done() and len(self._requests) == 1:
            self.context.turns.enter(request.call.bearer, self._wake)

    def _parse(self, data: memoryview) -> None:
        """Parse in slices until enough requests wait."""
        at = 0
        while at < len(data):
            if len(self._requests) >= self.context.settings.pipeline_max:
                self._unread = data[at:]
                self._pause()
                return
            self._parser.feed(data[at : at + SLICE_BYTES])
            at += SLICE_BYTES
        self._unread = None
        if len(self._requests) >= self.context.settings.pipeline_max:
            self._pause()

    def _parse_unread(self) -> None:
        """Parse a large part that was read, and read on."""
        if not self._is_lost and len(self._requests) < self.context.settings.pipeline_max:
            self._resume_reading()
            if self._parser.expects_continue:
                wake(self._wake)

    def _pause(self) -> None:
        if self._reads and not self._transport.is_closing():
            self._reads = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._unread is not None:
            self._parse(self._unread)
        if not self._reads and self._unread is None and len(self._requests) < self.context.settings.pipeline_max:
            self._reads = True
            self._transport.resume_reading()

    # ---- answering ----

    async def _serve(self) -> None:
        """Answer the requests one after the other until the connection ends."""
        requests = self._requests
        try:
            while not self._is_lost:
                if not requests:
                    if self._is_done():
                        self._close()
                        return
                    if self._parser.expects_continue:
                        await self._invite()
                        continue
                    self._wake = self.context.loop.create_future()
                    await self._wake
                    continue
                request = requests.popleft()
                self._current = request
                reply = await answer(request, self._wait)
                if request.call.bearer != self._known_bearer:
                    self._recognize(request, reply)
                if isinstance(reply, Stream):
                    await self._send_stream(request, reply)
                elif self._send(request, reply):
                    await self._send_pieces(reply.body)
                self._current = None
                request.release()
                if request.close or self.context.is_closing:
                    self._close(linger=request.is_unfinished)
                    return
                if self._writable is not None:
                    self._unsent_since_ms = self.context.now_ms
                    await self._writable
                if not self._reads:
                    self._resume_reading()
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:
            log.exception("internal error while serving a connection")
            self.abort()
        finally:
            if self._current is not None:
                self._current.release()

    def _recognize(self, request: Request, reply: Reply | Stream) -> None:
        """Count the connection for a credential that was accepted. One of too many closes after this reply."""
        route, bearer = request.route, request.call.bearer
        refused = isinstance(reply, Reply) and reply.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
        if bearer is None or route is None or not route.secured or request.refusal is not None or refused:
            return
        self._known_bearer = bearer
        if not self.context.table.recognize(self, bearer):
            request.close = True

    async def _invite(self) -> None:
        """Send "100 Continue" to a client that waits for it, or refuse a client with an invalid credential."""
        parser, request = self._parser, self._parser.unfinished
        parser.expects_continue = False
        if request is None or request.route is None:
            return
        try:
            if request.route.secured and type(request.route) is not ProtocolRoute:
                await self.context.service.admission.identify(request.call, request.route.action)
        except TenantqError as refusal:
            if parser.unfinished is request:
                parser.refuse(refusal)
        else:
            if parser.unfinished is request and not self._is_lost:
                self._transport.write(CONTINUE)

    def _is_done(self) -> bool:
        """Return whether no more requests will come, once every request has been answered."""
        if self._at_end:
            return True
        return self.context.is_closing and self._parser.stage is IDLE

    # ---- writing ----

    def _send(self, request: Request, reply: Reply) -> bool:
        """Send a reply. Return True if its body is large: then only the head was sent."""
        if self._is_lost:
            return False
        context = self.context
        counts = context.metrics.replies_total
        counts[reply.status] = counts.get(reply.status, 0) + 1
        lines = context.lines
        if request.close or context.is_closing:
            lines += b"Connection: close\r\n"
        elif request.head.is_old:
            lines += b"Connection: keep-alive\r\n"
        first = head(reply, lines, request.call.request_id)
        if request.head.head_only or reply.status == 204:
            self._transport.write(first)
        elif len(reply.body) <= _ONE_WRITE_BYTES:
            self._transport.write(first + reply.body)
        else:
            self._transport.write(first)
            return True
        return False

    async def _send_pieces(self, body: bytes) -> None:
        """Send a large body, no faster than the client accepts it."""
        self._unsent_reply_bytes = len(body)
        self.context.count_unsent(len(body))
        view = memoryview(body)
        for at in range(0, len(body), _PIECE_BYTES):
            if self._is_lost or self._is_closing:
                break
            self._unsent_reply_bytes = max(0, len(body) - at - _PIECE_BYTES)
            self._transport.write(view[at : at + _PIECE_BYTES])
            if self._writable is not None:
                self._unsent_since_ms = self.context.now_ms
                await self._writable
        self._unsent_reply_bytes = 0

    def unsent_bytes(self) -> int:
        """Return the bytes that the client has not accepted yet."""
        return super().unsent_bytes() + self._unsent_reply_bytes

    async def _send_stream(self, request: Request, stream: Stream) -> None:
        """Send a reply as it is produced, no faster than the client reads it. If it fails, the connection ends."""
        context, chunked = self.context, not request.head.is_old
        request.close = request.close or not chunked  # the end of the connection is the end of the reply
        counts = context.metrics.replies_total
        counts[200] = counts.get(200, 0) + 1
        lines = context.lines
        if request.close or context.is_closing:
            lines += b"Connection: close\r\n"
        try:
            self._write_part(stream_head(stream, lines, request.call.request_id, chunked=chunked))
            if request.head.head_only:
                return
            async for part in stream.parts:
                if self._is_lost:
                    return
                if part:
                    self._write_part(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
                if self._writable is not None:
                    self._unsent_since_ms = context.now_ms
                    await self._writable
            if chunked:
                self._write_part(b"0\r\n\r\n")
        except TenantqError as error:
            log.warning("request %s ended before it was complete: %s", request.call.request_id, error)
            self.abort()
        finally:
            await stream.parts.aclose()  # type: ignore[attr-defined]  # they are generators

    def _write_part(self, data: bytes) -> None:
        if not self._is_lost:
            self._transport.write(data)
            if len(data) > _ONE_WRITE_BYTES:
                self.context.count_unsent(len(data))

    def _close(self, *, linger: bool = False) -> None:
        """Close once everything is sent. With ``linger``, first give the client time to read why.

        Closing while the client still sends would make its system discard what it has not read yet.
        """
        if self._is_closing or self._is_lost:
            return
        self._is_closing = True
        self._parser.stop()
        if linger and not self._at_end:
            self._lingers_until_ms = self.context.now_ms + self.context.settings.linger_ms
            if not self._reads:
                self._reads = True
                self._transport.resume_reading()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            return
        self._transport.close()
