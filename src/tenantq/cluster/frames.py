"""What goes over a link between two shards: frames of msgpack, each behind its length."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("tenantq.shards")

HELLO: Final = 0  # number, nonce: the first frame of who calls
WELCOME: Final = 1  # from now on it is answered
ASK: Final = 2  # id, kind, payload
REPLY: Final = 3  # id, payload, whether parts follow
FAILED: Final = 4  # id, code, message, when to come back
STOP: Final = 5  # id, whether nobody waits for the answer any more
PULL: Final = 6  # id: the next part
PART: Final = 7  # id, bytes; none: that was the last one
CHALLENGE: Final = 8  # nonce, proof: the first frame of who is called
PROOF: Final = 9  # proof
PING: Final = 10  # from who calls: are you there?
PONG: Final = 11  # whether it is ready for work

LENGTH_BYTES: Final = 4
STRANGERS_FRAME_BYTES_MAX: Final = 1_024
"""Of who has not said who it is; among shards there is no bound but that on what each takes from its clients."""
UNSENT_BYTES_MAX: Final = 128 << 20
"""What the other end has not taken yet. Beyond it the connection is ended; new questions are refused from half of it on."""
_decode: Final = msgspec.msgpack.Decoder().decode
_encode: Final = msgspec.msgpack.Encoder().encode

Frame = list[Any]


class Wire(asyncio.Protocol):
    """One connection between two shards. ``take`` is called with every frame, ``lost`` once at its end."""

    def __init__(self, take: Callable[[Wire, Frame], None], lost: Callable[[Wire], None]) -> None:
        self._take = take
        self._lost = lost
        self._pending = bytearray()
        self._transport: asyncio.Transport | None = None
        self.is_known = False  # the other end has shown who it is
        self.has_heard = False  # something has come; whoever looks clears it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be open."""
        self._transport = cast("asyncio.Transport", transport)  # or uvloop's, which has the same methods

    def data_received(self, data: bytes) -> None:
        """Take every frame that has arrived wholly."""
        self.has_heard = True
        pending = self._pending
        pending += data
        at = 0
        while len(pending) - at >= LENGTH_BYTES:
            size = int.from_bytes(pending[at : at + LENGTH_BYTES])
            end = at + LENGTH_BYTES + size
            if size > STRANGERS_FRAME_BYTES_MAX and not self.is_known:
                self.close()
                return
            if len(pending) < end:
                break
            with memoryview(pending) as whole, whole[at + LENGTH_BYTES : end] as part:
                try:
                    frame: Any = _decode(part)
                except msgspec.MsgspecError:
                    self.close()  # nobody of this server's
                    return
            at = end
            if not isinstance(frame, list):
                self.close()
                return
            self._take(self, frame)
        del pending[:at]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the reason changes nothing
        """Tell that nothing more comes."""
        self._transport = None
        self._lost(self)

    def send(self, *frame: Any) -> None:
        """Send a frame; one that nobody can get any more is dropped. Who takes nothing of what was sent before is cut off."""
        if self._transport is not None and not self._transport.is_closing():
            if self._unsent_bytes > UNSENT_BYTES_MAX:
                log.warning("another shard does not take what it is sent; the connection to it is ended")
                self.close()
                return
            data = _encode(frame)
            self._transport.write(len(data).to_bytes(LENGTH_BYTES) + data)

    @property
    def is_full(self) -> bool:
        """Whether the other end takes less than it is sent, so that nothing more should be asked of it."""
        return self._unsent_bytes > UNSENT_BYTES_MAX // 2

    @property
    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()
