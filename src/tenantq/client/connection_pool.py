"""A bounded pool of keep-alive connections to one server."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable  # msgspec reads the fields' types
from typing import Any, Final, Generic, TypeVar

import msgspec

from tenantq.client.http_connection import ClientConnection, HttpReply
from tenantq.client.settings import Settings
from tenantq.errors import Closed, ConnectionFailed, TimedOut

R = TypeVar("R")

IDLE_MS_MAX: Final = 20_000
"""Idle connections are closed after this, before servers and proxies usually do."""


class ApiRequest(msgspec.Struct, Generic[R], frozen=True):
    """One call of the HTTP API."""

    method: str
    target: str  # path and query
    decode: Callable[[bytes], R]
    body: bytes | None = None
    repeatable: bool = True  # safe to send again after the reply was lost
    wait_ms: int = 0  # how long the server may hold the request on purpose
    answer_ms: int | None = None  # timeout for the reply, if shorter than the client's
    patient: bool = True  # waits and retries when a limit refuses the request
    gzip: bool = False
    traceparent: str | None = None  # empty: no trace; None: that of the current span
    stop: asyncio.Future[None] | None = None  # resolved when no caller waits for the reply any longer
    sink: Callable[[bytes], None] | None = None  # receives the body of a success in chunks, instead of ``decode``
    shorten: Callable[[int], ApiRequest[R]] | None = None  # returns the same call with less time to wait, for a retry


class ConnectionPool:
    """Connections of one event loop. Requests wait for a free one, first come, first served.

    A quarter of the connections is reserved for requests that do not wait at the server, so that long polls never block an ack.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clock = settings.clock
        self._idle: list[ClientConnection] = []
        self._open: set[ClientConnection] = set()
        self._in_use = 0  # busy connections, and those being opened
        self._in_use_waiting = 0  # of these, for requests that wait at the server
        self._lines: tuple[deque[asyncio.Future[None]], deque[asyncio.Future[None]]] = (deque(), deque())
        self._closed = False
        self._waits_max = max(1, settings.connections - max(1, settings.connections // 4))
        self._ssl = settings.tls.build() if settings.secure else None
        port = "" if settings.port == (443 if settings.secure else 80) else f":{settings.port}"
        self._head = f"Host: {settings.origin.partition('://')[2]}{port}\r\n"
        self._head += f"User-Agent: {settings.user_agent}\r\nAccept: application/json, application/problem+json\r\n"
        if settings.token is not None:
            self._head += f"Authorization: Bearer {settings.token}\r\n"

    async def send(self, request: ApiRequest[Any]) -> HttpReply:
        """Return the reply to one request. Raises BadAnswer, Closed, ConnectionFailed or TimedOut."""
        connection = await self._take(request)
        try:
            return await connection.exchange(
                self._written(request), self._timeout_ms(request), request.stop, request.sink
            )
        finally:
            self._check_in(connection, request)

    async def close(self) -> None:
        """Close all connections. Requests that wait for one get Closed."""
        self._closed = True
        for connection in list(self._open):
            connection.close()
        self._idle.clear()
        for line in self._lines:
            for turn in line:
                if not turn.done():
                    turn.set_exception(Closed("the client was closed"))
            line.clear()
        await asyncio.sleep(0)  # the transports close in the next turn

    def _timeout_ms(self, request: ApiRequest[Any]) -> int:
        limit_ms = self._settings.timeout_ms
        return request.wait_ms + (limit_ms if request.answer_ms is None else min(limit_ms, request.answer_ms))

    def _written(self, request: ApiRequest[Any]) -> bytes:
        head = f"{request.method} {self._settings.prefix}{request.target} HTTP/1.1\r\n{self._head}"
        if request.gzip:
            head += "Accept-Encoding: gzip\r\n"
        if request.traceparent:
            head += f"traceparent: {request.traceparent}\r\n"
        if request.body is None:
            if request.method not in ("GET", "HEAD"):
                head += "Content-Length: 0\r\n"
            return f"{head}\r\n".encode("latin-1")
        head += f"Content-Type: application/json\r\nContent-Length: {len(request.body)}\r\n\r\n"
        return head.encode("latin-1") + request.body

    # ---- checkout ----

    async def _take(self, request: ApiRequest[Any]) -> ClientConnection:
        if self._closed:
            raise Closed("the client is closed")
        await self._wait_for_turn(request)
        try:
            while self._idle and request.repeatable:  # the server may be closing an idle connection
                connection = self._idle.pop()
                if connection.usable and self._clock.monotonic_ms() - connection.idle_since < IDLE_MS_MAX:
                    return connection
                connection.close()
            if self._idle:
                self._idle.pop(0).close()  # replaced by the new one, so the limit holds
            return await self._connect()
        except BaseException:
            self._leave(request.wait_ms > 0)
            raise

    async def _wait_for_turn(self, request: ApiRequest[Any]) -> None:
        """Wait until the request may use a connection."""
        line = self._lines[request.wait_ms > 0]
        if not line and self._enter(request.wait_ms > 0):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        timer = self._clock.call_later(self._timeout_ms(request), lambda: _time_out(turn))
        try:
            await turn
        except BaseException:
            if turn in line:
                line.remove(turn)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(request.wait_ms > 0)  # it had its turn and was cancelled
            raise
        finally:
            timer.cancel()

    def _enter(self, waits: bool) -> bool:  # noqa: FBT001  # it selects the queue
        """Count a connection as busy if the limits allow."""
        if self._in_use >= self._settings.connections or (waits and self._in_use_waiting >= self._waits_max):
            return False
        self._in_use += 1
        self._in_use_waiting += waits
        return True

    def _leave(self, waits: bool) -> None:  # noqa: FBT001  # it selects the queue
        """Release a connection and wake the next request; those that do not wait at the server go first."""
        self._in_use -= 1
        self._in_use_waiting -= waits
        for next_waits in (False, True):
            line = self._lines[next_waits]
            while line:
                turn = line[0]
                if turn.done():
                    line.popleft()
                elif self._enter(next_waits):
                    line.popleft().set_result(None)
                else:
                    break

    def _check_in(self, connection: ClientConnection, request: ApiRequest[Any]) -> None:
        if connection.usable and not self._closed:
            connection.idle_since = self._clock.monotonic_ms()
            self._idle.append(connection)
        else:
            connection.close()
        self._leave(request.wait_ms > 0)

    def _lost(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    # ---- connecting ----

    async def _connect(self) -> ClientConnection:
        settings = self._settings
        where = f"{settings.host}:{settings.port}"
        try:
            async with asyncio.timeout(settings.connect_timeout_ms / 1_000):
                connection = await self._open_one()
        except TimeoutError as error:
            raise TimedOut(f"cannot connect to {where} within {settings.connect_timeout_ms} ms") from error
        except ssl.SSLCertVerificationError as error:
            raise ConnectionFailed(f"cannot verify the certificate of {where}: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise ConnectionFailed(f"TLS handshake with {where} failed: {error.reason or error}") from error
        except OSError as error:
            raise ConnectionFailed(f"cannot connect to {where}: {_reason(error)}") from error
        if self._closed:
            connection.close()
            raise Closed("the client was closed")
        self._open.add(connection)
        return connection

    async def _open_one(self) -> ClientConnection:
        def make() -> ClientConnection:
            return ClientConnection(self._clock, self._lost)

        settings = self._settings
        if settings.connect is not None:
            connection = await settings.connect(make)
            assert isinstance(connection, ClientConnection)
            return connection
        _, opened = await asyncio.get_running_loop().create_connection(
            make,
            settings.host,
            settings.port,
            ssl=self._ssl,
            server_hostname=settings.host if self._ssl is not None else None,
        )
        return opened


def _reason(error: OSError) -> str:
    """Return the system's text for an error; asyncio's own text repeats the address."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or str(error)


def _time_out(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimedOut("no connection became free in time. Increase connections."))
