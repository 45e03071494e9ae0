"""One Cap'n Proto connection. Its calls run concurrently, within its bounds; a slow or vanished client affects no other."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol

import capnp

from tenantq.errors import Invalid, TenantqError, Unavailable
from tenantq.rpc.context import RpcContext
from tenantq.rpc.framing import WORD, Frame, is_bootstrap, read_frame
from tenantq.rpc.pipe import Pipe
from tenantq.rpc.schema import abort_message
from tenantq.runtime.listener_context import ListenerConnection
from tenantq.service.problems import no_room

log = logging.getLogger("tenantq.rpc")

LARGE_BYTES: Final = 64 << 10
"""Smaller messages and replies are not counted: the bound on reading ahead covers them."""

READ_AHEAD_BYTES: Final = 256 << 10
BOOTSTRAPS_MAX: Final = 1_000
"""Each request for the bootstrap capability takes memory in the library. A client needs one."""

NESTING_MAX: Final = 32
STEPS_TO_SEND: Final = 8
"""Turns of the event loop, at most, from the end of a call's work until its reply is with the system."""


class StartedCall(Protocol):
    """A call as its connection sees it."""

    def give_up(self) -> None:
        """Drop the call because the client is gone."""

    def stop_waiting(self) -> None:
        """Answer a waiting call now, because the listener closes."""


class RpcConnection(ListenerConnection[RpcContext]):
    """The protocol of one accepted connection."""

    def __init__(self, context: RpcContext, new_bootstrap: Callable[[RpcConnection], Any]) -> None:
        super().__init__(context)
        self._new_bootstrap = new_bootstrap
        self.calls: set[StartedCall] = set()  # started, or waiting for their turn
        self.sessions = 0
        self.held_bytes = 0  # of the listener's limit, used by calls in progress
        self._frame_bytes = 0  # of the listener's limit, used by a large message that has not fully arrived
        self._pending = bytearray()  # arrived, not handed over
        self._left = 0  # of the message that is being handed over
        self._messages = 0
        self._bootstraps = 0
        self._reads = True
        self._is_blocked = False  # the client accepts nothing
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._replied_bytes = 0  # of replies that the library has not written yet; about
        self._has_logged_in = False
        self._received_bytes = self._received_bytes_seen = 0
        self._is_draining = False
        self._is_cut = False
        self._pipe: Pipe | None = None

    # ---- events of the transport ----

    def over_limit_reply(self) -> bytes:
        """Return the message for a connection beyond the limit."""
        return abort_message(Unavailable("too many connections are open. Try again later.").message)

    def begin(self) -> None:
        """Start serving."""
        context = self.context
        _keep_alive(self._transport)
        self._since_ms = context.now_ms
        self._opened_ms = self._called_ms = context.now_ms
        self._pipe = Pipe(self._feed, self._take_out, self._end)
        self._rpc = capnp.TwoPartyServer(
            self._pipe.stream,
            bootstrap=self._new_bootstrap(self),
            # A message may be read twice at most: repeated pointers to the same bytes are an attack.
            traversal_limit_in_words=2 * context.settings.message_bytes_max // WORD,
            nesting_limit=NESTING_MAX,
        )
        self._gone = self._rpc.on_disconnect()
        self._gone.add_done_callback(self._hung_up)

    def data_received(self, data: bytes) -> None:
        """Hand over what the library asks for. Stop reading while too much waits."""
        if self._is_lost or self._is_closing:
            return
        self._received_bytes += len(data)
        self._pending += data
        self._feed()
        if len(self._pending) > READ_AHEAD_BYTES and self._reads and not self._transport.is_closing():
            self._reads = False
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """End the connection: a client that closes its end gets no more replies."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the reason changes nothing
        """Release all resources and cancel waiting calls."""
        self._is_lost = True
        if self._pipe is None:
            return
        self._pending.clear()
        self._release_frame()
        self._pipe.lose()
        for call in list(self.calls):
            call.give_up()
        self.context.loop.call_soon(self._rpc.close)
        self.context.closed(self)

    def pause_writing(self) -> None:
        """Start no further call until the client has read what was sent."""
        self._is_blocked = True
        self._unsent_since_ms = self.context.now_ms
        if self._pipe is not None:
            self._pipe.pause_writing()

    def resume_writing(self) -> None:
        """Resume after ``pause_writing``."""
        self._is_blocked = False
        if self._pipe is not None:
            self._pipe.resume_writing()
            self._feed()
        if self._is_draining:
            self._close_when_sent()

    # ---- reading ----

    def _feed(self) -> None:
        """Pass messages to the library, one by one, while this connection may start calls."""
        pipe, pending = self._pipe, self._pending
        if pipe is None:
            return  # the library asks while it is being created
        while pipe.wants and pending:
            if not self._left and not self._begin_message():
                break
            with memoryview(pending) as view, view[: self._left] as part:
                taken = pipe.feed(part)
            del pending[:taken]
            self._left -= taken
            if not self._left:
                self._release_frame()
        if not self._reads and len(pending) <= READ_AHEAD_BYTES // 2 and not self._transport.is_closing():
            self._reads = True
            self._transport.resume_reading()

    def _begin_message(self) -> bool:
        """Return whether the next message may be handed over. A message over a limit ends the connection."""
        settings = self.context.settings
        if self._is_draining or self._is_closing or self._is_choked():
            return False
        try:
            frame = read_frame(self._pending, settings.segments_max, settings.message_bytes_max)
            if frame is None:
                return False
            self._check_kind(frame)
            if frame.size > LARGE_BYTES:
                if not self.context.make_room(self, frame.size):
                    raise no_room()
                self._frame_bytes = frame.size
                self.context.buffered_bytes += frame.size
        except TenantqError as error:
            self.context.metrics.malformed_total += 1
            self.context.loop.call_soon(self._abort, error.message)  # not from inside the library
            self._is_closing = True
            return False
        self._left = frame.size
        self._messages += 1
        self._since_ms = self.context.now_ms
        return True

    def _check_kind(self, frame: Frame) -> None:
        if not self._has_logged_in and self._messages >= self.context.settings.strangers_messages_max:
            raise Invalid("log in first: too many messages on an unauthenticated connection")
        if is_bootstrap(self._pending, frame):
            self._bootstraps += 1
            if self._bootstraps > BOOTSTRAPS_MAX:
                raise Invalid("the bootstrap capability was already requested on this connection. Reuse it.")

    def _is_choked(self) -> bool:
        calls_max, bytes_max = self.context.settings.calls_max, self.context.settings.message_bytes_max
        return self._is_blocked or len(self.calls) >= calls_max or self.held_bytes >= bytes_max

    def _release_frame(self) -> None:
        self.context.buffered_bytes -= self._frame_bytes
        self._frame_bytes = 0

    # ---- calls ----

    def begun(self, call: StartedCall) -> None:
        """Register a call that the library has read."""
        self.calls.add(call)
        self.context.metrics.calls_total += 1

    def ended(self, call: StartedCall) -> None:
        """Remove a finished call, and continue to read."""
        self.calls.discard(call)
        self._called_ms = self.context.now_ms
        if self._is_draining:
            self._close_when_sent()
        elif self._pending:
            self._feed()

    def logged_in(self, bearer: str | None) -> None:
        """Note a session. A connection too many of the same credential is closed."""
        self.sessions += 1
        self.recognized()
        if bearer is not None and not self.context.table.recognize(self, bearer):
            self.context.loop.call_soon(self._abort, "too many connections use this credential. Close some of them.")

    def recognized(self) -> None:
        """Note that the gates have admitted a call: the limits for strangers no longer apply."""
        self._has_logged_in = True

    def logged_out(self) -> None:
        """Remove a session that has ended."""
        self.sessions -= 1

    def hold(self, size: int) -> bool:
        """Count ``size`` bytes as held by a call; False if the limit is reached."""
        if not self.context.make_room(self, size):
            return False
        self.context.buffered_bytes += size
        self.held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Release the bytes counted for a call."""
        self.context.buffered_bytes -= size
        self.held_bytes -= size

    def replies(self, size: int) -> None:
        """Count a reply of about this size that was passed to the library."""
        if size > LARGE_BYTES:
            self._replied_bytes += size
            self.context.count_unsent(size)

    # ---- called by the listener ----

    def check(self, now_ms: int) -> int:
        """Disconnect the client if it is too slow. Return the number of unsent bytes."""
        if self._is_lost or self._is_cut or self._pipe is None:
            return 0
        settings = self.context.settings
        if self._is_stuck_writing(now_ms):
            self._cut("write")
        elif not self._has_logged_in and now_ms - self._opened_ms >= settings.login_timeout_ms:
            self._cut("login")
        elif (self._left or self._pending) and not self._is_choked():
            if now_ms - self._since_ms >= settings.message_timeout_ms:
                if self._received_bytes - self._received_bytes_seen < settings.message_progress_bytes:
                    self._cut("message")
                self._since_ms, self._received_bytes_seen = now_ms, self._received_bytes
        else:
            self._since_ms, self._received_bytes_seen = now_ms, self._received_bytes
            if self._is_idle(now_ms):
                self.context.metrics.cut_total["call"] += 1
                self._abort("this connection was idle for too long. Connect and log in again.")
        return self.unsent_bytes()

    def _is_idle(self, now_ms: int) -> bool:
        """Return whether nothing has been called for too long. Other messages do not count: they pass no gate and cost nothing."""
        if self.calls or self._is_blocked:
            self._called_ms = now_ms
        return not self._is_closing and now_ms - self._called_ms >= self.context.settings.idle_timeout_ms

    def is_answering(self) -> bool:
        """Return whether a call is being answered."""
        return bool(self.calls)

    def unfinished_bytes(self) -> int:
        """Return the bytes held for a message that has not fully arrived."""
        return self._frame_bytes

    def give_way(self) -> None:
        """Discard the message that has not fully arrived, and close the connection."""
        self._release_frame()
        self._abort(no_room().message)

    def unsent_bytes(self) -> int:
        """Return the bytes that the client has not accepted yet."""
        return super().unsent_bytes() + self._out_bytes + self._replied_bytes

    def drain(self) -> None:
        """Finish calls in progress, start no other, and close."""
        self._is_draining = True
        for call in list(self.calls):
            call.stop_waiting()
        self._close_when_sent()

    def abort(self) -> None:
        """Close at once, even during calls."""
        self._is_cut = True
        super().abort()

    def _cut(self, waited_for: str) -> None:
        super()._cut(waited_for)
        self.abort()

    # ---- writing ----

    def _take_out(self, data: bytes) -> None:
        if not self._out:
            self.context.loop.call_soon(self._send)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._replied_bytes:
            self._replied_bytes = max(0, self._replied_bytes - len(data))

    def _send(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        if not self._is_lost and not self._transport.is_closing():
            self._transport.write(data)
        if not self._is_blocked:
            self._replied_bytes = 0

    # ---- ending ----

    def _end(self) -> None:
        """Close once everything is sent. The library calls this, perhaps from inside its own code."""
        self._is_closing = True
        self.context.loop.call_soon(self._close)

    def _hung_up(self, future: asyncio.Future[None]) -> None:
        """Close after the library has dropped the connection: it could not read the data, or the client is gone."""
        if not future.cancelled():
            future.exception()  # the client caused it, so it is not logged
        self._end()

    def _close_when_sent(self, steps: int = STEPS_TO_SEND) -> None:
        """Close when no call is in progress and the library has written the last replies."""
        if self.calls or self._is_closing or self._is_lost:
            return
        if steps:
            self.context.loop.call_soon(self._close_when_sent, steps - 1)
        elif not self._is_blocked:  # else resume_writing calls this again
            self._close()

    def _close(self) -> None:
        self._is_closing = True
        if self._out:
            self._send()
        if not self._is_lost:
            self._transport.close()

    def _abort(self, reason: str) -> None:
        """Send the client the reason, and close the connection."""
        if self._is_lost or self._transport.is_closing():
            return
        self._is_closing = True
        if not self._is_blocked:  # else it may be in the middle of a message
            self._take_out(abort_message(reason))
        self._close()


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the system detect vanished clients: a session can be silent for a long time."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
