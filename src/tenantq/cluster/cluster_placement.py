"""The cluster as the placement of tenants sees it: members, and rows in the store."""

import asyncio
from collections.abc import Callable, Container

from tenantq.cluster.hosted_node import HostContext
from tenantq.cluster.membership import Membership
from tenantq.cluster.registry import Registry
from tenantq.domain.cluster_view import CLUSTER_SHARDS_MAX, SPREAD_FORMAT, Cluster
from tenantq.errors import Conflict, Invalid
from tenantq.store.cluster_rows import check_readers


class ClusterPlacement:
    """See ``placement_admin.PlacementServer``. Used on the main event loop of a member."""

    def __init__(self, context: HostContext, registry: Registry, joined: Callable[[], Membership]) -> None:
        """Prepare. ``joined`` returns the membership, or raises Unavailable."""
        self._context, self._registry, self._joined = context, registry, joined

    @property
    def cluster(self) -> Cluster:
        """All shards. Raises Unavailable before the server has joined its cluster."""
        return self._joined().view.cluster

    @property
    def served(self) -> Container[str]:
        """The regions that have servers. Raises Unavailable before the server has joined its cluster."""
        return {member.region for member in self._joined().view.members.values()}

    def check_served(self, tenant: str, shard: int) -> None:
        """Raise Conflict if no server can own a shard that a tenant is to move to."""
        view = self._joined().view
        region = view.cluster.region_of(shard)
        if view.owner_of(shard) is None and region and all(one.region != region for one in view.members.values()):
            raise Conflict(
                f"shard {shard} is in region {region}, and no server of that region is running. Start one first.",
                tenant=tenant,
            )

    def check_spread(self) -> None:
        """Raise Conflict if a member cannot serve a part of a tenant."""
        check_readers(self._joined().view.members.values(), SPREAD_FORMAT)

    async def allow_spread(self) -> None:
        """Have programs that cannot serve a part of a tenant refuse the cluster from now on."""
        await asyncio.to_thread(self._registry.raise_format, SPREAD_FORMAT)

    def look(self) -> None:
        """Have members read what has changed in the directory."""
        self._joined().hurry()
        self._context.look_at_moves()

    async def grow(self, shards: int, *, dry_run: bool) -> None:
        """Raise the number of shards, or only check that. Raises Invalid."""
        now = self.cluster.shards
        if shards < now:
            raise Invalid(f"shards: cannot be reduced ({shards}, the cluster has {now}).")
        if shards > CLUSTER_SHARDS_MAX:
            raise Invalid(f"shards: above the maximum ({shards}, at most {CLUSTER_SHARDS_MAX}).")
        if dry_run:
            await asyncio.to_thread(self._registry.check_growth, shards)
        else:
            await asyncio.to_thread(self._registry.create, shards, ())
            self._joined().hurry()
