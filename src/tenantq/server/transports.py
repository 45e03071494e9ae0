"""The listeners of a server process: HTTP with Amazon SQS, and Cap'n Proto, all for one service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tenantq.cluster.addresses import open_rpc, opened, port_of
from tenantq.http.listener import HttpListener
from tenantq.http.routes import ROUTES
from tenantq.runtime.clock import sleep_ms
from tenantq.settings import ServerSettings
from tenantq.sqs import SqsEndpoint

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from tenantq.gates.turns import Turns
    from tenantq.rpc.listener import RpcListener
    from tenantq.runtime.clock import Clock
    from tenantq.service import Service
    from tenantq.sqs.cooldowns import Cooldowns


class Transports:
    """Opens the addresses of a server, and serves them."""

    def __init__(self, settings: ServerSettings, clock: Clock, rpc_default: str | None) -> None:
        """Prepare. ``rpc_default`` is used for Cap'n Proto if the settings name no address, unless it is in use."""
        self._settings = settings
        self._clock = clock
        self._rpc_default = rpc_default
        self.rpc_address: str | None = None  # once it is open
        self.port = 0
        self.rpc_port: int | None = None
        self._http_sockets: tuple[socket.socket, ...] = ()
        self._rpc_sockets: tuple[socket.socket, ...] = ()
        self.http: HttpListener | None = None
        self.rpc: RpcListener | None = None

    def use(self, http: Sequence[socket.socket], rpc: Sequence[socket.socket]) -> None:
        """Listen on sockets that are already open."""
        self._http_sockets, self._rpc_sockets = tuple(http), tuple(rpc)
        self.port = http[0].getsockname()[1]
        self.rpc_port = rpc[0].getsockname()[1] if rpc else None

    def open(self) -> None:
        """Open the addresses. Connections wait there until ``start``."""
        self._http_sockets = tuple(opened("http", self._settings.http))
        self.port = port_of(self._http_sockets)
        self.rpc_address, sockets = open_rpc(self._settings, self._rpc_default, opened)
        if sockets is not None:
            self._rpc_sockets = tuple(sockets)
            self.rpc_port = port_of(sockets)

    def prepare(self, service: Service, turns: Turns, purges: Cooldowns, deletions: Cooldowns) -> None:
        """Create the HTTP listener, without listening yet."""
        settings, routes = self._settings, ROUTES
        if settings.sqs.enabled:
            routes = (*ROUTES, *SqsEndpoint(service, self._clock, purges, deletions).routes())
        self.http = HttpListener(service, settings.listener, clock=self._clock, turns=turns, routes=routes)
        service.metrics.include(self.http.metrics)

    async def start(self, service: Service, turns: Turns) -> None:
        """Serve, Cap'n Proto first if its address is open."""
        assert self.http is not None
        if self._rpc_sockets:
            from tenantq.rpc.listener import RpcListener  # noqa: PLC0415  # needs pycapnp, which is an extra

            self.rpc = RpcListener(service, self._settings.rpc_listener, clock=self._clock, turns=turns)
            await self.rpc.start_on(self._rpc_sockets, self._settings.tls)
            service.metrics.include(self.rpc.metrics)
        await self.http.start_on(self._http_sockets, self._settings.tls)

    async def drain(self, grace_ms: int | None = None) -> None:
        """Announce the stop, then accept no more requests and finish those in flight. A second call forces their end.

        With ``grace_ms`` there is no announcement.
        """
        if grace_ms is None and self.http is not None and self.http.is_ready:
            self.http.announce_closing()
            if self._settings.notice_ms:
                await sleep_ms(self._clock, self._settings.notice_ms)
        grace_ms = self._settings.grace_ms if grace_ms is None else grace_ms
        listeners = [one for one in (self.http, self.rpc) if one is not None]
        await asyncio.gather(*(listener.close(grace_ms) for listener in listeners))

    def close(self) -> None:
        """Close the sockets of a start that failed; listeners have closed theirs."""
        for sock in (*self._http_sockets, *self._rpc_sockets):
            sock.close()
