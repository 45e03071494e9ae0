"""One connection: its calls run side by side, within its bounds, and a slow or vanished client costs nothing but itself."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final, cast

import capnp

from tenantq.errors import Invalid, TenantqError, Unavailable
from tenantq.rpc.framing import WORD, is_bootstrap, read_frame
from tenantq.rpc.pipe import Pipe
from tenantq.rpc.schema import abort_message
from tenantq.service.problems import no_room

if TYPE_CHECKING:
    from tenantq.rpc.call import RunningCall
    from tenantq.rpc.framing import Frame
    from tenantq.rpc.listener import RpcListener

log = logging.getLogger("tenantq.rpc")

LARGE_BYTES: Final = 64 << 10
"""Smaller messages and replies are not counted one by one: what a connection may read ahead bounds them."""

READ_AHEAD_BYTES: Final = 256 << 10
BOOTSTRAPS_MAX: Final = 1_000
"""A client asks for the first capability once; each time the library remembers it."""

NESTING_MAX: Final = 32
STEPS_TO_SEND: Final = 8
"""Turns of the event loop, at most, from the end of a call's work until its reply is with the system."""


class Connection(asyncio.Protocol):
    """The protocol of one accepted connection."""

    def __init__(self, listener: RpcListener) -> None:
        self.listener = listener
        self.remote = ""
        self.certificate: dict[str, object] | None = None
        self.calls: set[RunningCall] = set()  # begun, or waiting for their turn
        self.sessions = 0
        self.held_bytes = 0  # of the listener's bound: what calls under way hold
        self._frame_bytes = 0  # ... and what a large message that has not arrived wholly will
        self._pending = bytearray()  # arrived, not handed over
        self._left = 0  # of the message that is being handed over
        self._messages = 0
        self._bootstraps = 0
        self._reads = True
        self._is_blocked = False  # the client takes nothing
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._replied_bytes = 0  # of replies that the library has not written yet; about
        self._unsent_bytes = 0
        self._unsent_since_ms = 0
        self._has_logged_in = False
        self._received_bytes = self._received_bytes_seen = 0
        self._is_lost = False
        self._is_closing = False
        self._is_draining = False
        self._is_cut = False
        self._pipe: Pipe | None = None

    # ---- events of the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve, unless too many are served already."""
        self._transport = cast("asyncio.Transport", transport)  # or uvloop's, which has the same methods
        listener = self.listener
        listener.figures.connections_total += 1
        if len(listener.connections) >= listener.settings.connections_max or listener.is_closing:
            self._turn_away()
            return
        listener.connections.add(self)
        peer = transport.get_extra_info("peername")
        self.remote = peer[0] if isinstance(peer, tuple) else ""
        self.certificate = transport.get_extra_info("peercert") or None
        _keep_alive(transport)
        self._transport.set_write_buffer_limits(high=listener.settings.write_buffer_bytes)
        self._since_ms = listener.now_ms
        self._opened_ms = self._called_ms = listener.now_ms
        self._pipe = Pipe(self._feed, self._take_out, self._end)
        self._rpc = capnp.TwoPartyServer(
            self._pipe.stream,
            bootstrap=listener.new_door(self),
            # A message may be read twice over: pointers that lead to the same bytes again and again are an attack.
            traversal_limit_in_words=2 * listener.settings.message_bytes_max // WORD,
            nesting_limit=NESTING_MAX,
        )
        self._gone = self._rpc.on_disconnect()
        self._gone.add_done_callback(self._hung_up)

    def data_received(self, data: bytes) -> None:
        """Hand over what arrived as far as it is wanted; stop reading while more waits than may."""
        if self._is_lost or self._is_closing:
            return
        self._received_bytes += len(data)
        self._pending += data
        self._feed()
        if len(self._pending) > READ_AHEAD_BYTES and self._reads and not self._transport.is_closing():
            self._reads = False
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """End the connection: a client that sends nothing more gets no more replies either."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the reason changes nothing
        """Let go of everything; give up calls that only wait."""
        self._is_lost = True
        if self._pipe is None:
            return
        self._pending.clear()
        self._release_frame()
        self._pipe.lose()
        for call in list(self.calls):
            call.give_up()
        self.listener.loop.call_soon(self._rpc.close)
        self.listener.closed(self)

    def pause_writing(self) -> None:
        """Begin no further call until the client has taken what waits for it."""
        self._is_blocked = True
        self._unsent_since_ms = self.listener.now_ms
        if self._pipe is not None:
            self._pipe.pause_writing()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_blocked = False
        if self._pipe is not None:
            self._pipe.resume_writing()
            self._feed()
        if self._is_draining:
            self._close_when_sent()

    # ---- reading ----

    def _feed(self) -> None:
        """Hand over what the library waits for, one message after the other, while this connection may begin calls."""
        pipe, pending = self._pipe, self._pending
        if pipe is None:
            return  # it asks while it is being made
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
        """Tell whether the next message may be handed over; one that is over a limit ends the connection."""
        settings = self.listener.settings
        if self._is_draining or self._is_closing or self._is_choked():
            return False
        try:
            frame = read_frame(self._pending, settings.segments_max, settings.message_bytes_max)
            if frame is None:
                return False
            self._check_kind(frame)
            if frame.size > LARGE_BYTES:
                if not self.listener.make_room(self, frame.size):
                    raise no_room()
                self._frame_bytes = frame.size
                self.listener.buffered_bytes += frame.size
        except TenantqError as error:
            self.listener.figures.malformed_total += 1
            self.listener.loop.call_soon(self._abort, error.message)  # not from inside the library
            self._is_closing = True
            return False
        self._left = frame.size
        self._messages += 1
        self._since_ms = self.listener.now_ms
        return True

    def _check_kind(self, frame: Frame) -> None:
        if not self._has_logged_in and self._messages >= self.listener.settings.strangers_messages_max:
            raise Invalid("log in first: this connection has sent as many messages as it may without")
        if is_bootstrap(self._pending, frame):
            self._bootstraps += 1
            if self._bootstraps > BOOTSTRAPS_MAX:
                raise Invalid("ask for the bootstrap capability once, and keep it")

    def _is_choked(self) -> bool:
        settings = self.listener.settings
        return (
            self._is_blocked or len(self.calls) >= settings.calls_max or self.held_bytes >= settings.message_bytes_max
        )

    def _release_frame(self) -> None:
        self.listener.buffered_bytes -= self._frame_bytes
        self._frame_bytes = 0

    # ---- calls ----

    def begun(self, call: RunningCall) -> None:
        """Take note of a call, which the library has read."""
        self.calls.add(call)
        self.listener.figures.calls_total += 1

    def ended(self, call: RunningCall) -> None:
        """Take note that a call is done; read on."""
        self.calls.discard(call)
        self._called_ms = self.listener.now_ms
        if self._is_draining:
            self._close_when_sent()
        elif self._pending:
            self._feed()

    def logged_in(self) -> None:
        """Take note of a session."""
        self.sessions += 1
        self._has_logged_in = True

    def logged_out(self) -> None:
        """Take note that a session is gone."""
        self.sessions -= 1

    def hold(self, size: int) -> bool:
        """Count ``size`` bytes as held by a call; False: there is no room for them."""
        if not self.listener.make_room(self, size):
            return False
        self.listener.buffered_bytes += size
        self.held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Take back what was counted for a call."""
        self.listener.buffered_bytes -= size
        self.held_bytes -= size

    def replies(self, size: int) -> None:
        """Take note that a reply of about this size goes to the library."""
        if size > LARGE_BYTES:
            self._replied_bytes += size
            self.listener.count_unsent(size)

    # ---- what the listener asks ----

    def check(self, now_ms: int) -> int:
        """Cut the client off if it has been too slow; called about twice a second. Return how much is unsent."""
        if self._is_lost or self._is_cut or self._pipe is None:
            return 0
        settings = self.listener.settings
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
                self.listener.figures.cut_total["call"] += 1
                self._abort("nothing was called on this connection for too long. Connect again, and log in.")
        return self.unsent_bytes()

    def _is_idle(self, now_ms: int) -> bool:
        """Tell whether nothing has been called for too long. Messages that are no calls do not count: they pass no gate and cost nothing."""
        if self.calls or self._is_blocked:
            self._called_ms = now_ms
        return not self._is_closing and now_ms - self._called_ms >= self.listener.settings.idle_timeout_ms

    def unfinished_bytes(self) -> int:
        """Return what is counted for a message that has not arrived wholly."""
        return self._frame_bytes

    def give_way(self) -> None:
        """Give up the message that is being read, and with it the connection: others find room."""
        self._release_frame()
        self._abort(no_room().message)

    def unsent_bytes(self) -> int:
        """Return what the client has not taken yet."""
        return self._transport.get_write_buffer_size() + self._out_bytes + self._replied_bytes

    def drain(self) -> None:
        """Finish what is under way, begin nothing new, and close."""
        self._is_draining = True
        for call in list(self.calls):
            call.stop_waiting()
        self._close_when_sent()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        self._is_closing = self._is_cut = True
        self._transport.abort()

    # ---- writing ----

    def _take_out(self, data: bytes) -> None:
        if not self._out:
            self.listener.loop.call_soon(self._send)
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

    def _is_stuck_writing(self, now_ms: int) -> bool:
        """Tell whether the client has taken nothing for too long of what waits for it."""
        unsent = self._transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent_bytes or self._unsent_bytes == 0:
            self._unsent_bytes = unsent
            self._unsent_since_ms = now_ms
            return False
        self._unsent_bytes = unsent
        return now_ms - self._unsent_since_ms >= self.listener.settings.write_timeout_ms

    # ---- ending ----

    def _end(self) -> None:
        """Close once everything is sent; the library asks for it, perhaps from inside itself."""
        self._is_closing = True
        self.listener.loop.call_soon(self._close)

    def _hung_up(self, future: asyncio.Future[None]) -> None:
        """Close after the library has given the connection up: what arrived made no sense to it, or the client is gone."""
        if not future.cancelled():
            future.exception()  # it is told by the client, and no news here
        self._end()

    def _close_when_sent(self, steps: int = STEPS_TO_SEND) -> None:
        """Close as soon as nothing is under way and the last replies have gone through the library."""
        if self.calls or self._is_closing or self._is_lost:
            return
        if steps:
            self.listener.loop.call_soon(self._close_when_sent, steps - 1)
        elif not self._is_blocked:  # else it is asked again when the client has taken something
            self._close()

    def _close(self) -> None:
        self._is_closing = True
        if self._out:
            self._send()
        if not self._is_lost:
            self._transport.close()

    def _abort(self, reason: str) -> None:
        """Tell the client why its connection ends, and end it."""
        if self._is_lost or self._transport.is_closing():
            return
        self._is_closing = True
        if not self._is_blocked:  # else it may be in the middle of a message
            self._take_out(abort_message(reason))
        self._close()

    def _turn_away(self) -> None:
        self._is_lost = True
        self.listener.figures.connections_refused_total += 1
        reason = Unavailable("too many connections are open. Try again later.")
        self._transport.write(abort_message(reason.message))
        self._transport.close()

    def _cut(self, waited_for: str) -> None:
        self.listener.figures.cut_total[waited_for] += 1
        self.abort()


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the system find out about clients that are gone without a word: a session may be silent for long."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
