"""The listener for Cap'n Proto: the event loop of its library, and how much its connections may hold."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tenantq.gates.turns import Turns
from tenantq.rpc.connection import Connection
from tenantq.rpc.figures import Figures
from tenantq.rpc.kj_loop import kj_loop
from tenantq.rpc.sessions import Door
from tenantq.rpc.settings import RpcSettings, check_rpc
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.listener import Listening
from tenantq.service.request_ids import RequestIds

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from tenantq.rpc.passing import RpcPassing
    from tenantq.runtime.randomness import Randomness
    from tenantq.runtime.tls import TlsFiles
    from tenantq.service import Service


class RpcListener(Listening[Connection]):
    """Serves one service over Cap'n Proto, on one address. Made and used inside one event loop."""

    figures: Figures

    def __init__(
        self,
        service: Service,
        settings: RpcSettings | None = None,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.service = service
        self.durability = service.durability
        self.settings = check_rpc(settings or RpcSettings())
        super().__init__(clock or SystemClock(), self.settings.unsent_bytes_max)
        self.turns = turns or Turns(self.loop)
        self.figures = Figures(self)
        self.next_request_id = RequestIds(randomness).next
        self.new_door = Door
        self.buffered_bytes = 0  # of requests
        self._running = AsyncExitStack()
        self.passing: RpcPassing | None = None  # set where there are several shards

    # ---- opening and closing ----

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Accept connections on an address; port 0 takes any free one. Return the port."""
        await self._running.enter_async_context(kj_loop())
        try:
            return await self.listen(
                lambda: Connection(self), host, port, tls, handshake_ms=self.settings.login_timeout_ms
            )
        except BaseException:
            await self._running.aclose()
            raise

    async def start_on(self, sockets: Iterable[socket.socket], tls: TlsFiles | None = None) -> None:
        """Accept connections on sockets that listen already."""
        await self._running.enter_async_context(kj_loop())
        for sock in sockets:
            await self.listen(lambda: Connection(self), sock, None, tls, handshake_ms=self.settings.login_timeout_ms)

    async def close(self, grace_ms: int = 30_000) -> None:
        """Finish what is under way and close, within ``grace_ms``; calling it again forces the end at once."""
        await super().close(grace_ms)
        await self._running.aclose()

    # ---- what connections ask ----

    def make_room(self, asking: Connection, size: int) -> bool:
        """Tell whether ``size`` more bytes may be held; messages that are larger and not there yet give way.

        So nobody can keep everybody else out by sending large messages almost to their end.
        """
        while self.buffered_bytes + size > self.settings.buffered_bytes_max:
            largest = max(self.connections, key=Connection.unfinished_bytes, default=None)
            if largest is None or largest is asking or largest.unfinished_bytes() <= size:
                return False
            largest.give_way()
        return True
