"""The HTTP listener: accepts connections, and serves its routes on them."""

from __future__ import annotations

from collections.abc import Iterable

from tenantq.domain.validation import validated
from tenantq.gates.turns import Turns
from tenantq.http.connection import HttpConnection
from tenantq.http.context import HttpContext
from tenantq.http.description import Description
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.http.route import Route
from tenantq.http.router import Router
from tenantq.http.routes import ROUTES
from tenantq.http.settings import HttpSettings
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.listener import Listener
from tenantq.runtime.randomness import Randomness
from tenantq.service.service import Service


class HttpListener(Listener[HttpContext]):
    """Serves one service over HTTP, on any number of addresses. Created and used inside one event loop."""

    alpn = "http/1.1"

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
        router = Router(routes)
        context = HttpContext(
            service,
            settings,
            clock or SystemClock(),
            router=router,
            description=Description(tuple(one for one in router.routes if type(one) is not ProtocolRoute)),
            randomness=randomness,
            turns=turns,
        )
        super().__init__(context, lambda: HttpConnection(context), handshake_ms=settings.head_timeout_ms)

    def announce_closing(self) -> None:
        """Report "closing" in readiness, so that load balancers stop sending; everything else continues."""
        self.context.is_ready = False
