"""The listener for Cap'n Proto."""

from tenantq.domain.validation import validated
from tenantq.gates.turns import Turns
from tenantq.rpc.connection import RpcConnection
from tenantq.rpc.context import RpcContext
from tenantq.rpc.kj_loop import kj_loop
from tenantq.rpc.sessions import Bootstrap
from tenantq.rpc.settings import RpcSettings
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.listener import Listener
from tenantq.runtime.randomness import Randomness
from tenantq.service.service import Service


class RpcListener(Listener[RpcContext]):
    """Serves one service over Cap'n Proto. Created and used inside one event loop."""

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
        context = RpcContext(service, settings, clock or SystemClock(), randomness=randomness, turns=turns)
        super().__init__(context, lambda: RpcConnection(context, Bootstrap), handshake_ms=settings.login_timeout_ms)
        self._has_loop = False

    async def _prepare(self) -> None:
        """Run the event loop of the Cap'n Proto library for as long as the listener is open."""
        if not self._has_loop:
            self._has_loop = True
            await self._resources.enter_async_context(kj_loop())
