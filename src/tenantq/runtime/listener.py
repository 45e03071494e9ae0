"""What every listener does, whatever it speaks: accepts connections, keeps their time and bounds, and ends them gracefully."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from tenantq.runtime.tls import LoadCounts, TlsContext, TlsFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.runtime.clock import Clock, Timer

TICK_MS: Final = 500
"""How often slow clients and changed certificates are looked for; time limits are kept to this precision."""

BACKLOG: Final = 1_024


class OpenConnection(Protocol):
    """What a listener asks of its connections."""

    def drain(self) -> None:
        """Finish what is under way, then close."""

    def abort(self) -> None:
        """Close at once."""

    def check(self, now_ms: int) -> int:
        """Cut who is too slow; return how many bytes of replies wait to be sent."""

    def unsent_bytes(self) -> int:
        """Return how many bytes of replies wait to be sent."""


class ListenerFigures(LoadCounts, Protocol):
    """What a listener counts."""

    cut_total: dict[str, int]


C = TypeVar("C", bound=OpenConnection)


class Listening(Generic[C]):
    """The life of a listener's connections. Made and used inside one event loop."""

    figures: ListenerFigures

    def __init__(self, clock: Clock, unsent_bytes_max: int) -> None:
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.port = 0  # of the address started last
        self.connections: set[C] = set()
        self.is_closing = False
        self.now_ms = clock.monotonic_ms()  # as of the last tick
        self._unsent_bytes_max = unsent_bytes_max
        self._unsent_bytes = 0  # of replies; about
        self._servers: list[asyncio.Server] = []
        self._tls: list[TlsContext] = []
        self._timer: Timer | None = None
        self._all_closed: asyncio.Future[None] | None = None

    # ---- opening and closing ----

    async def listen(
        self,
        accept: Callable[[], asyncio.Protocol],
        host: str | socket.socket,
        port: int | None,
        tls: TlsFiles | None,
        *,
        handshake_ms: int,
        alpn: str | None = None,
    ) -> int:
        """Accept connections on an address; port 0 takes any free one. Return the port. May be called again.

        In place of a host and a port there can be a socket that listens already.
        """
        context = None
        if tls is not None:
            context = TlsContext(tls, self.figures, alpn=alpn)
            self._tls.append(context)
        where = {"host": host, "port": port} if isinstance(host, str) else {"sock": host}
        server = await self.loop.create_server(
            accept,
            **where,
            ssl=context.context if context is not None else None,
            ssl_handshake_timeout=handshake_ms / 1_000 if context is not None else None,
            backlog=BACKLOG,
        )
        self._servers.append(server)
        if self._timer is None:
            self._tick()
        self.port = server.sockets[0].getsockname()[1]
        return self.port

    def stop_accepting(self) -> None:
        """Take no new connections."""
        for server in self._servers:
            server.close()

    async def close(self, grace_ms: int = 30_000) -> None:
        """Finish what is under way and close, within ``grace_ms``; calling it again forces the end at once.

        Idle connections are closed, and waiting polls are answered empty.
        """
        self.stop_accepting()
        if self.is_closing:
            self._abort_all()
        else:
            self.is_closing = True
            self._all_closed = self.loop.create_future()
            for connection in list(self.connections):
                connection.drain()
        assert self._all_closed is not None
        if not self.connections:
            _let_go(self._all_closed)
        timer = self.clock.call_later(grace_ms, self._abort_all)
        try:
            await asyncio.shield(self._all_closed)
        finally:
            timer.cancel()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def closed(self, connection: C) -> None:
        """Take note that a connection has ended."""
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections:
            _let_go(self._all_closed)

    def _abort_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    # ---- what connections ask ----

    def count_unsent(self, size: int) -> None:
        """Take note that a large reply waits to be sent; where that is too much in all, cut who takes least of it."""
        self._unsent_bytes += size
        if self._unsent_bytes <= self._unsent_bytes_max:
            return
        waiting = {connection: connection.unsent_bytes() for connection in self.connections}
        self._unsent_bytes = sum(waiting.values())
        while self._unsent_bytes > self._unsent_bytes_max and waiting:
            most = max(waiting, key=waiting.__getitem__)
            self._unsent_bytes -= waiting.pop(most)
            self.figures.cut_total["write"] += 1
            most.abort()

    # ---- time ----

    def _tick(self) -> None:
        self._timer = self.clock.call_later(TICK_MS, self._tick)
        self.now_ms = self.clock.monotonic_ms()
        self._unsent_bytes = sum(connection.check(self.now_ms) for connection in list(self.connections))
        for tls in self._tls:
            tls.reload_if_changed()


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on every address that a host stands for; port 0 takes a free one. OSError.

    A family that this machine does not have, such as IPv6 behind ``localhost``, is left out where another one is there.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, place in dict.fromkeys((family, place) for family, _, _, _, place in found):
            try:
                opened.append(open_socket(family, place))
            except OSError as error:
                if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                    raise
                missing = error
            if port == 0 and opened:
                break  # another one would be another port
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    if missing is not None and not opened:
        raise missing
    return opened


def open_socket(
    family: int, place: tuple[object, ...], *, is_shared: bool = False, listens: bool = True
) -> socket.socket:
    """Return a socket at one address. Those that are shared stand beside each other there; one that does not listen keeps the address. OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(place)
        if listens:
            sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
