"""The listener for Cap'n Proto."""

from __future__ import annotations

from tenantq.domain.validation import validated
from tenantq.gates.turns import Turns
from tenantq.rpc.connection import RpcConnection
from tenantq.rpc.kj_loop import kj_loop
from tenantq.rpc.metrics import RpcMetrics
from tenantq.rpc.sessions import Bootstrap
from tenantq.rpc.settings import RpcSettings
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.listener import Listener
from tenantq.runtime.randomness import Randomness
from tenantq.service import Service
from tenantq.service.request_ids import RequestIds


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
