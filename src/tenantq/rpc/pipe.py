"""The transport that the library uses instead of a socket. A connection behind it decides what is read and when.

pycapnp's stream asks little of a transport: to read or not to, to write, to close. It calls from inside C++, where no exception of
Python's may come through.
"""

import logging
from collections.abc import Callable
from typing import Any

import capnp

log = logging.getLogger("tenantq.rpc")


class Pipe:
    """The library's end of a connection. Bytes are handed over as it asks for them, and go out together."""

    __slots__ = ("_ended", "_on_end", "_on_want", "_on_write", "_protocol", "is_over", "stream", "wants")

    def __init__(
        self, on_want: Callable[[], None], on_write: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._on_want = on_want
        self._on_write = on_write
        self._on_end = on_end
        self._ended = False  # the library has closed its end
        self.is_over = False  # the connection has closed it
        self.wants = False  # the library waits for bytes
        self.stream: Any = None
        # The public constructor opens a socket; this one does not.
        self._protocol = capnp.AsyncIoStream._connect(self._connected)  # noqa: SLF001
        self._protocol.connection_made(self)

    def _connected(self, stream: Any) -> None:
        self.stream = stream

    # ---- what the connection asks ----

    def feed(self, data: memoryview) -> int:
        """Pass bytes to the library; return how many it took."""
        room = self._protocol.get_buffer(-1)
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        self._protocol.buffer_updated(taken)
        return taken

    def pause_writing(self) -> None:
        """Make the library hold back its writes."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Let the library write again."""
        if not self.is_over:
            self._protocol.resume_writing()

    def lose(self) -> None:
        """Tell the library that the client is gone."""
        if not self.is_over:
            self.is_over = True
            self.wants = False
            self._protocol.connection_lost("the connection is closed")

    # ---- what the library asks, as of an asyncio.Transport ----

    def pause_reading(self) -> None:
        """Stop reading for now."""
        self.wants = False

    def resume_reading(self) -> None:
        """Read again. Bytes that have arrived are passed on at once."""
        self.wants = True
        try:
            self._on_want()
        except Exception:
            log.exception("internal error while reading a connection")
            self._on_end()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._on_write(data)

    def is_closing(self) -> bool:
        """Return whether nothing more can be read or written."""
        return self.is_over or self._ended

    def can_write_eof(self) -> bool:
        """Return that the end of the stream can be written."""
        return True

    def write_eof(self) -> None:
        """Close once everything is sent: the protocol does not use half-closed connections."""
        self.close()

    def close(self) -> None:
        """Close once everything is sent."""
        if not self._ended:
            self._ended = True
            self._on_end()
