"""The listener for Cap'n Proto."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from tenantq.domain.validation import validated
from tenantq.gates.turns import Turns
from tenantq.rpc.connection import RpcConnection
from tenantq.rpc.kj_loop import kj_loop
from tenantq.rpc.queueber import QueueberLeases
from tenantq.rpc.sessions import Bootstrap
from tenantq.rpc.settings import RpcSettings
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.listener import Listener, ListenerMetrics
from tenantq.runtime.randomness import Randomness
from tenantq.service.request_ids import RequestIds
from tenantq.service.service import Service


class RpcMetrics(ListenerMetrics):
    """Counters since the listener was created."""

    protocol = "Cap'n Proto"
    prefix = "tenantq_rpc"
    timeouts = ("login", "call", "message", "write")

    def __init__(self, listener: Listener[Any, Any]) -> None:
        super().__init__(listener)
        self.calls_total = 0
        self.malformed_total = 0
        self.errors_total: dict[str, int] = {}  # by code

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from super().collect()
        yield self._counter("calls", "calls.", self.calls_total)
        yield self._counter("malformed", "connections closed for what they sent.", self.malformed_total)
        yield self._counter_by("code", "errors", "calls answered by an error.", self.errors_total)


class RpcListener(Listener[RpcConnection, RpcSettings]):
    """Serves one service over Cap'n Proto. Created and used inside one event loop."""

    metrics: RpcMetrics

    def __init__(
        self,
        service: Service,
        settings: RpcSettings | None = None,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        turns: Turns | None = None,
    ) -> None:
        settings = validated(settings or RpcSettings(), "rpc_listener.")
        super().__init__(settings, clock or SystemClock(), RpcMetrics(self), handshake_ms=settings.login_timeout_ms)
        self.service = service
        self.durability = service.status.durability
        self.turns = turns or Turns(self.loop)
        self.next_request_id = RequestIds(randomness).next
        self.queueber_leases = QueueberLeases(self.clock, randomness)
        self.new_bootstrap = Bootstrap
        self._has_loop = False

    def new_connection(self) -> RpcConnection:
        """Return a new connection."""
        return RpcConnection(self)

    async def _prepare(self) -> None:
        """Run the event loop of the Cap'n Proto library for as long as the listener is open."""
        if not self._has_loop:
            self._has_loop = True
            await self._resources.enter_async_context(kj_loop())
