"""One shard among several: its links to the others, and the service that its transports use."""

import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, cast

from tenantq.cluster.credentials import ClusterCredentials
from tenantq.cluster.fleet_poll import ClusterFleetPolls, FleetShares
from tenantq.cluster.gathering import Gathering
from tenantq.cluster.peer_calls import PeerCalls, facet_methods
from tenantq.cluster.peer_queries import PeerQueries
from tenantq.cluster.peers import Peers
from tenantq.cluster.routed_service import FACETS, RoutedFacet, routed_service
from tenantq.cluster.shard_routing import ShardRouting
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
    ) -> None:
        self._clock = clock
        self._background = background
        self._peers = Peers(spec, clock, lambda: shard.state.catalog.tenants, background, lambda: shard.failure is None)
        self._calls = PeerCalls(self._peers, background)
        self._routing: ShardRouting
        self.other_shards = Gathering(self._peers, self._calls)

    def join(self, service: Service, turns: Turns) -> Service:
        """Answer other shards from ``service``, and return the service that also answers for their tenants."""
        peers, calls, directory, admission = self._peers, self._calls, self._peers.directory, service.admission
        routing = self._routing = ShardRouting(directory, admission)
        queries, shares = PeerQueries(service, self._clock), FleetShares(service)
        creation = TenantCreation(service, peers, routing, calls)
        fleet = ClusterFleetPolls(service, shares, calls, directory, self._clock, self._background)
        calls.turns = turns
        for name in FACETS:
            facet = getattr(service, name)
            calls.register(name, facet, facet_methods(facet))
        calls.register("admission", admission, ["authorize"])
        calls.register("peer", queries)
        calls.register("fleet_shares", shares)
        calls.register("tenant_creation", creation)
        self.other_shards.serve(service, routing)
        admission.authenticator.other_shards = ClusterCredentials(calls, directory, queries, self._clock)
        admission.notes.note_entries = self.other_shards.note_entries
        return routed_service(service, routing, calls, fleet, creation)

    def routed(self, name: str, facet: F) -> F:
        """Return an object whose asynchronous methods are executed by the owner of their tenant."""
        self._calls.register(name, facet)
        return cast("F", RoutedFacet(name, facet, self._routing, self._calls))

    async def open(self, sock: socket.socket, opened: Callable[[], None]) -> None:
        """Connect to the other shards; call ``opened`` as soon as they can connect to this one."""
        await self._peers.open(sock)
        opened()
        if not await self._peers.wait_for_all(OTHERS_WAIT_MS):
            log.warning("not all shards have answered; those that did not are taken for down until they do")

    async def close(self) -> None:
        """Disconnect from the other shards."""
        await self._peers.close()
