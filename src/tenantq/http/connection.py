"""One connection: requests are answered in order, by one task, and a slow or vanished client costs nothing but itself."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from tenantq.errors import TenantqError, Unavailable
from tenantq.http.dispatch import Dispatch
from tenantq.http.problem import Refusal, problem_reply
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.http.reply import CONTINUE, Reply, Stream, head, stream_head
from tenantq.http.request_parser import BODY, HEAD, IDLE, RequestParser

if TYPE_CHECKING:
    from tenantq.http.listener import Listener
    from tenantq.http.request import Request

log = logging.getLogger("tenantq.http")

SLICE_BYTES: Final = 16 << 10
"""Parsed at a time; between two slices it is seen whether enough requests wait already."""

_ONE_WRITE_BYTES: Final = 64 << 10


class Connection(Dispatch, asyncio.Protocol):
    """The protocol of one accepted connection."""

    reads_with = RequestParser

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._requests: deque[Request] = deque()  # complete, not begun
        self._current: Request | None = None  # which the task is at work on
        self._at_end = False  # the client sends nothing more
        self._unread: memoryview | None = None  # arrived, not parsed yet
        self._reads = True
        self._wake: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None  # while too much is unsent
        self._unsent_bytes = 0
        self._unsent_since_ms = 0
        self._body_bytes_seen = 0
        self._is_closing = False  # as soon as everything is sent, or ...
        self._lingers_until_ms: int | None = None  # ... the client has had time to read why

    # ---- events of the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve, unless too many are served already."""
        self._transport = cast("asyncio.Transport", transport)  # or uvloop's, which has the same methods
        listener = self._listener
        listener.figures.connections_total += 1
        if len(listener.connections) >= listener.settings.connections_max or listener.is_closing:
            self._turn_away()
            return
        listener.connections.add(self)
        self._transport.set_write_buffer_limits(high=listener.settings.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        self._parser = self.reads_with(
            listener,
            self._take,
            connection=self,
            remote=peer[0] if isinstance(peer, tuple) else "",
            certificate=transport.get_extra_info("peercert") or None,
            is_secure=transport.get_extra_info("sslcontext") is not None,
        )
        self._task = listener.loop.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; stop reading while enough requests wait."""
        if self._is_lost:
            return
        if self._unread is not None:
            self._unread = memoryview(bytes(self._unread) + data)
        elif len(data) <= SLICE_BYTES:
            self._parser.feed(data)
            if len(self._requests) >= self._listener.settings.pipeline_max:
                self._pause()
        else:
            self._parse(memoryview(data))
        if self._parser.expects_continue:
            _let_go(self._wake)

    def eof_received(self) -> bool:
        """Answer what was asked completely, then close; what only waits is answered now, with what there is."""
        self._at_end = True
        if self._is_lost or self._is_closing:
            return False
        self._parser.stop()
        self.stop_waiting()
        return self._current is not None or bool(self._requests)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the reason changes nothing
        """Let go of everything; give up a call that only waits."""
        self._is_lost = True
        self._listener.connections.discard(self)
        if not hasattr(self, "_task"):
            return
        self._parser.stop()
        while self._requests:
            self._listener.release(self._requests.pop())
        self._unread = None
        if self._waits:
            self._task.cancel()
        _let_go(self._wake)
        _let_go(self._room)
        self._listener.closed(self)

    def pause_writing(self) -> None:
        """Begin no further request until the client has taken what waits for it."""
        if self._room is None:
            self._room = self._listener.loop.create_future()

    def resume_writing(self) -> None:
        """Go on."""
        _let_go(self._room)
        self._room = None

    # ---- what the listener asks ----

    def check(self, now_ms: int) -> int:
        """Cut the client off if it has been too slow; called about twice a second. Return how much is unsent."""
        if self._is_lost:
            return 0
        if self._is_stuck_writing(now_ms):
            self._cut("write")
            self.abort()
        elif self._is_closing:
            if self._lingers_until_ms is not None and now_ms >= self._lingers_until_ms:
                self.abort()
        elif not self._reads or (self._unsent_bytes and self._parser.stage is IDLE):
            self._parser.since_ms = now_ms  # it is not the client that keeps the server waiting
        else:
            self._check_reading(now_ms - self._parser.since_ms)
        return self._unsent_bytes

    def _check_reading(self, waited_ms: int) -> None:
        settings, parser = self._listener.settings, self._parser
        if parser.stage is HEAD:
            if waited_ms >= settings.head_timeout_ms:
                self._cut("head")
                parser.refuse(Refusal(408, "unavailable", "the request's headers took too long to arrive"))
        elif parser.stage is BODY:
            if waited_ms < settings.body_timeout_ms:
                return
            if parser.body_bytes - self._body_bytes_seen >= settings.body_progress_bytes:
                parser.since_ms += waited_ms
                self._body_bytes_seen = parser.body_bytes
            else:
                self._cut("body")
                parser.refuse(Refusal(408, "unavailable", "the request's body took too long to arrive"))
        elif self._current is None and not self._requests and waited_ms >= settings.idle_timeout_ms:
            self._cut("idle")
            self._close()

    def held_bytes(self) -> int:
        """Return what is held of a request that has not arrived wholly."""
        return self._parser.held_bytes

    def give_way(self) -> None:
        """Give up the request that is being read."""
        self._parser.give_way()

    def unsent_bytes(self) -> int:
        """Return what the client has not taken yet."""
        return self._transport.get_write_buffer_size()

    def drain(self) -> None:
        """Finish what is under way, begin nothing new, and close."""
        self.stop_waiting()
        if self._current is None and not self._requests and self._parser.stage is IDLE:
            self._close()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        self._is_closing = True
        self._lingers_until_ms = None
        self._unsent_bytes = 0
        self._transport.abort()

    # ---- reading ----

    def _take(self, request: Request) -> None:
        self._body_bytes_seen = 0
        if self._is_lost:
            self._listener.release(request)
            return
        self._requests.append(request)
        if self._wake is not None and not self._wake.done() and len(self._requests) == 1:
            self._listener.turns.enter(request.call.bearer, self._wake)

    def _parse(self, data: memoryview) -> None:
        """Feed in slices until there is enough to do."""
        at = 0
        while at < len(data):
            if len(self._requests) >= self._listener.settings.pipeline_max:
                self._unread = data[at:]
                self._pause()
                return
            self._parser.feed(data[at : at + SLICE_BYTES])
            at += SLICE_BYTES
        self._unread = None
        if len(self._requests) >= self._listener.settings.pipeline_max:
            self._pause()

    def _pause(self) -> None:
        if self._reads and not self._transport.is_closing():
            self._reads = False
            self._transport.pause_reading()

    def _go_on_reading(self) -> None:
        if self._unread is not None:
            self._parse(self._unread)
        if not self._reads and self._unread is None and len(self._requests) < self._listener.settings.pipeline_max:
            self._reads = True
            self._transport.resume_reading()

    # ---- answering ----

    async def _serve(self) -> None:
        """Answer one request after the other until the connection ends."""
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
                    self._wake = self._listener.loop.create_future()
                    await self._wake
                    continue
                request = requests.popleft()
                self._current = request
                reply = await self.answer(request)
                if isinstance(reply, Stream):
                    await self._send_stream(request, reply)
                self._current = None
                self._listener.release(request)
                if isinstance(reply, Reply):
                    self._send(request, reply)
                if request.close or self._listener.is_closing:
                    self._close(linger=request.is_unfinished)
                    return
                if self._room is not None:
                    self._unsent_since_ms = self._listener.now_ms
                    await self._room
                if not self._reads:
                    self._go_on_reading()
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:
            log.exception("a fault while serving a connection")
            self.abort()
        finally:
            if self._current is not None:
                self._listener.release(self._current)

    async def _invite(self) -> None:
        """Have a client send its body that asked whether it should; one that is nobody is told so instead."""
        parser, request = self._parser, self._parser.unfinished
        parser.expects_continue = False
        if request is None or request.route is None:
            return
        try:
            if request.route.secured and type(request.route) is not ProtocolRoute:
                await self._listener.service.gates.identify(request.call, request.route.action)
        except TenantqError as refusal:
            if parser.unfinished is request:
                parser.refuse(refusal)
        else:
            if parser.unfinished is request and not self._is_lost:
                self._transport.write(CONTINUE)

    def _is_done(self) -> bool:
        """Tell whether nothing more will come: asked when every request has been answered."""
        if self._at_end:
            return True
        return self._listener.is_closing and self._parser.stage is IDLE

    # ---- writing ----

    def _send(self, request: Request, reply: Reply) -> None:
        if self._is_lost:
            return
        listener = self._listener
        counts = listener.figures.replies_total
        counts[reply.status] = counts.get(reply.status, 0) + 1
        lines = listener.lines
        if request.close or listener.is_closing:
            lines += b"Connection: close\r\n"
        elif request.is_old:
            lines += b"Connection: keep-alive\r\n"
        first = head(reply, lines, request.call.request_id)
        if request.head_only or reply.status == 204:
            self._transport.write(first)
        elif len(reply.body) <= _ONE_WRITE_BYTES:
            self._transport.write(first + reply.body)
        else:
            self._transport.write(first)
            self._transport.write(reply.body)
            listener.count_unsent(len(reply.body))

    async def _send_stream(self, request: Request, stream: Stream) -> None:
        """Send a reply as it is made, no faster than the client takes it. If it breaks off, so does the connection."""
        listener, chunked = self._listener, not request.is_old
        request.close = request.close or not chunked  # the end of the connection is the end of the reply
        counts = listener.figures.replies_total
        counts[200] = counts.get(200, 0) + 1
        lines = listener.lines
        if request.close or listener.is_closing:
            lines += b"Connection: close\r\n"
        try:
            self._write_part(stream_head(stream, lines, request.call.request_id, chunked=chunked))
            if request.head_only:
                return
            async for part in stream.parts:
                if self._is_lost:
                    return
                if part:
                    self._write_part(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
                if self._room is not None:
                    self._unsent_since_ms = listener.now_ms
                    await self._room
            if chunked:
                self._write_part(b"0\r\n\r\n")
        except TenantqError as error:
            log.warning("request %s breaks off in its middle: %s", request.call.request_id, error)
            self.abort()
        finally:
            await stream.parts.aclose()  # type: ignore[attr-defined]  # they are generators

    def _write_part(self, data: bytes) -> None:
        if not self._is_lost:
            self._transport.write(data)
            if len(data) > _ONE_WRITE_BYTES:
                self._listener.count_unsent(len(data))

    def _is_stuck_writing(self, now_ms: int) -> bool:
        """Tell whether the client has taken nothing for too long of what waits for it."""
        unsent = self.unsent_bytes()
        if unsent == 0 or unsent < self._unsent_bytes or self._unsent_bytes == 0:
            self._unsent_bytes = unsent
            self._unsent_since_ms = now_ms
            return False
        self._unsent_bytes = unsent
        return now_ms - self._unsent_since_ms >= self._listener.settings.write_timeout_ms

    def _close(self, *, linger: bool = False) -> None:
        """Close once everything is sent. With ``linger``, after the client has had time to read why.

        Closing while the client still sends would make its system throw away what it has not read yet.
        """
        if self._is_closing or self._is_lost:
            return
        self._is_closing = True
        self._parser.stop()
        if linger and not self._at_end:
            self._lingers_until_ms = self._listener.now_ms + self._listener.settings.linger_ms
            if not self._reads:
                self._reads = True
                self._transport.resume_reading()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            return
        self._transport.close()

    def _turn_away(self) -> None:
        self._is_lost = True
        self._listener.figures.connections_refused_total += 1
        refusal = Unavailable("too many connections are open. Try again later.")
        request_id = self._listener.next_request_id()
        reply = problem_reply(refusal, request_id)
        lines = self._listener.lines + b"Connection: close\r\n"
        self._transport.write(head(reply, lines, request_id) + reply.body)
        self._transport.close()

    def _cut(self, waited_for: str) -> None:
        self._listener.figures.cut_total[waited_for] += 1


def _let_go(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
