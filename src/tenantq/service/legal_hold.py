"""Legal hold: protects a tenant's data from deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.domain.message import Caller
from tenantq.engine.ops.hold import HoldTenant, ReleaseHold
from tenantq.service.admission import Admission
from tenantq.service.call import Call, TenantInfo
from tenantq.service.request_checks import check_reason

if TYPE_CHECKING:
    from tenantq.engine.shard import Shard


class LegalHolds:
    """Places tenants under legal hold and releases them."""

    def __init__(self, shard: Shard, admission: Admission) -> None:
        self._shard, self._admission = shard, admission

    async def place(self, call: Call, tenant: str, reason: str) -> TenantInfo:
        """Place a tenant under legal hold, or change the reason of its hold."""
        caller = await self._admit(call, tenant, "hold_tenant", reason)
        await self._shard.submit(HoldTenant(self._shard.state.platform, caller, tenant, reason))
        return TenantInfo.of(self._shard.tenant(tenant))

    async def release(self, call: Call, tenant: str, reason: str) -> TenantInfo:
        """Release a tenant from legal hold."""
        caller = await self._admit(call, tenant, "release_hold", reason)
        await self._shard.submit(ReleaseHold(self._shard.state.platform, caller, tenant, reason))
        return TenantInfo.of(self._shard.tenant(tenant))

    async def _admit(self, call: Call, tenant: str, action: str, reason: str) -> Caller:
        caller = await self._admission.admit_platform(call, action, tenant)
        with self._admission.notes.noting_failure(caller, tenant, action):
            self._shard.tenant(tenant)
            check_reason(reason)
        return caller
