"""The HTTP listener: its routes, the headers of every reply, and the memory that its requests may use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from typing import Any

from prometheus_client.core import Metric

from tenantq.domain.validation import validated
from tenantq.errors import TenantqError
from tenantq.gates.turns import Turns
from tenantq.http.connection import HttpConnection
from tenantq.http.description import Description
from tenantq.http.large_bodies import LargeBodies
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.http.request import Request
from tenantq.http.request_head import HeadCache
from tenantq.http.route import Route
from tenantq.http.router import Router
from tenantq.http.routes import ROUTES
from tenantq.http.settings import HttpSettings
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.listener import Listener, ListenerMetrics
from tenantq.runtime.randomness import Randomness
from tenantq.service.problems import no_room
from tenantq.service.request_ids import RequestIds
from tenantq.service.residency import CONTENT_ACTIONS
from tenantq.service.service import Service


class HttpMetrics(ListenerMetrics):
    """Counters since the listener was created."""

    protocol = "HTTP"
    prefix = "tenantq_http"
    timeouts = ("head", "body", "write", "idle")

    def __init__(self, listener: Listener[Any, Any]) -> None:
        super().__init__(listener)
        self.replies_total: dict[int, int] = {}  # by status

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from super().collect()
        yield self._counter_by("status", "replies", "replies by status.", self.replies_total)


class HttpListener(Listener[HttpConnection, HttpSettings]):
    """Serves one service over HTTP, on any number of addresses. Created and used inside one event loop."""

    alpn = "http/1.1"
    metrics: HttpMetrics

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
        settings = validated(settings or HttpSettings(), "listener.")
        super().__init__(settings, clock or SystemClock(), HttpMetrics(self), handshake_ms=settings.head_timeout_ms)
        self.service = service
        self.router = Router(routes)
        self.description = Description(tuple(one for one in self.router.routes if type(one) is not ProtocolRoute))
        self.heads = HeadCache()
        self.large_bodies = LargeBodies(settings.processed_bytes_max)
        self.turns = turns or Turns(self.loop)  # in which requests of all transports start
        self.is_ready = True  # the listener's part of readiness
        self.lines = b""  # headers of every reply
        self.next_request_id = RequestIds(randomness).next
        self._second = -1
        self._renew_lines()

    def new_connection(self) -> HttpConnection:
        """Return a new connection."""
        return HttpConnection(self)

    def announce_closing(self) -> None:
        """Report "closing" in readiness, so that load balancers stop sending; everything else continues."""
        self.is_ready = False

    # ---- what connections ask ----

    def early_refusal(self, request: Request) -> TenantqError | None:
        """Return the error for a tenant that does not allow the region of this server or shard, before the body is read."""
        admission, route = self.service.admission, request.route
        if not admission.residency.misplaced or route is None or route.action not in CONTENT_ACTIONS:
            return None
        try:
            admission.check_residency_early(request.call, request.tenant, route.action, request.queue or None)
        except TenantqError as refusal:
            return refusal
        return None

    def hold(self, request: Request, size: int) -> bool:
        """Count ``size`` more bytes as held for ``request``; False if the limit is reached."""
        if self.buffered_bytes + size > self.settings.buffered_bytes_max and not self.make_room(
            request.call.connection, size, request.held_bytes
        ):
            return False
        self.buffered_bytes += size
        request.held_bytes += size
        return True

    def holder(self, request: Request) -> Callable[[int], None]:
        """Return a function that counts bytes as held for ``request``, and raises if the limit is reached."""

        def hold(size: int) -> None:
            if not self.hold(request, size):
                raise no_room()

        return hold

    def release(self, request: Request) -> None:
        """Release the bytes counted for ``request``."""
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
        if self.service.status.durability == "os":
            self.lines += b"Tenantq-Durability: os\r\n"
