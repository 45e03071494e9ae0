"""Frames between two shards: msgpack arrays, each preceded by its length."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

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

LENGTH_BYTES: Final = 4
UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 1_024
"""Of a peer that is not authenticated. Between shards the bounds on client requests apply."""
UNSENT_BYTES_MAX: Final = 128 << 20
"""Bytes that the peer has not accepted yet. Beyond it the connection is closed; requests are refused from half of it on."""
_decode: Final = msgspec.msgpack.Decoder().decode
_encode: Final = msgspec.msgpack.Encoder().encode

Frame = list[Any]


class PeerConnection(asyncio.Protocol):
    """One connection between two shards. ``receive`` is called with every frame, ``lost`` once at its end."""

    def __init__(
        self, receive: Callable[[PeerConnection, Frame], None], lost: Callable[[PeerConnection], None]
    ) -> None:
        self._receive = receive
        self._lost = lost
        self._pending = bytearray()
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
        while len(pending) - at >= LENGTH_BYTES:
            size = int.from_bytes(pending[at : at + LENGTH_BYTES])
            end = at + LENGTH_BYTES + size
            if size > UNAUTHENTICATED_FRAME_BYTES_MAX and not self.is_authenticated:
                self.close()
                return
            if len(pending) < end:
                break
            with memoryview(pending) as whole, whole[at + LENGTH_BYTES : end] as part:
                try:
                    frame: Any = _decode(part)
                except msgspec.MsgspecError:
                    self.close()  # not a shard of this server
                    return
            at = end
            if not isinstance(frame, list):
                self.close()
                return
            self._receive(self, frame)
        del pending[:at]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the reason changes nothing
        """Report the end of the connection."""
        self._transport = None
        self._lost(self)

    def send(self, *frame: Any) -> None:
        """Send a frame, unless the connection is closed. A peer that accepts too little is disconnected."""
        if self._transport is not None and not self._transport.is_closing():
            if self._unsent_bytes > UNSENT_BYTES_MAX:
                log.warning("another shard does not take what it is sent; the connection to it is ended")
                self.close()
                return
            data = _encode(frame)
            self._transport.write(len(data).to_bytes(LENGTH_BYTES) + data)

    @property
    def is_full(self) -> bool:
        """Whether the peer accepts so little that no more requests should be sent."""
        return self._unsent_bytes > UNSENT_BYTES_MAX // 2

    @property
    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
