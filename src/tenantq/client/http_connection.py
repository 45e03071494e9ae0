"""One HTTP/1.1 connection: one request at a time, with limits on size and time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, cast

import httptools
import msgspec

from tenantq.errors import BadAnswer, ConnectionFailed, TenantqError, TimedOut
from tenantq.runtime.clock import Clock

REPLY_BYTES_MAX: Final = 64 << 20
HEADER_BYTES_MAX: Final = 64 << 10
STOP_MS: Final = 1_000
"""How long a server may take to notice the end of the stream."""
_WANTED_HEADERS: Final = frozenset({"retry-after", "content-encoding", "tenantq-shard"})


class HttpReply(msgspec.Struct, frozen=True):
    """The server's reply."""

    status: int
    headers: dict[str, str]  # the needed ones, names in lower case
    body: bytes


class ClientConnection(asyncio.Protocol):
    """A connection that is idle or waits for one reply. Any error closes it."""

    __slots__ = ("_body", "_clock", "_header_bytes", "_headers", "_on_lost", "_parser", "_reply", "_sink", "_size", "_transport",
                 "idle_since", "usable", "used")  # fmt: skip

    def __init__(self, clock: Clock, on_lost: Callable[[ClientConnection], None]) -> None:
        self._clock = clock
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply: asyncio.Future[HttpReply] | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._sink: Callable[[bytes], None] | None = None
        self._size = 0
        self._header_bytes = 0
        self.usable = True
        self.used = 0  # replies read so far
        self.idle_since = 0

    async def exchange(
        self,
        request: bytes,
        timeout_ms: int,
        stop: asyncio.Future[None] | None = None,
        sink: Callable[[bytes], None] | None = None,
    ) -> HttpReply:
        """Send a request and return its reply. Raises BadAnswer, ConnectionFailed or TimedOut and closes the connection.

        ``sink`` receives the body of a success in chunks, without a size limit; its errors are raised here.

        When ``stop`` is resolved, the client ends the stream. The server then stops working on the request and closes the
        connection, or has answered already.
        """
        transport = self._transport
        if transport is None or not self.usable or self._reply is not None:
            raise ConnectionFailed("the connection is closed")
        reply: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()
        self._reply, self._sink = reply, sink
        timer = self._clock.call_later(timeout_ms, self._time_out)
        transport.write(request)
        if stop is not None:
            stop.add_done_callback(self._end_stream)
        try:
            return await reply
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
            self._reply = self._sink = None
            if stop is not None:
                stop.remove_done_callback(self._end_stream)

    def _end_stream(self, _: object) -> None:
        """End the stream, so that a waiting server stops. Close the connection if the transport cannot do that."""
        self.usable = False
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
            self._clock.call_later(STOP_MS, self.close)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection now."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _time_out(self) -> None:
        self._fail(TimedOut())

    def _fail(self, error: TenantqError) -> None:
        self.close()
        if self._reply is not None and not self._reply.done():
            error.maybe_done = True
            self._reply.set_exception(error)

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse a part of the reply. Unexpected bytes close the connection."""
        if self._reply is None or self._reply.done():
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(BadAnswer("the server requests a protocol other than HTTP/1.1. Check the address."))
        except httptools.HttpParserError:
            self._fail(BadAnswer("the reply is not HTTP/1.1. Check the address."))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the waiting request and notify the pool."""
        self.usable = False
        why = f": {error}" if error is not None and str(error) else ""
        self._fail(ConnectionFailed(f"the connection was lost before the reply arrived{why}"))
        self._on_lost(self)

    # ---- httptools ----

    def on_message_begin(self) -> None:
        """Reset the state. A second reply to one request closes the connection."""
        if self._reply is None or self._reply.done():
            self.close()
        self._headers = {}
        self._body = []
        self._size = self._header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the needed headers."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES_MAX:
            self._fail(
                BadAnswer(f"the reply headers are too large (limit {HEADER_BYTES_MAX} bytes). Check the address.")
            )
            return
        lower = name.decode("latin-1").lower()
        if lower in _WANTED_HEADERS:
            self._headers[lower] = value.decode("latin-1").strip().lower()

    def on_body(self, piece: bytes) -> None:
        """Collect a chunk of the body, within the limit, or pass it to the sink."""
        if self._sink is not None and self._parser.get_status_code() == HTTPStatus.OK:
            self._write_to_sink(piece)
            return
        self._size += len(piece)
        if self._size > REPLY_BYTES_MAX:
            self._fail(_too_large())
            return
        self._body.append(piece)

    def _write_to_sink(self, piece: bytes) -> None:
        assert self._sink is not None
        try:
            self._sink(piece)
        except Exception as error:  # noqa: BLE001  # any error of the sink is raised to the caller
            self.close()
            if self._reply is not None and not self._reply.done():
                self._reply.set_exception(error)

    def on_message_complete(self) -> None:
        """Deliver the reply."""
        status = self._parser.get_status_code()
        if status < 200 or self._reply is None or self._reply.done():
            return  # an interim reply, or a late one
        if not self._parser.should_keep_alive():
            self.usable = False
        self.used += 1
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        if self._headers.get("content-encoding") == "gzip":
            try:
                body = _unzip(body)
            except OverflowError:
                self._fail(_too_large())
                return
            except (zlib.error, ValueError):
                self._fail(BadAnswer("cannot decompress the reply. Check the proxies in front of the server."))
                return
        self._reply.set_result(HttpReply(status, self._headers, body))


def _too_large() -> BadAnswer:
    return BadAnswer(
        f"the reply is too large (limit {REPLY_BYTES_MAX} bytes). Use a smaller max or limit. "
        "Messages leased by a poll return when their leases expire."
    )


def _unzip(body: bytes) -> bytes:
    """Return the content of a gzip body. Raises OverflowError beyond the limit, ValueError if it is truncated."""
    unzip = zlib.decompressobj(wbits=31)
    plain = unzip.decompress(body, REPLY_BYTES_MAX)
    if unzip.unconsumed_tail:
        raise OverflowError
    if not unzip.eof:
        raise ValueError("truncated")
    return plain
