"""A client that sends arbitrary bytes and reads replies, for input that no proper client would send."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from tenantq.http import HttpListener
    from tenantq.http.connection import HttpConnection

PATIENCE_S = 20  # a test that waits this long has failed


class RawReply:
    """A parsed reply."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers  # names in lower case
        self.body = body

    def json(self) -> Any:
        """Return the body's value."""
        return json.loads(self.body)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """Connect."""
        name = "localhost" if tls is not None else None
        async with asyncio.timeout(PATIENCE_S):
            return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name))

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def reply(self, *, to_head: bool = False) -> RawReply:
        """Read one reply, using its Content-Length."""
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers: dict[str, str] = {}
            for line in filter(None, lines):
                name, _, value = line.partition(": ")
                assert name.lower() not in headers, f"{name} stands twice"
                headers[name.lower()] = value
            size = 0 if to_head else int(headers.get("content-length", 0))
            return RawReply(int(first.split()[1]), headers, await self.reader.readexactly(size))

    async def ask(self, data: bytes) -> RawReply:
        """Send and read one reply."""
        self.send(data)
        return await self.reply()

    async def rest(self) -> bytes:
        """Read until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    def reset(self) -> None:
        """Close the connection with a reset."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.writer.wait_closed()
        except OSError:
            pass


async def until_not(condition: Callable[[], object]) -> None:
    """Wait until ``condition`` no longer holds, for effects of the other end of a socket."""
    async with asyncio.timeout(PATIENCE_S):
        while condition():  # noqa: ASYNC110  # nobody announces it
            await asyncio.sleep(0.001)


def post(path: str, body: bytes | str, *headers: str) -> bytes:
    """Return the bytes of a POST with JSON."""
    body = body.encode() if isinstance(body, str) else body
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: test",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """Return the bytes of a GET."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: test", *headers]).encode() + b"\r\n\r\n"


ADD = post("/v1/queues/work/messages", '{"messages":[{"body":"x"}]}')
LONG_POLL = post("/v1/queues/work/poll", '{"wait_ms":60000}')


def connections_of(listener: HttpListener) -> set[HttpConnection]:
    """Return the open connections of a listener."""
    return cast("set[HttpConnection]", listener.context.connections)
