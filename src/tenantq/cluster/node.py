"""One shard among several: its links to the others, and the service that its transports use."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from tenantq.cluster.call_server import CallServer
from tenantq.cluster.credentials import CredentialLookups, ShardCredentials
from tenantq.cluster.directory_watch import DirectoryWatch
from tenantq.cluster.embedded_cluster import (
    EmbeddedCluster,
    ShardAdmission,
    ShardProcessQueries,
    cluster_of,
)
from tenantq.cluster.fleet_poll import ClusterFleetPolls
from tenantq.cluster.fleet_waits import FleetWaits
from tenantq.cluster.link_calls import KIND, LinkCalls
from tenantq.cluster.member_queries import MemberQueries
from tenantq.cluster.one_shard import OneShard
from tenantq.cluster.part_rights import RightsQueries
from tenantq.cluster.peers import PeerFacts, Peers
from tenantq.cluster.placed_tenants import PlacedTenants
from tenantq.cluster.placement_admin import PlacementAdmin
from tenantq.cluster.routed_service import RoutedFacet, routed_service, shard_methods
from tenantq.cluster.scatter_gather import ScatterGather
from tenantq.cluster.shard_calls import CallsFromShard, ShardCalls
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.cluster.shard_spec import ShardSpec
from tenantq.cluster.spread_changes import SpreadChanges
from tenantq.cluster.tenant_arrivals import TenantArrivals
from tenantq.cluster.tenant_creation import TenantCreation
from tenantq.cluster.tenant_directory import TenantDirectory, TenantPlacements
from tenantq.cluster.tenant_moves import TenantMoves
from tenantq.cluster.tenant_parts import PartQueries
from tenantq.engine.shard import Shard
from tenantq.errors import StoreFailed
from tenantq.gates.turns import Turns
from tenantq.runtime.clock import Clock
from tenantq.service.service import Service
from tenantq.store.placement_file import PlacementFile

log = logging.getLogger("tenantq")
F = TypeVar("F")

OTHERS_WAIT_MS: Final = 10_000
"""How long a starting shard waits for the others, which may be starting too, before it accepts requests."""


class ClusterNode:
    """The cluster as one shard sees it. Create it first, then its service, then ``join``."""

    def __init__(
        self,
        spec: ShardSpec,
        shard: Shard,
        clock: Clock,
        background: Callable[[Coroutine[Any, Any, None]], None],
        extra: dict[str, type],
    ) -> None:
        """Open the directory. ``extra`` are further facet classes, by name; see ``routed``.

        Raises StoreFailed if the directory cannot be opened.
        """
        self._spec, self._clock, self._background = spec, clock, background
        self._loop = asyncio.get_running_loop()
        self._here = here = OneShard(spec.number, shard)
        self._peers = peers = Peers(spec, clock, lambda: shard.failure is None)
        self._calls = calls = ShardCalls(here, clock, len(spec.shards), hold_ms=0)
        self._memory = ShardMemory(here, clock)
        self._waits = FleetWaits(self._loop)
        self._stored = PlacementFile(Path(spec.home_dir))
        self._placements = placements = TenantPlacements(self._stored, cluster_of(spec))
        topology = spec.topology
        self._directory = directory = TenantDirectory(
            placements, lambda: spec.number, lambda: topology, lambda: shard.state.catalog.tenants, peers.runs
        )
        self._watch = DirectoryWatch(placements, self._look)
        self._process = ShardProcessQueries(here, self._watch, clock)
        self._tenants: PlacedTenants | None = None  # once the service exists
        methods = shard_methods(
            extra,
            {
                "process": ShardProcessQueries,
                "arrivals": TenantArrivals,
                "parts": PartQueries,
                "rights": RightsQueries,
            },
            {
                "moves.progress": TenantMoves.progress,
                "moves.has_work": TenantMoves.has_work,
                "spread.problem": SpreadChanges.problem,
            },
        )
        queries = {"member": MemberQueries(self._memory, self._waits), "process": self._process}
        self._server = CallServer(methods, queries, here.find, calls.release)
        peers.answers(KIND, self._server.answer)
        peers.calls = LinkCalls(methods, calls.release, background)
        calls.remote, calls.find, calls.refresh = peers, placements.find, placements.refresh
        self._from_shard = CallsFromShard(spec.number, calls, self._loop)
        self.other_shards = ScatterGather(directory, PeerFacts(directory, peers, calls, self._stored), self._from_shard)

    async def read_directory(self) -> None:
        """Read the directory, before the shard is opened. A backup that this shard was creating is over.

        Raises StoreFailed if nobody has built it: its rows decide which of two copies of a tenant is deleted.
        """
        if await asyncio.to_thread(self._stored.is_new):
            raise StoreFailed(f"{self._stored.path} is empty. Restart the server, which builds it from the shards.")
        await asyncio.to_thread(self._stored.release_moves, self._spec.number)
        await self._placements.refresh()

    async def join(self, service: Service, turns: Turns) -> Service:
        """Answer other shards from ``service``, and return the service that also answers for their tenants."""
        peers, calls, directory, placements = self._peers, self._calls, self._directory, self._placements
        facets = self._here.facets
        lookups = CredentialLookups(self._memory, peers, calls, self._clock)
        credentials = ShardCredentials(self._spec.number, directory, lookups, self._loop)
        facets |= self.other_shards.serve(service, credentials)
        tenants = self._tenants = PlacedTenants(self._spec.number, service, placements, self._from_shard)
        facets |= tenants.facets(facets)
        self.other_shards.attach(tenants.spread)
        routing, admission = self.other_shards.routing, ShardAdmission(service.admission)
        cluster = EmbeddedCluster(self._spec, peers, self._watch, self._process, self._background)
        creation = TenantCreation(placements, calls, routing, admission, lambda: cluster.served)
        fleet = ClusterFleetPolls(
            calls, directory, self._memory, self._waits, peers, service.admission.authenticator, self._clock,
            self._background,
        )  # fmt: skip
        self._server.turns = turns
        self._here.service = service
        service.shard.state.on_fleet_work = self._waits.signal
        await tenants.open()
        found = routed_service(service, facets, routing, calls, fleet, creation)
        placement = PlacementAdmin(placements, calls, admission, cluster, self._background)
        found.placement = cast("Any", placement)
        cast("Any", found.status).cluster = lambda call: cluster.show(
            call, admission, placement, service.status.server_id
        )
        return found

    def routed(self, name: str, facet: F) -> F:
        """Return an object whose asynchronous methods are executed by the owner of their tenant."""
        self._here.facets[name] = facet
        return cast("F", RoutedFacet(name, type(facet), facet, self.other_shards.routing, self._calls))

    def _look(self) -> None:
        if self._tenants is not None and self._tenants.has_work():
            self._tenants.look()

    async def open(self, sock: socket.socket, opened: Callable[[], None]) -> None:
        """Connect to the other shards; call ``opened`` as soon as they can connect to this one."""
        await self._peers.open(sock)
        opened()
        if not await self._peers.wait_for_all(OTHERS_WAIT_MS):
            log.warning("not all shards have answered; those that did not are taken for down until they do")
        self._watch.start()

    async def close(self) -> None:
        """Stop moves of tenants, and disconnect from the other shards."""
        await self._watch.close()
        if self._tenants is not None:
            await self._tenants.close()
        await self._peers.close()

    def close_directory(self) -> None:
        """Close the directory, after the shard has been closed."""
        self._stored.close()
