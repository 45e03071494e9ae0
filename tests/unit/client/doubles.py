"""Test doubles for the client: a scripted transport, a clock without real waits, and a server that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from tenantq.client.http_connection import HttpReply
from tenantq.client.session import ClientSession
from tenantq.client.settings import Retries, Settings, Tls, parse
from tenantq.runtime.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tenantq.client.connection_pool import ApiRequest
    from tenantq.runtime.clock import Timer


TOKEN = "secret-token"  # noqa: S105  # of nobody


class InstantClock(ManualClock):
    """A clock on which every timer fires in the event loop's next turn and moves the time to its due time."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[int] = []

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Note the delay and let it pass."""
        self.pauses.append(delay_ms)
        timer = super().call_later(delay_ms, callback)
        asyncio.get_running_loop().call_soon(self.advance, delay_ms)
        return timer


class MidpointRandom:
    """Randomness that always returns the midpoint."""

    def random(self) -> float:
        """Return one half."""
        return 0.5

    def getrandbits(self, k: int, /) -> int:
        """Return the middle of ``k`` bits."""
        return 1 << (k - 1)


def make_settings(url: str = "http://127.0.0.1:1", token: str | None = TOKEN, **changes: Any) -> Settings:
    """Return settings with an instant clock and fixed randomness."""
    arguments: dict[str, Any] = {
        "timeout_ms": 10_000,
        "connect_timeout_ms": 5_000,
        "retries": Retries(count=3, base_ms=100, max_ms=1_000),
        "connections": 8,
        "coalesce": True,
        "tls": Tls(),
        "clock": InstantClock(),
        "randomness": MidpointRandom(),
    }
    chosen = {name: value for name, value in {**arguments, **changes}.items() if value is not None}
    return parse(url, token, **chosen)


class ScriptedTransport:
    """Answers requests from a script: each entry is a reply, an error to raise, or a function of the request."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.requests: list[ApiRequest[Any]] = []
        self.closed = False

    async def send(self, request: ApiRequest[Any]) -> HttpReply:
        """Follow the next entry of the script; the last one repeats."""
        self.requests.append(request)
        step = self.script[0] if len(self.script) == 1 else self.script.pop(0)
        if callable(step):
            step = step(request)
            if asyncio.iscoroutine(step):
                step = await step
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, HttpReply)
        return step

    async def close(self) -> None:
        """Take note."""
        self.closed = True


def reply(value: object = None, status: int = 200, **headers: str) -> HttpReply:
    """Return a reply with a JSON body."""
    return HttpReply(
        status, {name.replace("_", "-"): text for name, text in headers.items()}, msgspec.json.encode(value)
    )


def problem(code: str, status: int, detail: str = "no", **fields: object) -> HttpReply:
    """Return a problem document in the server's format."""
    body = {"type": f"urn:{code}", "title": code, "status": status, "detail": detail, "code": code, **fields}
    return reply(body, status)


def make_session(*script: Any, **changes: Any) -> tuple[ClientSession, ScriptedTransport]:
    """Return a session on a scripted transport."""
    transport = ScriptedTransport(*script)
    return ClientSession(make_settings(**changes), transport), transport


class FaultyServer:
    """A server on a real socket whose behaviour for each request is a function that may break anything."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.arrived = asyncio.Event()
        self.behave: list[Callable[[asyncio.StreamWriter], Any]] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen on any free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close every connection."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = next(
                    (
                        int(line.split(":")[1])
                        for line in head.splitlines()
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                self.bodies.append(await reader.readexactly(length))
                self.arrived.set()
                behave = self.behave[0] if len(self.behave) == 1 else self.behave.pop(0)
                result = behave(writer)
                if asyncio.iscoroutine(result):
                    await result
                if writer.transport.is_closing():
                    break
        writer.transport.abort()
        self._writers.discard(writer)


def respond(status: int = 200, body: bytes = b"{}", headers: str = "") -> Callable[[asyncio.StreamWriter], None]:
    """Return a behaviour: answer with a valid response."""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return lambda writer: writer.write(head.encode() + body)


def respond_raw(data: bytes) -> Callable[[asyncio.StreamWriter], None]:
    """Return a behaviour: write these bytes and leave the connection open."""
    return lambda writer: writer.write(data)


def respond_and_close(data: bytes) -> Callable[[asyncio.StreamWriter], Any]:
    """Return a behaviour: write these bytes, possibly none, and close."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    return behave


def hang(_: asyncio.StreamWriter) -> None:
    """Never answer, like a server that lost the request."""


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop turn until a condition holds that no event signals."""
    while not condition():  # noqa: ASYNC110  # see above
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def faulty_server() -> AsyncIterator[FaultyServer]:
    """Run a faulty server."""
    server = FaultyServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
