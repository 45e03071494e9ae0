"""The listener: accepts connections, keeps their time and bounds, and ends them gracefully."""

from __future__ import annotations

import asyncio
import logging
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from tenantq.clock import Clock, SystemClock
from tenantq.gates.turns import Turns
from tenantq.http.connection import Connection
from tenantq.http.description import Description
from tenantq.http.figures import Figures
from tenantq.http.known_heads import KnownHeads
from tenantq.http.router import Router
from tenantq.http.routes import ROUTES
from tenantq.http.settings import HttpSettings, check_http
from tenantq.service.request_ids import RequestIds
from tenantq.tls import TlsContext, TlsFiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenantq.clock import Timer
    from tenantq.http.request import Request
    from tenantq.http.route import Route
    from tenantq.randomness import Randomness
    from tenantq.service import Service

log = logging.getLogger("tenantq.http")

TICK_MS: Final = 500
"""How often slow clients and changed certificates are looked for; time limits are kept to this precision."""

BACKLOG: Final = 1_024


class Listener:
    """Serves one service over HTTP, on any number of addresses. Made and used inside one event loop."""

    def __init__(
        self,
        service: Service,
        settings: HttpSettings | None = None,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        routes: Iterable[Route] = ROUTES,
        turns: Turns | None = None,
    ) -> None:
        self.service = service
        self.settings = check_http(settings or HttpSettings())
        self.clock = clock or SystemClock()
        self.loop = asyncio.get_running_loop()
        self.router = Router(routes)
        self.description = Description(self.router.routes)
        self.known_heads = KnownHeads()
        self.turns = turns or Turns(self.loop)  # in which requests of all transports are begun
        self.figures = Figures(self)
        self.port = 0  # of the address started last
        self.connections: set[Connection] = set()
        self.buffered_bytes = 0  # of request bodies
        self._unsent_bytes = 0  # of replies; about
        self.is_ready = True  # as far as the listener is concerned
        self.is_closing = False
        self.now_ms = self.clock.monotonic_ms()  # as of the last tick
        self.lines = b""  # headers of every reply
        self.next_request_id = RequestIds(randomness).next
        self._servers: list[asyncio.Server] = []
        self._tls: list[TlsContext] = []
        self._timer: Timer | None = None
        self._all_closed: asyncio.Future[None] | None = None
        self._second = -1
        self._renew_lines()

    # ---- opening and closing ----

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Accept connections on an address; port 0 takes any free one. Return the port. May be called again."""
        context = None
        if tls is not None:
            context = TlsContext(tls, self.figures, alpn="http/1.1")
            self._tls.append(context)
        server = await self.loop.create_server(
            lambda: Connection(self),
            host,
            port,
            ssl=context.context if context is not None else None,
            ssl_handshake_timeout=self.settings.head_timeout_ms / 1_000 if context is not None else None,
            backlog=BACKLOG,
        )
        self._servers.append(server)
        if self._timer is None:
            self._tick()
        self.port = server.sockets[0].getsockname()[1]
        return self.port

    def announce_closing(self) -> None:
        """Turn readiness off, so that balancers look elsewhere; everything else goes on."""
        self.is_ready = False

    def stop_accepting(self) -> None:
        """Take no new connections."""
        for server in self._servers:
            server.close()

    async def close(self, grace_ms: int = 30_000) -> None:
        """Finish what is under way and close, within ``grace_ms``; calling it again forces the end at once.

        Idle connections are closed, waiting polls are answered empty, and the last reply of each connection says so.
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

    def closed(self, connection: Connection) -> None:
        """Take note that a connection has ended."""
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections:
            _let_go(self._all_closed)

    def _abort_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    # ---- what connections ask ----

    def hold(self, request: Request, size: int) -> bool:
        """Count ``size`` more bytes as held for ``request``; False: there is no room for them."""
        if self.buffered_bytes + size > self.settings.buffered_bytes_max and not self._make_room(request, size):
            return False
        self.buffered_bytes += size
        request.held_bytes += size
        return True

    def _make_room(self, request: Request, size: int) -> bool:
        """Give up unfinished requests that hold more than this one would, the largest first.

        So nobody can keep everybody else out by sending large bodies almost to their end.
        """
        while self.buffered_bytes + size > self.settings.buffered_bytes_max:
            largest = max(self.connections, key=Connection.held_bytes, default=None)
            if largest is None or largest.held_bytes() <= request.held_bytes + size:
                return False
            largest.give_way()
        return True

    def release(self, request: Request) -> None:
        """Take back what was counted for ``request``."""
        self.buffered_bytes -= request.held_bytes
        request.held_bytes = 0

    def count_unsent(self, size: int) -> None:
        """Take note that a large reply waits to be sent; where that is too much in all, cut who takes least of it."""
        self._unsent_bytes += size
        if self._unsent_bytes <= self.settings.unsent_bytes_max:
            return
        waiting = {connection: connection.unsent_bytes() for connection in self.connections}
        self._unsent_bytes = sum(waiting.values())
        while self._unsent_bytes > self.settings.unsent_bytes_max:
            most = max(waiting, key=waiting.__getitem__)
            self._unsent_bytes -= waiting.pop(most)
            self.figures.cut_total["write"] += 1
            most.abort()

    # ---- time ----

    def _tick(self) -> None:
        self._timer = self.clock.call_later(TICK_MS, self._tick)
        self.now_ms = self.clock.monotonic_ms()
        self._renew_lines()
        unsent = 0
        for connection in list(self.connections):
            unsent += connection.check(self.now_ms)
        self._unsent_bytes = unsent
        for tls in self._tls:
            tls.reload_if_changed()

    def _renew_lines(self) -> None:
        second = self.clock.wall_ms() // 1_000
        if second == self._second:
            return
        self._second = second
        self.lines = b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
        if self.service.durability == "os":
            self.lines += b"Tenantq-Durability: os\r\n"


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
