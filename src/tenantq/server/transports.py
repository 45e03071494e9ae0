"""The listeners of a server process: HTTP with Amazon SQS, and Cap'n Proto, all for one service."""

from __future__ import annotations

import asyncio
import gc
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tenantq.cluster.shard_spec import Sockets
from tenantq.errors import Invalid
from tenantq.gates.turns import Turns
from tenantq.http.listener import HttpListener
from tenantq.http.routes import ROUTES
from tenantq.runtime.clock import Clock, sleep_ms
from tenantq.runtime.tls import check_tls
from tenantq.server.listen_addresses import open_rpc, opened, port_of
from tenantq.service.service import Service
from tenantq.settings import ServerSettings
from tenantq.sqs import SqsEndpoint
from tenantq.sqs.cooldowns import Cooldowns

if TYPE_CHECKING:
    from tenantq.rpc.listener import RpcListener
    from tenantq.server.telemetry import Telemetry


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
        service.metrics.include(self.http.context.metrics)

    async def start(self, service: Service, turns: Turns) -> None:
        """Serve, Cap'n Proto first if its address is open."""
        assert self.http is not None
        if self._rpc_sockets:
            from tenantq.rpc.listener import RpcListener  # noqa: PLC0415  # needs pycapnp, which is an extra

            self.rpc = RpcListener(service, self._settings.rpc_listener, clock=self._clock, turns=turns)
            await self.rpc.start_on(self._rpc_sockets, self._settings.tls)
            service.metrics.include(self.rpc.context.metrics)
        await self.http.start_on(self._http_sockets, self._settings.tls)

    async def drain(self, grace_ms: int | None = None) -> None:
        """Announce the stop, then accept no more requests and finish those in flight. A second call forces their end.

        With ``grace_ms`` there is no announcement.
        """
        if grace_ms is None and self.http is not None and self.http.context.is_ready:
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


class ListeningServer(ABC):
    """A server process with its listeners. ``async with`` starts it, and stops it at the end of the block."""

    def __init__(
        self,
        settings: ServerSettings,
        clock: Clock,
        *,
        admin_token: str | None,
        rpc_default: str | None,
        sockets: Sockets | None,
        opened: Callable[[], None],
        show_token: Callable[[str], None] | None,
    ) -> None:
        """Prepare. With ``sockets`` it is one process of several of the same server, and listens on these.

        ``opened`` is called when other processes can connect to it. ``show_token`` shows a generated administrator's token;
        ``port`` is known then. If it raises, the start fails and no administrator is created.
        """
        self.settings, self.clock = settings, clock
        self.transports = Transports(settings, clock, rpc_default)
        self._sockets, self._opened = sockets, opened
        self._admin_token, self._show_token = admin_token, show_token
        self.telemetry: Telemetry | None = None  # None: nothing is exported to a collector
        if sockets is not None:
            self.transports.use(sockets.http, sockets.rpc)

    @property
    def port(self) -> int:
        """The HTTP port, once the server has started."""
        return self.transports.port

    @property
    def rpc_port(self) -> int | None:
        """The Cap'n Proto port, once the server has started, if it serves that."""
        return self.transports.rpc_port

    async def start(self) -> None:
        """Open everything and serve. If it raises, nothing stays open."""
        if self.settings.tls is not None:
            check_tls(self.settings.tls)
        self.telemetry = _open_telemetry(self.settings)
        try:
            await self._start()
        except BaseException:
            await self.close(grace_ms=0)
            raise
        # These objects live as long as the server: the garbage collector need not look at them again.
        gc.collect()
        gc.freeze()

    @abstractmethod
    async def _start(self) -> None: ...

    async def drain(self, grace_ms: int | None = None) -> None:
        """Stop accepting requests and finish those in flight; see ``Transports.drain``."""
        await self.transports.drain(grace_ms)

    async def close(self, grace_ms: int | None = None) -> None:
        """Finish requests in flight and close everything. A second call forces the end."""
        await self.drain(grace_ms)
        if self.telemetry is not None:
            await self.telemetry.stop_metrics()
        self.transports.close()
        await self._close(grace_ms)
        if self.telemetry is not None:
            telemetry, self.telemetry = self.telemetry, None
            await telemetry.close()

    @abstractmethod
    async def _close(self, grace_ms: int | None) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _open_telemetry(settings: ServerSettings) -> Telemetry | None:
    """Start the export to a collector, if the settings name one. Raises Invalid if its libraries are missing."""
    if settings.telemetry.otlp_endpoint is None:
        return None
    try:
        from tenantq.server.telemetry import Telemetry  # noqa: PLC0415  # needs opentelemetry, which is an extra
    except ImportError as error:
        raise Invalid("telemetry.otlp_endpoint: run pip install '.[otel]' in the checkout to export to it") from error
    return Telemetry(settings.telemetry)
