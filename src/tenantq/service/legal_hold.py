"""Legal hold: protects a tenant's data from deletion."""

from tenantq.domain.message import Caller
from tenantq.engine.ops.hold import HoldTenant, ReleaseHold
from tenantq.engine.shard import Shard
from tenantq.service.admission import Admission
from tenantq.service.call import Call, TenantInfo
from tenantq.service.other_shards import OtherShards
from tenantq.service.request_checks import check_reason


class LegalHolds:
    """Places tenants under legal hold and releases them."""

    def __init__(self, shard: Shard, admission: Admission, other_shards: OtherShards) -> None:
        self._shard, self._admission, self._other_shards = shard, admission, other_shards

    async def place(self, call: Call, tenant: str, reason: str) -> TenantInfo:
        """Place a tenant under legal hold, or change the reason of its hold."""
        caller = await self._admit(call, tenant, "hold_tenant", reason)
        await self._shard.submit(HoldTenant(self._shard.state.platform, caller, tenant, reason))
        return TenantInfo.of(self._shard.tenant(tenant))

    async def release(self, call: Call, tenant: str, reason: str) -> TenantInfo:
        caller = await self._admit(call, tenant, "release_hold", reason)
        await self._shard.submit(ReleaseHold(self._shard.state.platform, caller, tenant, reason))
        return TenantInfo.of(self._shard.tenant(tenant))

    async def first_held(self) -> int | None:
        """Return the first record of this shard's journal that may be about a tenant under legal hold, on any shard."""
        number = self._other_shards.number
        return await self._other_shards.first_held(await self.first_held_local(number))

    async def first_held_local(self, shard: int) -> int | None:
        """Return the same for the tenants of this shard in the journal of another, for a caller that was authorized."""
        here, found = self._other_shards.number, list[int]()
        for tenant in self._shard.state.catalog.tenants.values():
            if tenant.hold is not None:
                found += [since for number, since in (*tenant.earlier, (here, tenant.since)) if number == shard]
        return min(found, default=None)

    async def _admit(self, call: Call, tenant: str, action: str, reason: str) -> Caller:
        caller = await self._admission.admit_platform(call, action, tenant)
        with self._admission.notes.noting_failure(caller, tenant, action):
            self._shard.tenant(tenant)
            check_reason(reason)
        return caller
