"""The composition root: wires store, engine, gates, service and listeners into one running server."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tenantq.cluster.node import ClusterNode
from tenantq.cluster.shard_spec import ShardSpec, Sockets
from tenantq.errors import Conflict, StoreFailed
from tenantq.gates.turns import Turns
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.server.shard_runtime import ShardRuntime
from tenantq.server.transports import ListeningServer
from tenantq.service.service import Service
from tenantq.settings import ServerSettings
from tenantq.sqs.cooldowns import COOLDOWNS, sqs_cooldowns
from tenantq.store.placement_file import remove_placements
from tenantq.store.shard_directories import HOME, shard_count


class Server(ListeningServer):
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
        """Prepare. With a ``spec`` it is one shard of several."""
        super().__init__(
            settings, clock or SystemClock(), admin_token=admin_token, rpc_default=rpc_default, sockets=sockets,
            opened=opened, show_token=show_token,
        )  # fmt: skip
        self._spec = spec
        self._home = Path(settings.data_dir if spec is None else spec.home_dir)  # shared by all shards
        self._node: ClusterNode | None = None  # of a server with several shards
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

    async def _start(self) -> None:
        """Open the store and the addresses, create the first administrator, and serve."""
        runtime, transports = self.runtime, self.transports
        if self._spec is None and (count := shard_count(self._home)) > 1:
            raise Conflict(f"{self._home} has {count} shards, but this process serves one. Use tenantq serve.")
        if self._spec is not None:
            self._node = ClusterNode(self._spec, self.shard, self.clock, runtime.in_background, COOLDOWNS)
            await self._node.read_directory()
        if self.telemetry is not None:
            runtime.tracing = self.telemetry.calls
        await runtime.open(self._node.other_shards if self._node is not None else None)
        if self._spec is None:
            remove_placements(self._home)  # from when there were more shards
            self.shard.state.catalog.placed_here = lambda *_: True  # also what moved to one of them, if it existed
        if self._sockets is None:
            transports.open()
        await runtime.bootstrap(self._admin_token, self._show_token)
        turns = Turns(asyncio.get_running_loop())
        service = await self._node.join(self.service, turns) if self._node is not None else self.service
        cooldowns = sqs_cooldowns(self.settings.sqs, self.clock)
        if self._node is not None:
            cooldowns = {name: self._node.routed(name, one) for name, one in cooldowns.items()}
        transports.prepare(service, turns, cooldowns["sqs_purges"], cooldowns["sqs_deletions"])
        if self._node is not None and self._sockets is not None and self._sockets.peers is not None:
            await self._node.open(self._sockets.peers, self._opened)
        if self.telemetry is not None:
            self.telemetry.start_metrics(self._metrics)
        await transports.start(service, turns)

    async def _metrics(self, reader: str) -> bytes:
        """Return the metrics of this process, which are a part of the server's if it has several shards."""
        if self._spec is None:
            return await self.service.metrics.text(reader)
        return await self.service.metrics.text(
            reader, self._spec.shards[self._spec.number].name, len(self._spec.shards)
        )

    async def _close(self, grace_ms: int | None) -> None:  # noqa: ARG002  # the requests in flight have finished
        """Write pending journal entries, and close the store."""
        node, self._node = self._node, None
        try:
            if node is not None:
                await node.close()
            await self.runtime.close()
        finally:
            if node is not None:
                node.close_directory()
