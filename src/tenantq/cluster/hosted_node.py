"""One shard of a host: its runtime, and what connects its service with the other shards."""

import asyncio
from collections.abc import Callable, Container, Mapping
from typing import Any, Protocol

from tenantq.cluster.credentials import CredentialLookups, ShardCredentials
from tenantq.cluster.host import ShardHost
from tenantq.cluster.member_queries import OtherMembers
from tenantq.cluster.placed_tenants import PlacedTenants
from tenantq.cluster.platform_keys import PlatformKeyCopy
from tenantq.cluster.scatter_gather import ScatterGather
from tenantq.cluster.shard_calls import CallsFromShard, ShardCalls
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.cluster.tenant_directory import TenantDirectory, TenantPlacements
from tenantq.domain.placement import Topology
from tenantq.engine.shard import Shard
from tenantq.runtime.clock import Clock
from tenantq.service.other_shards import OtherShards
from tenantq.service.service import Service


class Runtime(Protocol):
    """A shard with its service; see ``shard_runtime.ShardRuntime``."""

    @property
    def shard(self) -> Shard:
        """The engine."""

    service: Service

    async def open(self, other_shards: OtherShards) -> None:
        """Open the store and start to work."""

    async def prepare_close(self) -> None:
        """Do, while the shard still serves, what a close without exports would wait for."""

    async def close(self, *, exports: bool) -> None:
        """Stop, and close the store."""


class HostContext:
    """What all shards of a process share, and the transports."""

    def __init__(
        self,
        host: ShardHost,
        calls: ShardCalls,
        placements: TenantPlacements,
        memory: ShardMemory,
        members: OtherMembers,
        topology: Callable[[], Topology],
        clock: Clock,
    ) -> None:
        self.host = host
        self.calls = calls
        self.placements = placements
        self.memory = memory
        self.members = members
        self.topology = topology
        self.clock = clock
        self.main = asyncio.get_running_loop()
        self.platform_keys = PlatformKeyCopy(host, members, clock)
        self._lookups = CredentialLookups(memory, members, calls, clock, self.platform_keys.find)
        self.on_fleet_work: Callable[[str], None] = lambda _: None  # called in the threads of shards
        self.tenants: dict[int, PlacedTenants] = {}  # by shard
        calls.find, calls.refresh = placements.find, placements.refresh

    def look_at_moves(self) -> None:
        """Have each shard continue its moves of tenants."""
        for number, tenants in list(self.tenants.items()):
            thread = self.host.thread(number)
            if thread is not None and tenants.has_work():
                thread.run(tenants.look)

    def directory(self, number: Callable[[], int], own: Callable[[], Container[str]] = tuple) -> TenantDirectory:
        """Return the directory as a shard with its ``own`` tenants sees it, or the transports."""
        return TenantDirectory(self.placements, number, self.topology, own)

    def credentials(self, number: int | None, directory: TenantDirectory) -> ShardCredentials:
        """Return what looks up credentials for a shard, or for the transports."""
        return ShardCredentials(number, directory, self._lookups, self.main)


class HostedNode:
    """One shard of a process with many. See ``shard_thread.HostedShard``."""

    def __init__(
        self,
        number: int,
        runtime: Runtime,
        context: HostContext,
        extra: Mapping[str, object],
        opened: Callable[[], Any],
    ) -> None:
        """Prepare. ``extra`` are further objects whose methods can be called; ``opened`` is awaited before calls arrive."""
        self._number = number
        self._runtime = runtime
        self._context = context
        self._opened = opened
        self._tenants: PlacedTenants | None = None
        self.facets: dict[str, object] = dict(extra)

    @property
    def shard(self) -> Shard:
        """The engine."""
        return self._runtime.shard

    @property
    def service(self) -> Service:
        """The service, once it is open."""
        return self._runtime.service

    async def open(self) -> None:
        """Own the shard and start to work."""
        context, number = self._context, self._number
        directory = context.directory(lambda: number, lambda: self.shard.state.catalog.tenants)
        calls = CallsFromShard(number, context.calls, context.main)
        other_shards = ScatterGather(directory, directory, calls)
        await self._runtime.open(other_shards)
        service = self._runtime.service
        self.facets |= other_shards.serve(service, context.credentials(number, directory))
        service.shard.state.on_fleet_work = context.on_fleet_work
        tenants = self._tenants = context.tenants[number] = PlacedTenants(number, service, context.placements, calls)
        self.facets |= tenants.facets(self.facets)
        other_shards.attach(tenants.spread)
        await tenants.open()
        await self._opened()

    async def prepare_close(self) -> None:
        """Do, while the shard still serves, what a close without exports would wait for."""
        await self._runtime.prepare_close()

    async def close(self, *, exports: bool) -> None:
        """Stop, and give the shard up."""
        try:
            if self._tenants is not None:
                self._context.tenants.pop(self._number, None)
                await self._tenants.close()
        finally:
            await self._runtime.close(exports=exports)  # in any case: it gives the shard up
