"""The composition root: wires store, engine, gates, service and listeners into one running server."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tenantq.cluster.layout import HOME, shard_count
from tenantq.cluster.node import ClusterNode
from tenantq.errors import Conflict
from tenantq.gates.turns import Turns
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.tls import check_tls
from tenantq.server.shard_runtime import ShardRuntime
from tenantq.server.transports import Transports
from tenantq.sqs.cooldowns import Cooldowns

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tenantq.cluster.shard_spec import ShardSpec, Sockets
    from tenantq.errors import StoreFailed
    from tenantq.service import Service
    from tenantq.settings import ServerSettings


class Server:
    """One server process with one shard. ``async with Server(settings) as server`` serves until the block ends."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        admin_token: str | None = None,
        clock: Clock | None = None,
        rpc_default: str | None = None,
        spec: ShardSpec | None = None,
        sockets: Sockets | None = None,
        opened: Callable[[], None] = lambda: None,
        show_token: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare. With a ``spec`` it is one shard of several and listens on ``sockets``.

        ``opened`` is called when the other shards can connect to this one. ``show_token`` shows a generated
        administrator's token; ``port`` is known then. If it raises, the start fails and no administrator is created.
        """
        self.settings = settings
        self._spec = spec
        self._sockets = sockets
        self._opened = opened
        self._show_token = show_token
        self._admin_token = admin_token
        self._home = Path(settings.data_dir if spec is None else spec.home_dir)  # shared by all shards
        self._node: ClusterNode | None = None  # of a server with several shards
        self.clock = clock or SystemClock()
        self.transports = Transports(settings, self.clock, rpc_default)
        if sockets is not None:
            self.transports.use(sockets.http, sockets.rpc)
        self.runtime = ShardRuntime(
            settings,
            spec.number if spec is not None else HOME,
            self.clock,
            data_dir=Path(settings.data_dir),
            home=self._home,
            is_one_of_many=spec is not None,
        )
        self.shard = self.runtime.shard

    @property
    def port(self) -> int:
        """The HTTP port, once the server has started."""
        return self.transports.port

    @property
    def rpc_port(self) -> int | None:
        """The Cap'n Proto port, once the server has started, if it serves that."""
        return self.transports.rpc_port

    @property
    def service(self) -> Service:
        """The service of its shard, once the server has started."""
        return self.runtime.service

    @property
    def failure(self) -> StoreFailed | None:
        """Why the server has to stop, if it does."""
        return self.shard.failure

    async def failed(self) -> None:
        """Return when the server has to stop because its store failed."""
        await self.shard.loop.stopped.wait()

    async def start(self) -> None:
        """Open the store and the addresses, create the first administrator, and serve. If it raises, nothing stays open."""
        settings, runtime, transports = self.settings, self.runtime, self.transports
        if settings.tls is not None:
            check_tls(settings.tls)
        if self._spec is None and (count := shard_count(self._home)) > 1:
            raise Conflict(f"{self._home} has {count} shards, but this process serves one. Use tenantq serve.")
        try:
            if self._spec is not None:
                self._node = ClusterNode(self._spec, self.shard, self.clock, runtime.in_background)
            await runtime.open(self._node.other_shards if self._node is not None else None)
            if self._sockets is None:
                transports.open()
            await runtime.bootstrap(self._admin_token, self._show_token)
            turns = Turns(asyncio.get_running_loop())
            service = self._node.join(self.service, turns) if self._node is not None else self.service
            purges = Cooldowns(self.clock, settings.sqs.purge_pause_ms)
            deletions = Cooldowns(self.clock, settings.sqs.recreate_pause_ms)
            if self._node is not None:
                purges = self._node.routed("sqs_purges", purges)
                deletions = self._node.routed("sqs_deletions", deletions)
            transports.prepare(service, turns, purges, deletions)
            if self._node is not None and self._sockets is not None and self._sockets.peers is not None:
                await self._node.open(self._sockets.peers, self._opened)
            await transports.start(service, turns)
        except BaseException:
            await self.close(grace_ms=0)
            raise
        # These objects live as long as the server: the garbage collector need not look at them again.
        gc.collect()
        gc.freeze()

    async def drain(self, grace_ms: int | None = None) -> None:
        """Stop accepting requests and finish those in flight; see ``Transports.drain``."""
        await self.transports.drain(grace_ms)

    async def close(self, grace_ms: int | None = None) -> None:
        """Finish requests in flight, write pending journal entries, and close the store. A second call forces the end."""
        await self.drain(grace_ms)
        self.transports.close()
        if self._node is not None:
            node, self._node = self._node, None
            await node.close()
        await self.runtime.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
