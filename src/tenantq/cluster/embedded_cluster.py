"""Embedded shards as operators see them: which are running, where tenants are, and what is moving."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from tenantq.cluster.directory_watch import DirectoryWatch
from tenantq.cluster.one_shard import OneShard
from tenantq.cluster.peers import Peers
from tenantq.cluster.placement_admin import PlacementAdmin
from tenantq.cluster.shard_loads import ShardLoads
from tenantq.cluster.shard_spec import ShardSpec
from tenantq.domain.access import Principal
from tenantq.domain.cluster_view import FIRST_FORMAT, Cluster
from tenantq.errors import Conflict, ShardDown
from tenantq.runtime.clock import Clock
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.server_status import VERSION
from tenantq.store.crash_recovery import raise_format
from tenantq.wire.cluster import ClusterReply, ClusterShardItem, MemberItem


class ProcessFacts(msgspec.Struct, frozen=True):
    """What the process of a shard says about itself."""

    started_at: int
    load: float


class ShardProcessQueries:
    """What the process of an embedded shard answers to the others."""

    def __init__(self, here: OneShard, watch: DirectoryWatch, clock: Clock) -> None:
        self._here, self._watch, self._clock = here, watch, clock
        self._started_at = clock.wall_ms()
        self._loads = ShardLoads(clock.monotonic_ms())

    async def read_directory(self) -> None:
        """Read the directory: some rows have changed."""
        await self._watch.read()

    def facts(self) -> ProcessFacts:
        """Return what this process says about itself."""
        busy_us = {self._here.number: self._here.shard.loop.figures.took.sum_us}
        loads = self._loads.measure(self._clock.monotonic_ms(), busy_us)
        return ProcessFacts(self._started_at, loads[self._here.number])


class ShardAdmission:
    """Authorizes calls about the platform on one shard. See ``placement_admin.PlatformAdmission``."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def identify(self, call: Call, action: str) -> Principal:
        """Return the caller's principal."""
        return await self._admission.identify(call, action)

    async def authorize_platform(self, call: Call, action: str) -> None:
        """Raise, and record the denial, if the caller may not do this with the platform."""
        await self._admission.admit_platform(call, action)


def cluster_of(spec: ShardSpec) -> Cluster:
    """Return the shards of a server as a cluster. Their number and regions are fixed when it starts."""
    regions = tuple(one.region for one in spec.shards)
    return Cluster(id="", format=FIRST_FORMAT, shards=len(spec.shards), regions=regions if any(regions) else ())


class EmbeddedCluster:
    """The shards of this server. See ``placement_admin.PlacementServer``."""

    def __init__(
        self,
        spec: ShardSpec,
        peers: Peers,
        watch: DirectoryWatch,
        queries: ShardProcessQueries,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._spec, self._peers, self._watch, self._queries = spec, peers, watch, queries
        self._background = background
        self.cluster = cluster_of(spec)
        self.served = frozenset(one.region for one in spec.shards)

    def check_served(self, tenant: str, shard: int) -> None:
        """Do nothing: each shard has its own process, and a move waits while that process is down."""

    def check_spread(self) -> None:
        """Do nothing: all shards run the same program."""

    async def allow_spread(self) -> None:
        """Have programs that cannot serve a part of a tenant refuse the data directory from now on."""
        await asyncio.to_thread(raise_format, Path(self._spec.home_dir))

    def look(self) -> None:
        """Have all shards read what has changed in the directory, and move tenants."""
        self._watch.hurry()
        self._background(self._peers.tell_all())

    async def grow(self, shards: int, *, dry_run: bool) -> None:  # noqa: ARG002  # as in a cluster
        """Raise Conflict: the number of embedded shards is set when the server starts."""
        raise Conflict(
            f"shards: the number is set when the server starts (now {self.cluster.shards}). Restart it with a larger --shards."
        )

    # ---- status ----

    async def _process(self, shard: int) -> ProcessFacts | None:
        """Return what the process of a shard says; None if it does not answer."""
        if shard == self._peers.number:
            return self._queries.facts()
        try:
            found: ProcessFacts = await self._peers.query(shard, "process.facts", timeout_ms=1_000)
        except ShardDown:
            return None
        return found

    async def show(self, call: Call, admission: ShardAdmission, placement: PlacementAdmin, server: str) -> ClusterReply:
        """Return the shards, each with its process as the member that owns it, and the tenants that move."""
        await admission.authorize_platform(call, "get_cluster")
        facts = await asyncio.gather(*(self._process(shard) for shard in range(len(self._spec.shards))))
        shown = list(zip(self._spec.shards, facts, strict=True))
        members = [
            MemberItem(
                id=one.name, url=one.address, peer_address=f"127.0.0.1:{port}", region=one.region, version=VERSION,
                joined_at=said.started_at, capacity=1.0, load=round(said.load, 3), shards=1, draining=False, assigner=False,
            )
            for (one, said), port in zip(shown, self._spec.peer_ports, strict=True)
            if said is not None
        ]  # fmt: skip
        shards = [
            ClusterShardItem(
                number=number, region=one.region, owner=one.name if said is not None else None, epoch=None, moving_to=None,
                load=round(said.load, 3) if said is not None else 0.0,
            )
            for number, (one, said) in enumerate(shown)
        ]  # fmt: skip
        this = self._spec.shards[self._spec.number].name
        return ClusterReply(
            id=server, this_member=this, problem="", members=members, shards=shards, moves=await placement.moves()
        )
