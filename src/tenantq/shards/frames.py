"""What goes over a link between two shards: frames of msgpack, each behind its length."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

HELLO: Final = 0  # secret, number: the first frame of who calls
WELCOME: Final = 1  # the first of who is called
ASK: Final = 2  # id, kind, payload
REPLY: Final = 3  # id, payload, whether parts follow
FAILED: Final = 4  # id, code, message, when to come back
STOP: Final = 5  # id, whether nobody waits for the answer any more
PULL: Final = 6  # id: the next part
PART: Final = 7  # id, bytes; none: that was the last one

LENGTH_BYTES: Final = 4
STRANGERS_FRAME_BYTES_MAX: Final = 1_024
"""Of who has not said who it is; among shards there is no bound but that on what each takes from its clients."""
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
        self.is_known = False  # the other end has said who it is

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be open."""
        self._transport = cast("asyncio.Transport", transport)  # or uvloop's, which has the same methods

    def data_received(self, data: bytes) -> None:
        """Take every frame that has arrived wholly."""
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
                    frame: Frame = _decode(part)
                except msgspec.MsgspecError:
                    self.close()  # nobody of this server's
                    return
            at = end
            self._take(self, frame)
        del pending[:at]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the reason changes nothing
        """Tell that nothing more comes."""
        self._transport = None
        self._lost(self)

    def send(self, *frame: Any) -> None:
        """Send a frame; one that nobody can get any more is dropped."""
        if self._transport is not None and not self._transport.is_closing():
            data = _encode(frame)
            self._transport.write(len(data).to_bytes(LENGTH_BYTES) + data)

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()
