"""One shard of a host: its runtime, and what connects its service with the other shards."""

import asyncio
import contextlib
from collections.abc import Callable, Container, Mapping
from typing import Any, Protocol

from tenantq.cluster.credentials import CredentialLookups, ShardCredentials
from tenantq.cluster.directory import announced
from tenantq.cluster.gathering import Gathering
from tenantq.cluster.host import ShardHost
from tenantq.cluster.member_queries import OtherMembers
from tenantq.cluster.shard_calls import CallsFromShard, ShardCalls
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.cluster.spread_parts import SpreadParts
from tenantq.cluster.tenant_directory import TenantDirectory, TenantPlacements
from tenantq.cluster.tenant_moves import TenantArrivals, TenantMoves
from tenantq.domain.placement import Topology
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict
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
        self._lookups = CredentialLookups(memory, members, calls, clock)
        self.on_fleet_work: Callable[[str], None] = lambda _: None  # called in the threads of shards
        self.moves: dict[int, TenantMoves] = {}  # by shard
        self.spreads: dict[int, SpreadParts] = {}  # by shard
        calls.find, calls.refresh = placements.find, placements.refresh

    def look_at_moves(self) -> None:
        """Have each shard continue its moves of tenants."""
        for number, moves in list(self.moves.items()):
            thread = self.host.thread(number)
            if thread is not None and moves.has_work():
                thread.run(moves.look)
        for number, spread in list(self.spreads.items()):
            thread = self.host.thread(number)
            if thread is not None and spread.changes.wanted():
                thread.run(spread.changes.look)

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
        self._moves: TenantMoves | None = None
        self._spread: SpreadParts | None = None
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
        gathering = Gathering(directory, directory, calls)
        await self._runtime.open(gathering)
        service = self._runtime.service
        self.facets |= gathering.serve(service, context.credentials(number, directory))
        service.shard.state.on_fleet_work = context.on_fleet_work
        self._moves = TenantMoves(number, self.shard, context.placements, calls)
        self.facets |= {"arrivals": TenantArrivals(self.shard), "moves": self._moves}
        context.moves[number] = self._moves
        self._spread = SpreadParts(number, service, context.placements, calls)
        self.facets |= self._spread.facets(self.facets)
        gathering.attach(self._spread)
        context.spreads[number] = self._spread
        tenants = service.shard.state.catalog.tenants
        if any(one.part is not None for one in tenants.values()):
            await context.placements.refresh()  # so that settings reach all parts
        for tenant in announced(number, [name for name, one in tenants.items() if one.part is None]):
            if context.placements.find(tenant) is None:  # of a store that had no directory yet
                await context.placements.put(tenant, number)
        for tenant, one in list(tenants.items()):
            if one.part is None or one.part.is_home:
                with contextlib.suppress(Conflict):  # another member changes the row: the next opening checks it again
                    await context.placements.record_regions(tenant, one.config.regions)  # a crash may have come first
        self._spread.start()
        await self._opened()

    async def prepare_close(self) -> None:
        """Do, while the shard still serves, what a close without exports would wait for."""
        await self._runtime.prepare_close()

    async def close(self, *, exports: bool) -> None:
        """Stop, and give the shard up."""
        try:
            if self._spread is not None:
                self._context.spreads.pop(self._number, None)
                await self._spread.close()
            if self._moves is not None:
                self._context.moves.pop(self._number, None)
                await self._moves.close()
        finally:
            await self._runtime.close(exports=exports)  # in any case: it gives the shard up
