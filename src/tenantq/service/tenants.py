"""Tenants: create, change, list and suspend them, and show their usage."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from tenantq.domain import limits
from tenantq.domain.config import TenantConfig, change_config
from tenantq.domain.names import PROBE_TENANTS, check_tenant_name
from tenantq.domain.plans import PLANS, PlanSettings
from tenantq.domain.validation import all_fields, check_field, projected
from tenantq.engine.ops.lifecycle import PutTenant, deleted_just_now
from tenantq.engine.ops.suspension import ResumeTenant, SuspendTenant
from tenantq.engine.queue_state import TenantState, is_home
from tenantq.engine.restrictions import SuspensionMode
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, Invalid
from tenantq.kms.interface import KeyRef
from tenantq.service.admission import Admission
from tenantq.service.call import Call, TenantInfo
from tenantq.service.encryption import MessageEncryption
from tenantq.service.other_shards import OtherShards
from tenantq.service.request_checks import check_settings, page_of_names
from tenantq.service.tenant_figures import figures_of, summed_figures, usage_items, worst
from tenantq.wire.tenants import PlaceItem, PlanItem, PlansReply, ResidencyReply, TenantFigures, UsageReply

Places: TypeAlias = list[PlaceItem]


class Tenants:
    """Manages tenants. All actions but ``get`` and ``usage`` are the platform's."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        encryption: MessageEncryption,
        other_shards: OtherShards,
        plans: PlanSettings = PLANS,
        alert_targets: Collection[str] = (),
    ) -> None:
        self._shard, self._admission, self._encryption = shard, admission, encryption
        self._other_shards = other_shards
        self._plans = plans
        self._alert_targets = alert_targets

    async def put(self, call: Call, tenant: str, changes: dict[str, Any]) -> tuple[bool, TenantInfo]:
        """Create a tenant or change its settings; return whether it is new. ``changes`` may include a ``reason``."""
        check_tenant_name(tenant)
        caller = await self._admission.admit_platform(call, "put_tenant", tenant)
        notes = self._admission.notes
        if tenant in PROBE_TENANTS:
            with notes.noting_failure(caller, "", "put_tenant"):
                raise Conflict("this tenant belongs to the server's isolation probe", tenant=tenant)
        with notes.noting_failure(caller, tenant, "put_tenant"):
            await self._check_regions(tenant, check_settings(changes))
            check_field("reason", changes.get("reason", ""), limits.OptionalReason)
            await self._check_encryption(tenant, changes)
            self._check_alert_targets(changes)
        may_create = self._other_shards.may_create(tenant)
        platform = self._shard.state.platform
        created = await self._shard.submit(PutTenant(platform, caller, tenant, changes, may_create, self._plans))
        info = self._info(tenant)
        if "regions" in changes:
            await self._other_shards.announce(tenant, info.config.regions)
        return created, info

    async def _check_regions(self, tenant: str, changes: dict[str, Any]) -> None:
        """Raise Conflict if the change would force the tenant to move to another shard of this server."""
        if not changes.get("regions"):
            return
        regions = change_config(TenantConfig(), {"regions": changes["regions"]}).regions
        self._admission.residency.check_regions(tenant, regions)
        state = self._shard.state.catalog.tenants.get(tenant)
        if state is not None:
            await self._other_shards.ask_parts(state, "check_regions", tenant, list(regions))
        here = self._shard.settings.region
        if here not in regions and self._other_shards.has_shard_in(regions):
            if state is None:  # a new one would not be placed here
                raise deleted_just_now(tenant)
            raise Conflict(
                f"regions: the tenant lives on shard {self._other_shards.number}, which is in {here or 'none'}; "
                "it can be moved to another server only, with tenantq migrate",
                tenant=tenant,
            )

    def _check_alert_targets(self, changes: dict[str, Any]) -> None:
        """Raise Invalid if the tenant's alerts name a target that the server does not have."""
        if "alerts" not in changes:
            return
        for name in change_config(TenantConfig(), {"alerts": changes["alerts"]}).alerts.targets:
            if name not in self._alert_targets:
                known = ", ".join(self._alert_targets) or "none"
                raise Invalid(f"alerts.targets: unknown target ({name!r}, defined: {known})")

    async def _check_encryption(self, tenant: str, changes: dict[str, Any]) -> None:
        """Raise if the key that is to encrypt the tenant's messages does not work."""
        state = self._shard.state.catalog.tenants.get(tenant)
        if state is None:
            changes = {"plan": self._plans.default, **changes}
        if "encryption" not in changes and "plan" not in changes:
            return
        before = state.config if state is not None else TenantConfig()
        relevant = {name: one for name, one in changes.items() if name in {"encryption", "plan"}}
        wanted = self._plans.change(before, relevant).encryption
        if wanted.key is not None:
            KeyRef.parse(wanted.key)
        if not wanted.enabled or (before.encryption.enabled and wanted.key == before.encryption.key):
            return
        await self._encryption.check_key(tenant, state.id if state is not None else None, wanted)

    async def get(self, call: Call, tenant: str | None) -> TenantInfo:
        with await self._admission.admit(call, tenant, "get_tenant") as admitted:
            self._admission.notes.note_view(admitted.caller, admitted.tenant, "get_tenant")
            return TenantInfo.of(admitted.state)

    async def list(
        self, call: Call, *, after: str | None = None, limit: int = 100, figures: bool = False
    ) -> Sequence[TenantInfo]:
        """Return a page of the tenants of all shards by name, with their current figures if ``figures`` is set."""
        check_field("limit", limit, limits.PageSize)
        caller = await self._admission.admit_platform(call, "list_tenants")
        self._admission.notes.note_view(caller, "", "list_tenants")
        found = await self.list_local(after, limit, figures=figures)
        return await self._other_shards.tenants(found, after, limit, figures=figures)

    async def list_local(self, after: str | None, limit: int, *, figures: bool) -> Sequence[TenantInfo]:
        """Return a page of this shard's tenants, for a caller that was authorized."""
        found = []
        tenants = {name: one for name, one in self._shard.state.catalog.tenants.items() if is_home(one)}
        for name in page_of_names(tenants, after, limit):
            state = self._shard.state.catalog.tenants.get(name)
            if state is None or not is_home(state):
                continue  # deleted meanwhile, or another shard lists it
            found.append(TenantInfo.of(state, await self._figures(state) if figures else None))
            if figures:
                await asyncio.sleep(0)  # counting many queues takes time
        return found

    async def _figures(self, state: TenantState) -> TenantFigures:
        own = figures_of(self._shard, state)
        return summed_figures(state, own, (await self._other_shards.ask_parts(state, "figures", state.name)).values())

    async def plans(self, call: Call) -> PlansReply:
        """Return the plans of this server."""
        caller = await self._admission.admit_platform(call, "list_tenants")
        self._admission.notes.note_view(caller, "", "list_tenants", "plans")
        plans = [
            PlanItem(name=name, is_default=name == self._plans.default, plan=all_fields(plan))
            for name, plan in sorted(self._plans.available.items())
        ]
        return PlansReply(plans=plans)

    async def suspend(self, call: Call, tenant: str, reason: str = "", mode: SuspensionMode = "settle") -> TenantInfo:
        """Refuse adds and polls of a tenant. Leased messages can be settled unless the mode is "freeze"."""
        caller = await self._admission.admit_platform(call, "suspend_tenant", tenant)
        name = self._shard.tenant(tenant).name
        await self._shard.submit(SuspendTenant(self._shard.state.platform, caller, name, reason, mode))
        return self._info(tenant)

    async def resume(self, call: Call, tenant: str, reason: str = "") -> TenantInfo:
        """End the suspension of a tenant."""
        caller = await self._admission.admit_platform(call, "resume_tenant", tenant)
        name = self._shard.tenant(tenant).name
        await self._shard.submit(ResumeTenant(self._shard.state.platform, caller, name, reason))
        return self._info(tenant)

    async def usage(self, call: Call, tenant: str | None) -> UsageReply:
        """Return the tenant's quotas and their usage."""
        with await self._admission.admit(call, tenant, "usage") as admitted:
            parts = await self._other_shards.ask_parts(admitted.state, "usage", admitted.state.id)
            items = usage_items(self._shard, admitted.state, parts.values())
            self._admission.notes.note_view(admitted.caller, admitted.tenant, "usage")
            return UsageReply(
                tenant=admitted.tenant,
                state=worst(item.state for item in items.values()),
                quotas=items,
                throttled_total=admitted.state.counters.throttled,
            )

    async def residency(self, call: Call, tenant: str | None) -> ResidencyReply:
        """Return every place of a tenant's data, and whether its regions allow each."""
        with await self._admission.admit(call, tenant, "get_tenant") as admitted:
            self._admission.notes.note_view(admitted.caller, admitted.tenant, "get_tenant", "residency")
            regions = admitted.state.config.regions
            parts = await self._other_shards.ask_parts(admitted.state, "places", admitted.tenant)
            former = await self._former_places(admitted.state, parts)
            places = list(chain(await self.places(admitted.state), *parts.values(), former))
            return ResidencyReply(
                tenant=admitted.tenant,
                regions=list(regions),
                shard=self._shard.name,
                shards=[self._shard.name, *map(str, parts)],
                allowed=all(one.allowed for one in places),
                places=places,
            )

    async def _former_places(self, tenant: TenantState, parts: Iterable[int]) -> Places:
        """Return the places that the tenant has left. The journals of those shards still name it, and backups may contain it."""
        regions = tenant.config.regions
        former = sorted({shard for shard, _ in tenant.earlier} - {self._other_shards.number, *parts})
        found = await self._other_shards.ask("tenants.former_places_local", regions, shards=former)
        removed = [
            PlaceItem(what="journal", where=f"shard {shard}, which was removed", region=None, allowed=not regions)
            for shard in former
            if shard not in found
        ]
        return [*chain(*found.values()), *removed]

    async def former_places_local(self, regions: tuple[str, ...]) -> Places:
        """Return the places of this shard that keep something of a tenant with these regions that has left it."""
        places = await self._places(regions)
        return [msgspec.structs.replace(one, what="journal") if one.what == "messages" else one for one in places]

    async def places(self, tenant: TenantState) -> Places:
        """Return the places of a tenant's data of this shard."""
        return await self._places(tenant.config.regions)

    async def _places(self, regions: tuple[str, ...]) -> Places:
        residency = self._admission.residency
        rows = await asyncio.to_thread(self._shard.state.store.files.location)
        return [
            projected(
                PlaceItem, one, where=one.where or rows, region=one.region or None,
                allowed=residency.allowed(one, regions),
            )
            for one in residency.places
        ]  # fmt: skip

    def _info(self, tenant: str) -> TenantInfo:
        return TenantInfo.of(self._shard.tenant(tenant))
