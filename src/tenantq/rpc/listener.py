"""The listener: accepts connections, keeps their time and bounds, and ends them gracefully."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from tenantq.clock import Clock, SystemClock
from tenantq.gates.turns import Turns
from tenantq.rpc.connection import Connection
from tenantq.rpc.figures import Figures
from tenantq.rpc.kj_loop import kj_loop
from tenantq.rpc.sessions import Door
from tenantq.rpc.settings import RpcSettings, check_rpc
from tenantq.service.request_ids import RequestIds
from tenantq.tls import TlsContext, TlsFiles

if TYPE_CHECKING:
    from tenantq.clock import Timer
    from tenantq.randomness import Randomness
    from tenantq.service import Service

log = logging.getLogger("tenantq.rpc")

TICK_MS: Final = 500
"""How often slow clients and changed certificates are looked for; time limits are kept to this precision."""

BACKLOG: Final = 1_024


class RpcListener:
    """Serves one service over Cap'n Proto, on one address. Made and used inside one event loop."""

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
        self.clock = clock or SystemClock()
        self.loop = asyncio.get_running_loop()
        self.turns = turns or Turns(self.loop)
        self.figures = Figures(self)
        self.next_request_id = RequestIds(randomness).next
        self.new_door = Door
        self.port = 0
        self.connections: set[Connection] = set()
        self.buffered_bytes = 0  # of requests
        self._unsent_bytes = 0  # of replies; about
        self.is_closing = False
        self.now_ms = self.clock.monotonic_ms()  # as of the last tick
        self._server: asyncio.Server | None = None
        self._tls: TlsContext | None = None
        self._timer: Timer | None = None
        self._all_closed: asyncio.Future[None] | None = None
        self._running = AsyncExitStack()

    # ---- opening and closing ----

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Accept connections on an address; port 0 takes any free one. Return the port."""
        context = TlsContext(tls, self.figures) if tls is not None else None
        self._tls = context
        handshake_s = self.settings.login_timeout_ms / 1_000 if context is not None else None
        await self._running.enter_async_context(kj_loop())
        try:
            self._server = await self.loop.create_server(
                lambda: Connection(self),
                host,
                port,
                ssl=context.context if context is not None else None,
                ssl_handshake_timeout=handshake_s,
                backlog=BACKLOG,
            )
        except BaseException:
            await self._running.aclose()
            raise
        self._tick()
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def close(self, grace_ms: int = 30_000) -> None:
        """Finish what is under way and close, within ``grace_ms``; calling it again forces the end at once.

        Idle connections are closed, waiting polls are answered empty.
        """
        if self._server is not None:
            self._server.close()
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
        await self._running.aclose()

    def closed(self, connection: Connection) -> None:
        """Take note that a connection has ended."""
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections:
            _let_go(self._all_closed)

    def _abort_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()

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

    def count_unsent(self, size: int) -> None:
        """Take note that a large reply waits to be sent; where that is too much in all, cut who takes least of it."""
        self._unsent_bytes += size
        if self._unsent_bytes <= self.settings.unsent_bytes_max:
            return
        waiting = {connection: connection.unsent_bytes() for connection in self.connections}
        self._unsent_bytes = sum(waiting.values())
        while self._unsent_bytes > self.settings.unsent_bytes_max and waiting:
            most = max(waiting, key=waiting.__getitem__)
            self._unsent_bytes -= waiting.pop(most)
            self.figures.cut_total["write"] += 1
            most.abort()

    # ---- time ----

    def _tick(self) -> None:
        self._timer = self.clock.call_later(TICK_MS, self._tick)
        self.now_ms = self.clock.monotonic_ms()
        self._unsent_bytes = sum(connection.check(self.now_ms) for connection in list(self.connections))
        if self._tls is not None:
            self._tls.reload_if_changed()


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
