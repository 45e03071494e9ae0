"""The placement of tenants, as a server with one shard answers."""

from typing import NoReturn

from tenantq.errors import Conflict
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.wire.cluster import GrowRequest, PlacementReply, PlacementRequest


def one_shard(tenant: str = "") -> Conflict:
    """Return the error for calls that only servers with several shards can answer."""
    text = "this server has one shard. Start it with --shards, or with --store to form a cluster."
    return Conflict(text, tenant=tenant or None)


class NoPlacement:
    """Refuses all changes: there is no other shard. See ``cluster.placement_admin``."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def get(self, call: Call, tenant: str) -> PlacementReply:
        """Raise Conflict."""
        await self._refuse(call, "get_cluster", tenant)

    async def place(self, call: Call, tenant: str, request: PlacementRequest) -> PlacementReply:  # noqa: ARG002  # as above
        """Raise Conflict."""
        await self._refuse(call, "place_tenant", tenant)

    async def grow(self, call: Call, request: GrowRequest) -> None:  # noqa: ARG002  # as above
        """Raise Conflict."""
        await self._refuse(call, "grow_cluster", "")

    async def _refuse(self, call: Call, action: str, tenant: str) -> NoReturn:
        await self._admission.admit_platform(call, action, tenant)
        raise one_shard(tenant)
