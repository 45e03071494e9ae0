"""The listener for HTTP: its routes, the headers of every reply, and how much its requests may hold."""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING

from tenantq.gates.turns import Turns
from tenantq.http.connection import Connection
from tenantq.http.description import Description
from tenantq.http.figures import Figures
from tenantq.http.known_heads import KnownHeads
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.http.router import Router
from tenantq.http.routes import ROUTES
from tenantq.http.settings import HttpSettings, check_http
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.listener import Listening
from tenantq.service.problems import no_room
from tenantq.service.request_ids import RequestIds

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from tenantq.http.request import Request
    from tenantq.http.route import Route
    from tenantq.runtime.randomness import Randomness
    from tenantq.runtime.tls import TlsFiles
    from tenantq.service import Service


class Listener(Listening[Connection]):
    """Serves one service over HTTP, on any number of addresses. Made and used inside one event loop."""

    figures: Figures

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
        super().__init__(clock or SystemClock(), self.settings.unsent_bytes_max)
        self.router = Router(routes)
        self.description = Description(tuple(one for one in self.router.routes if type(one) is not ProtocolRoute))
        self.known_heads = KnownHeads()
        self.turns = turns or Turns(self.loop)  # in which requests of all transports are begun
        self.figures = Figures(self)
        self.buffered_bytes = 0  # of request bodies
        self.is_ready = True  # as far as the listener is concerned
        self.lines = b""  # headers of every reply
        self.next_request_id = RequestIds(randomness).next
        self._second = -1
        self._renew_lines()

    # ---- opening and closing ----

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Accept connections on an address; port 0 takes any free one. Return the port. May be called again."""
        return await self.listen(
            self._new_connection, host, port, tls, handshake_ms=self.settings.head_timeout_ms, alpn="http/1.1"
        )

    async def start_on(self, sock: socket.socket, tls: TlsFiles | None = None) -> int:
        """Accept connections on a socket that listens already; return its port. May be called again."""
        return await self.listen(
            self._new_connection, sock, None, tls, handshake_ms=self.settings.head_timeout_ms, alpn="http/1.1"
        )

    def _new_connection(self) -> Connection:
        return Connection(self)

    def announce_closing(self) -> None:
        """Turn readiness off, so that balancers look elsewhere; everything else goes on."""
        self.is_ready = False

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

    def holder(self, request: Request) -> Callable[[int], None]:
        """Return what counts bytes as held for ``request``, and refuses by raising where there is no room."""

        def hold(size: int) -> None:
            if not self.hold(request, size):
                raise no_room()

        return hold

    def release(self, request: Request) -> None:
        """Take back what was counted for ``request``."""
        self.buffered_bytes -= request.held_bytes
        request.held_bytes = 0

    # ---- time ----

    def _tick(self) -> None:
        super()._tick()
        self._renew_lines()

    def _renew_lines(self) -> None:
        second = self.clock.wall_ms() // 1_000
        if second == self._second:
            return
        self._second = second
        self.lines = b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
        if self.service.durability == "os":
            self.lines += b"Tenantq-Durability: os\r\n"
