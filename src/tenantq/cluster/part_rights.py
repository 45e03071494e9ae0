"""What the shards of a spread tenant ask each other about the rights of its parts."""

from __future__ import annotations

from tenantq.cluster.escrow import Escrow
from tenantq.cluster.rights_audit import RightsAudit
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.message import SYSTEM
from tenantq.engine.ops.rights import LeavePart, ResetTransfers
from tenantq.engine.part_state import PartAccount, RightsTransfer
from tenantq.engine.queue_groups import account_of, group_of
from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict


class RightsQueries:
    """Answers the other parts of tenants about rights. Used on the event loop of the shard."""

    def __init__(self, shard: Shard, placements: TenantPlacements, escrow: Escrow, audit: RightsAudit) -> None:
        self._shard, self._placements, self._escrow, self._audit = shard, placements, escrow, audit

    async def grant(
        self, id: int, receiver: int, confirmed: int, wanted: dict[str, int]
    ) -> tuple[RightsTransfer, bool]:
        """Send rights to a part that is short of them."""
        return await self._escrow.grant(id, receiver, confirmed, wanted)

    async def give(self, id: int, confirmed: int, wanted: dict[str, int], settle: bool) -> tuple[RightsTransfer, bool]:  # noqa: FBT001  # it travels
        """Send rights home that are not used here."""
        return await self._escrow.give(id, confirmed, wanted, settle)

    async def receive(self, id: int, sender: int, sent: RightsTransfer) -> int:
        """Add rights that another part has sent."""
        return await self._escrow.receive(id, sender, sent)

    def account(self, id: int) -> PartAccount:
        """Return what this part has recorded about its rights."""
        return account_of(self._shard.state.catalog, part_by_id(self._shard, id))

    def serves(self, id: int, unit: str) -> bool:
        """Return whether this part serves queues of a group."""
        return bool(group_of(part_by_id(self._shard, id), unit))

    async def reset_transfers(self, id: int, number: int) -> int:
        """Start new numbers of the transfers from and to home."""
        await self._shard.submit(ResetTransfers(self._shard.state.platform, SYSTEM, id, number))
        return 0

    async def audit(self, id: int, shard: int) -> bool:
        """At home: check the rights of all parts; return False if the shard that asks should have no part."""
        tenant = self._shard.state.catalog.tenants_by_id.get(id)
        if tenant is None or tenant.part is None:
            return False
        await self._placements.refresh()
        row = self._placements.row(tenant.name)
        known = {*(row.parts if row is not None else ()), *tenant.part.shards, *tenant.part.next_shards}
        if shard not in known:
            return False
        await self._audit.restore(tenant)
        return True

    async def leave(self, tenant: str, confirmed: int, from_home: RightsTransfer) -> RightsTransfer:
        """Send all rights home. Raises Conflict while this part has queues."""
        if tenant not in self._shard.state.catalog.tenants:
            raise Conflict("the tenant has no part on this shard", tenant=tenant)
        return await self._shard.submit(LeavePart(self._shard.state.platform, SYSTEM, tenant, confirmed, from_home))


def part_by_id(shard: Shard, id: int) -> TenantState:
    """Return a tenant of a shard. Raises Conflict if it has no part there."""
    tenant = shard.state.catalog.tenants_by_id.get(id)
    if tenant is None:
        raise Conflict("the tenant has no part on this shard")
    return tenant
