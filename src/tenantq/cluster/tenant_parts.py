"""What the shards of a spread tenant ask each other about their parts of it."""

from __future__ import annotations

import msgspec

from tenantq.cluster.part_rights import part_by_id
from tenantq.cluster.shared_settings import SharedSettings
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.message import SYSTEM
from tenantq.domain.placement import unit_name
from tenantq.engine.ops.data_keys import PutDataKey, ReplaceDataKey
from tenantq.engine.ops.spread import (
    ApplyShared,
    DropPart,
    PreparePart,
    SharedState,
    SwitchPart,
)
from tenantq.engine.part_state import RightsTransfer
from tenantq.engine.queue_groups import arriving_units
from tenantq.engine.queue_state import TenantState
from tenantq.engine.spread_rules import check_spreadable
from tenantq.errors import Conflict, Invalid, Unavailable
from tenantq.gates.charge import Charge, RateKind
from tenantq.gates.worker_registry import WorkerEntry
from tenantq.service.call import QueueInfo
from tenantq.service.export_import import queues_moving
from tenantq.service.service import Service
from tenantq.service.sqs_lookup import matching_queues
from tenantq.service.tenant_export import TenantExport
from tenantq.service.tenant_figures import figures_of
from tenantq.wire.tenants import PlaceItem, TenantFigures


class PartQueries:
    """Answers the other parts of tenants. Used on the event loop of the shard."""

    def __init__(
        self,
        number: int,
        service: Service,
        placements: TenantPlacements,
        settings: SharedSettings,
    ) -> None:
        self._number, self._service, self._shard, self._placements = number, service, service.shard, placements
        self._settings = settings

    # ---- changes of the spread ----

    async def prepare(
        self, shared: SharedState, home: int, shards: list[int], next_shards: list[int], block: int
    ) -> int:
        """Prepare this shard's part, or create it, and return the journal record since which it exists."""
        platform = self._shard.state.platform
        await self._shard.submit(
            PreparePart(platform, SYSTEM, shared, self._number, home, tuple(shards), tuple(next_shards), block)
        )
        return self._shard.state.catalog.tenants_by_id[shared.id].since

    def check_spreadable(self, tenant: str) -> bool:
        """Raise Conflict if a tenant of this shard cannot be spread over shards as it is."""
        check_spreadable(self._shard.tenant(tenant))
        return True

    def units(self, tenant: str) -> list[str]:
        """Return the groups of a tenant's queues on this shard."""
        return sorted({unit_name(tenant, name) for name in self._part(tenant).queues})

    def arriving(self, tenant: str) -> list[str]:
        """Return the groups of a tenant's queues that are on their way to this shard."""
        return arriving_units(self._shard.state.catalog, self._part(tenant))

    def has_part(self, id: int) -> bool:
        """Return whether this shard has a part of a tenant."""
        found = self._shard.state.catalog.tenants_by_id.get(id)
        return found is not None and found.part is not None

    async def switch(self, tenant: str, shards: list[int]) -> int:
        """Use the shards that this part was prepared for. The directory is read first: it knows which queues stay."""
        self._part(tenant)
        await self._placements.refresh()
        await self._shard.submit(SwitchPart(self._shard.state.platform, SYSTEM, tenant, tuple(shards)))
        return 0

    async def drop(self, tenant: str, id: int, home: int, block: int) -> dict[str, int]:
        """Delete this part and everything in it, for good; return how much it had. See ``DropPart``."""
        found = self._shard.state.catalog.tenants_by_id.get(id)
        counts = await self._shard.submit(DropPart(self._shard.state.platform, SYSTEM, tenant, id, home, block))
        if found is not None and found.gone:
            self._service.admission.forget_tenant(found.name)
            self._service.erasures.forget_keys(found)
        if not await self._shard.erasure.erase_bytes(id):
            raise Unavailable("a snapshot still holds deleted rows of the tenant. Try again later.", tenant=tenant)
        return counts

    def _part(self, tenant: str) -> TenantState:
        """Return a tenant of this shard. Raises Conflict if it has no part here: a question must not follow it elsewhere."""
        found = self._shard.state.catalog.tenants.get(tenant)
        if found is None:
            raise Conflict("the tenant has no part on this shard", tenant=tenant)
        return found

    def check_regions(self, tenant: str, regions: list[str]) -> bool:
        """Raise Invalid if the tenant cannot have these regions because of its part here."""
        self._service.admission.residency.check_regions(tenant, tuple(regions))
        here = self._shard.settings.region
        if here not in regions:
            raise Invalid(
                f"regions: shard {self._number} has queues of this tenant, and is in {here or 'no region'}."
                " Allow it, or set the tenant's spread to 1 first.",
                tenant=tenant,
            )
        return True

    # ---- settings ----

    async def apply(self, shared: SharedState) -> int:
        """Take over the tenant's settings."""
        await self._shard.submit(ApplyShared(self._shard.state.platform, SYSTEM, shared))
        return 0

    async def put_data_key(self, id: int, number: int, value: bytes, details: str) -> bool:
        """Store a new data key at home; return whether it was stored, once all parts have it."""
        tenant = self._home(id)
        stored = await self._shard.submit(PutDataKey(tenant, SYSTEM, number, value, details))
        await self._settings.flush_tenant(tenant)
        return stored

    async def replace_data_key(self, id: int, number: int, old: bytes, new: bytes, details: str) -> bool:
        """Replace a data key at home; return whether it was replaced, once all parts have it."""
        tenant = self._home(id)
        replaced = await self._shard.submit(ReplaceDataKey(tenant, SYSTEM, number, old, new, details))
        await self._settings.flush_tenant(tenant)
        return replaced

    def _home(self, id: int) -> TenantState:
        tenant = self._shard.state.catalog.tenants_by_id.get(id)
        if tenant is None or (tenant.part is not None and not tenant.part.is_home):
            raise Conflict("this shard is not the tenant's home")
        return tenant

    # ---- rates ----

    async def admit_rate(self, tenant: str, kind: RateKind, ops: int, size: int, wait_ms: int) -> int:
        """Take tokens from the tenant's bucket at home. Raises RateLimited."""
        charge = Charge.of(tenant, self._shard.tenant(tenant).config.limits, None, None, kind, ops, size)
        await self._service.admission.rates.admit_within(charge, wait_ms)
        return 0

    def take_rate(self, tenant: str, kind: RateKind, most: int) -> int | None:
        """Take up to ``most`` operations; return how many were left to take. None: they are not limited."""
        rates, limits = self._service.admission.rates, self._shard.tenant(tenant).config.limits
        left = rates.remaining(Charge.of(tenant, limits, None, None, kind, 0, 0))
        if left is None:
            return None
        taken = max(0, min(most, left))
        rates.charge(Charge.of(tenant, limits, None, None, kind, taken, 0))
        return taken

    def charge_rate(self, tenant: str, kind: RateKind, ops: int, size: int) -> int:
        """Charge what a call has used, or return it if below zero; return how long the bucket is in debt."""
        rates, limits = self._service.admission.rates, self._shard.tenant(tenant).config.limits
        charge = Charge.of(tenant, limits, None, None, kind, abs(ops), abs(size))
        if ops < 0 or size < 0:
            rates.refund(charge)
        else:
            rates.charge(charge)
        return rates.wait_ms(Charge.of(tenant, limits, None, None, kind, 1, 0))

    # ---- queues ----

    def queue_names(self, tenant: str) -> list[str]:
        """Return the names of the tenant's queues on this shard."""
        return list(self._part(tenant).queues)

    def queue_infos(self, tenant: str, names: list[str]) -> list[QueueInfo]:
        """Return those of the named queues that are on this shard."""
        here = self._part(tenant).queues
        return [self._service.queues.info(tenant, name) for name in names if name in here]

    def sqs_names(self, tenant: str, prefix: str, dead_letter: str | None) -> list[str]:
        """Return the names of the queues on this shard that match."""
        return matching_queues(self._part(tenant), prefix, dead_letter)

    def workers(self, tenant: str) -> list[WorkerEntry]:
        """Return the workers of the tenant's queues on this shard."""
        return list(self._service.admission.workers.of(self._part(tenant).name))

    async def export(self, tenant: str) -> TenantExport:
        """Start to export the tenant's queues on this shard. Raises Unavailable while some arrive."""
        part = self._part(tenant)
        if arriving_units(self._shard.state.catalog, part):
            raise queues_moving(tenant)
        return await self._service.exports.export_part(part, self._number)

    def figures(self, tenant: str) -> TenantFigures:
        """Return the figures of the tenant on this shard."""
        return figures_of(self._shard, self._part(tenant))

    async def places(self, tenant: str) -> list[PlaceItem]:
        """Return the places of the tenant's data of this shard."""
        return await self._service.tenants.places(self._part(tenant))

    def usage(self, id: int) -> PartUsage:
        """Return what this part uses."""
        tenant = part_by_id(self._service.shard, id)
        wall_ms = self._shard.state.wall_ms()
        hour, day = tenant.usage.windows(wall_ms)
        rights = dict(tenant.part.rights) if tenant.part is not None else {}
        sent = dict(tenant.part.sent) if tenant.part is not None else {}
        received = dict(tenant.part.received) if tenant.part is not None else {}
        return PartUsage(tenant.usage.used(wall_ms), hour.number, day.number, rights, sent, received)


class PartUsage(msgspec.Struct, frozen=True):
    """What one part of a tenant uses, and the rights that it holds."""

    used: dict[str, int]
    hour: int
    day: int
    rights: dict[str, int]
    sent: dict[int, RightsTransfer]
    received: dict[int, int]
