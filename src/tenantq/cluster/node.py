"""One shard among several: its links to the others, and the service that its transports use."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, cast

from tenantq.cluster.call_server import CallServer
from tenantq.cluster.credentials import CredentialLookups, ShardCredentials
from tenantq.cluster.fleet_poll import ClusterFleetPolls
from tenantq.cluster.fleet_waits import FleetWaits
from tenantq.cluster.gathering import Gathering
from tenantq.cluster.link_calls import KIND, LinkCalls
from tenantq.cluster.member_queries import MemberQueries
from tenantq.cluster.one_shard import OneShard
from tenantq.cluster.peers import Peers
from tenantq.cluster.routed_service import RoutedFacet, routed_service, shard_methods
from tenantq.cluster.shard_calls import CallsFromShard, ShardCalls
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.cluster.shard_spec import ShardSpec
from tenantq.cluster.tenant_creation import TenantCreation
from tenantq.engine.shard import Shard
from tenantq.gates.turns import Turns
from tenantq.runtime.clock import Clock
from tenantq.service.service import Service

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
        """Prepare. ``extra`` are further facet classes, by name; see ``routed``."""
        self._clock = clock
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._here = here = OneShard(spec.number, shard)
        self._peers = Peers(spec, clock, lambda: shard.state.catalog.tenants, background, lambda: shard.failure is None)
        self._calls = calls = ShardCalls(here, clock, len(spec.shards), hold_ms=0)
        self._memory = ShardMemory(here, clock)
        self._waits = FleetWaits(self._loop)
        methods = shard_methods(extra, {"tenant_creation": TenantCreation})
        queries = MemberQueries(self._memory, self._waits)
        self._server = CallServer(methods, {"member": queries}, here.find, calls.release)
        self._peers.answers(KIND, self._server.answer)
        self._peers.calls = LinkCalls(methods, calls.release, background)
        calls.remote = self._peers
        self.other_shards = Gathering(
            self._peers.directory, self._peers, CallsFromShard(spec.number, calls, self._loop)
        )

    def join(self, service: Service, turns: Turns) -> Service:
        """Answer other shards from ``service``, and return the service that also answers for their tenants."""
        peers, calls, directory = self._peers, self._calls, self._peers.directory
        lookups = CredentialLookups(self._memory, peers, calls, self._clock)
        credentials = ShardCredentials(directory.number, directory, lookups, self._loop)
        self._here.facets |= self.other_shards.serve(service, credentials)
        routing = self.other_shards.routing
        creation = self._here.facets["tenant_creation"] = TenantCreation(service, peers, routing, calls)
        authenticator = service.admission.authenticator
        fleet = ClusterFleetPolls(
            calls, directory, self._memory, self._waits, peers, authenticator, self._clock, self._background
        )
        self._server.turns = turns
        self._here.service = service
        service.shard.state.on_fleet_work = self._waits.signal
        return routed_service(service, routing, calls, fleet, creation)

    def routed(self, name: str, facet: F) -> F:
        """Return an object whose asynchronous methods are executed by the owner of their tenant."""
        self._here.facets[name] = facet
        return cast("F", RoutedFacet(name, facet, self.other_shards.routing, self._calls))

    async def open(self, sock: socket.socket, opened: Callable[[], None]) -> None:
        """Connect to the other shards; call ``opened`` as soon as they can connect to this one."""
        await self._peers.open(sock)
        opened()
        if not await self._peers.wait_for_all(OTHERS_WAIT_MS):
            log.warning("not all shards have answered; those that did not are taken for down until they do")

    async def close(self) -> None:
        """Disconnect from the other shards."""
        await self._peers.close()
