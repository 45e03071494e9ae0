"""Frames between two shards: msgpack arrays, each preceded by its length.

A large payload follows its frame as it is. It is written and read in slices, and is not copied as a whole: copying many megabytes
would hold the event loop for too long.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from tenantq.runtime.loop_slices import SLICE_BYTES, loop_slices

log = logging.getLogger("tenantq.shards")

HELLO: Final = 0  # number, nonce: the first frame of the calling shard
WELCOME: Final = 1  # requests are answered from now on
REQUEST: Final = 2  # id, kind, payload
REPLY: Final = 3  # id, payload, whether parts follow
FAILED: Final = 4  # id, error
STOP: Final = 5  # id, whether nobody waits for the reply any more
PULL: Final = 6  # id: the next part
PART: Final = 7  # id, bytes; none: that was the last one
CHALLENGE: Final = 8  # nonce, proof: the first frame of the called shard
PROOF: Final = 9  # proof
PING: Final = 10  # from the calling shard, every second
PONG: Final = 11  # whether the called shard is ready for work
BULK: Final = 12  # size, index, frame: the payload at this index of the frame follows

LENGTH_BYTES: Final = 4
UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 1_024
"""Of a peer that is not authenticated. Between shards the bounds on client requests apply."""
UNSENT_BYTES_MAX: Final = 128 << 20
"""Bytes that the peer has not accepted yet. Beyond it the connection is closed; requests are refused from half of it on."""
_decode: Final = msgspec.msgpack.Decoder().decode
_encode: Final = msgspec.msgpack.Encoder().encode

_PAYLOADS: Final = frozenset((bytes, bytearray))
LinkFrame = list[Any]


class PeerConnection(asyncio.Protocol):
    """One connection between two shards. ``receive`` is called with every frame, ``lost`` once at its end."""

    def __init__(
        self, receive: Callable[[PeerConnection, LinkFrame], None], lost: Callable[[PeerConnection], None]
    ) -> None:
        self._receive = receive
        self._lost = lost
        self._pending = bytearray()
        self._bulk: _Bulk | None = None  # a payload that is being received
        self._unwritten: deque[bytes | memoryview] = deque()  # a payload that is being sent, and what follows it
        self._unwritten_bytes = 0
        self._transport: asyncio.Transport | None = None
        self.binding = b""  # hash of the certificate that the called end has shown
        self.is_authenticated = False
        self.has_heard = False  # since the last heartbeat, which clears it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is open, and the certificate that its server has shown."""
        self._transport = cast("asyncio.Transport", transport)  # or uvloop's, which has the same methods
        tls = transport.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        self.binding = hashlib.sha256(shown).digest() if shown else b""

    def data_received(self, data: bytes) -> None:
        """Handle every complete frame."""
        self.has_heard = True
        pending = self._pending
        pending += data
        at = 0
        while len(pending) - at >= LENGTH_BYTES or self._bulk is not None:
            if self._bulk is not None:
                at = self._bulk.take(pending, at)
                if self._bulk.missing_bytes:
                    break
                frame, self._bulk = self._bulk.frame, None
                self._receive(self, frame)
                continue
            size = int.from_bytes(pending[at : at + LENGTH_BYTES])
            end = at + LENGTH_BYTES + size
            if size > UNAUTHENTICATED_FRAME_BYTES_MAX and not self.is_authenticated:
                self.close()
                return
            if len(pending) < end:
                break
            with memoryview(pending) as view, view[at + LENGTH_BYTES : end] as part:
                try:
                    decoded: Any = _decode(part)
                except msgspec.MsgspecError:
                    self.close()  # not a shard of this server
                    return
            at = end
            if not isinstance(decoded, list):
                self.close()
                return
            if decoded and decoded[0] == BULK and self.is_authenticated:
                self._bulk = _Bulk(*decoded[1:])
            else:
                self._receive(self, decoded)
        del pending[:at]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the reason changes nothing
        """Report the end of the connection."""
        self._transport = None
        self._unwritten.clear()
        self._unwritten_bytes = 0
        self._lost(self)

    def send(self, *frame: Any) -> None:
        """Send a frame, unless the connection is closed. A peer that accepts too little is disconnected."""
        if self._transport is not None and not self._transport.is_closing():
            if self._unsent_bytes > UNSENT_BYTES_MAX:
                log.warning("a peer stopped reading; closing the connection")
                self.close()
                return
            at = next((at for at, one in enumerate(frame) if type(one) in _PAYLOADS and len(one) > SLICE_BYTES), None)
            if at is None:
                self._write(_framed(frame))
                return
            payload = frame[at]
            self._write(_framed((BULK, len(payload), at, (*frame[:at], None, *frame[at + 1 :]))))
            view = memoryview(payload)
            for start in range(0, len(payload), SLICE_BYTES):
                self._write(view[start : start + SLICE_BYTES])

    def _write(self, data: bytes | memoryview) -> None:
        """Write now, or after what has not been written yet. Each slice of a payload has its turn of the loop."""
        assert self._transport is not None
        if not self._unwritten and type(data) is bytes:
            self._transport.write(data)
            return
        if not self._unwritten:
            loop_slices(asyncio.get_running_loop()).enter(self._write_next)
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)

    def _write_next(self) -> None:
        """Write up to the end of the next slice."""
        is_slice = False
        while self._unwritten and not is_slice and self._transport is not None:
            data = self._unwritten.popleft()
            self._unwritten_bytes -= len(data)
            is_slice = type(data) is memoryview
            self._transport.write(data)
        if self._unwritten:
            loop_slices(asyncio.get_running_loop()).enter(self._write_next)

    @property
    def is_full(self) -> bool:
        """Whether the peer accepts so little that no more requests should be sent."""
        return self._unsent_bytes > UNSENT_BYTES_MAX // 2

    @property
    def _unsent_bytes(self) -> int:
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + self._unwritten_bytes

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class _Bulk:
    """A payload that is being received, and the frame that it belongs to."""

    def __init__(self, size: int, index: int, frame: LinkFrame) -> None:
        self.frame = frame
        self.missing_bytes = size
        self._payload = bytearray()
        frame[index] = self._payload

    def take(self, data: bytearray, at: int) -> int:
        """Add what has arrived from ``at`` on, and return where the rest begins."""
        end = min(len(data), at + self.missing_bytes)
        with memoryview(data) as view, view[at:end] as part:
            self._payload += part
        self.missing_bytes -= end - at
        return end


def _framed(frame: tuple[Any, ...]) -> bytes:
    data = _encode(frame)
    return len(data).to_bytes(LENGTH_BYTES) + data
