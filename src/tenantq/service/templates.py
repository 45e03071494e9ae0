"""Templates: stored with their owner, shared with other tenants, applied queue by queue."""

from collections.abc import Sequence
from typing import Any

from tenantq.domain.config import QueueConfig, TenantConfig, change_config
from tenantq.domain.message import Caller
from tenantq.domain.names import TemplateName, check_tenant_name
from tenantq.domain.plans import PlanSettings
from tenantq.domain.template import Template
from tenantq.domain.validation import all_fields, check_field, projected, validated
from tenantq.engine.access_store import PLATFORM
from tenantq.engine.ops.template import DeleteTemplate, PutTemplate
from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.errors import Invalid, NotFound, TenantqError
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.other_shards import OtherShards
from tenantq.service.queues import Queues
from tenantq.service.tenants import Tenants
from tenantq.wire.templates import AppliedItem, TemplateItem


class Templates:
    """Manages templates. An empty tenant means the platform."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        other_shards: OtherShards,
        queues: Queues,
        tenants: Tenants,
        plans: PlanSettings,
    ) -> None:
        self._shard, self._admission, self._other_shards = shard, admission, other_shards
        self._queues, self._tenants, self._plans = queues, tenants, plans

    async def put(self, call: Call, tenant: str | None, name: str, template: Template) -> bool:
        """Store a template, with whom it is shared; return whether it is new."""
        check_field("name", name, TemplateName)
        owner, caller, _ = await self._admit(call, tenant, "put_template")
        with self._admission.notes.noting_failure(caller, owner.name, "put_template"):
            if type(template) is not Template:
                raise Invalid(f"template: must be a Template, not {type(template).__name__}")
            validated(template).check()
        return await self._shard.submit(PutTemplate(owner, caller, name, template))

    async def delete(self, call: Call, tenant: str | None, name: str) -> None:
        """Delete a template. Raises NotFound."""
        check_field("name", name, TemplateName)
        owner, caller, _ = await self._admit(call, tenant, "delete_template")
        await self._shard.submit(DeleteTemplate(owner, caller, name))

    async def list(self, call: Call, tenant: str | None) -> Sequence[TemplateItem]:
        """Return the templates that a tenant may use, its own first; for the platform, all."""
        owner, caller, _ = await self._admit(call, tenant, "list_templates")
        name = owner.name
        self._admission.notes.note_view(caller, name, "list_templates")
        found = await self._other_shards.gather("templates.list_local", self.list_local(name), name)
        return sorted(found, key=lambda one: (one.owner != name, one.owner, one.name))

    def list_local(self, tenant: str) -> Sequence[TemplateItem]:
        """Return the templates of this shard that a tenant may use, for a caller that was authorized."""
        state = self._shard.state
        owners = {PLATFORM: "", **{one.id: one.name for one in state.catalog.tenants.values()}}
        return [
            projected(TemplateItem, template, name=name, owner=owner)
            for id, owner in owners.items()
            for name, template in state.templates.of(id).items()
            if template.is_visible(owner, tenant)
        ]

    async def find_local(self, owner: str, name: str, tenant: str) -> Template | None:
        """Return a template of this shard if a tenant may use it, for a caller that was authorized."""
        id = self._shard.tenant(owner).id if owner else PLATFORM
        found = self._shard.state.templates.of(id).get(name)
        return found if found is not None and found.is_visible(owner, tenant) else None

    async def apply(
        self, call: Call, tenant: str | None, name: str, *, owner: str | None = None, dry_run: bool = False
    ) -> Sequence[AppliedItem]:
        """Apply a template, each queue completely or not at all, and return the outcome of each. Repeating it changes nothing.

        Raises NotFound if the template does not exist or is not shared with the tenant. Administrators of the platform may
        apply any.
        """
        check_field("name", name, TemplateName)
        if owner is not None and owner != "":
            check_tenant_name(owner)
        target, caller, user = await self._admit(call, tenant, "put_queue")
        with self._admission.notes.noting_failure(caller, target.name, "put_queue"):
            template = await self._find((target.name, "") if owner is None else (owner,), name, user)
        applied = []
        if template.settings:
            applied.append(await self._apply_settings(call, target, template.settings, dry_run=dry_run))
        known = await self._queue_configs(target, tuple(template.queues))
        for queue, changes in template.queues.items():
            applied.append(await self._apply_queue(call, target, queue, known.get(queue), changes, dry_run=dry_run))
        return applied

    async def _find(self, owners: tuple[str, ...], name: str, user: str) -> Template:
        for one in owners:
            try:
                found = await self._other_shards.at_owner(one, "templates.find_local", self.find_local, one, name, user)
            except NotFound:
                continue  # an owner that does not exist looks like one without the template
            if found is not None:
                return found
        raise NotFound(f"template {name!r} does not exist, or is not shared with this tenant")

    async def _queue_configs(self, target: TenantState, names: Sequence[str]) -> dict[str, QueueConfig]:
        """Return the settings of those of the named queues that exist, on whichever shard."""
        found = {name: target.queues[name].config for name in names if name in target.queues}
        others = await self._other_shards.ask_parts(target, "queue_infos", target.name, [*names])
        return found | {one.name: one.config for infos in others.values() for one in infos}

    async def _apply_queue(
        self,
        call: Call,
        target: TenantState,
        queue: str,
        found: QueueConfig | None,
        changes: dict[str, Any],
        *,
        dry_run: bool,
    ) -> AppliedItem:
        before = found if found is not None else target.config.defaults
        try:
            changed = _differences(before, change_config(before, changes))
            if found is not None and not changed:
                return AppliedItem(queue=queue, outcome="unchanged")
            if dry_run:
                await self._admission.authorize(call, target.name, "put_queue", queue)
            else:
                await self._other_shards.at_queue(
                    target.name, queue, "queues.put", self._queues.put, call, target.name, queue, changes
                )
        except TenantqError as error:
            return AppliedItem(queue=queue, outcome="refused", error=error.message)
        return AppliedItem(queue=queue, outcome="created" if found is None else "changed", changes=changed)

    async def _apply_settings(
        self, call: Call, target: TenantState, changes: dict[str, Any], *, dry_run: bool
    ) -> AppliedItem:
        try:
            changed = _differences(target.config, self._plans.change(target.config, changes))
            if not changed:
                return AppliedItem(queue="", outcome="unchanged")
            if dry_run:
                await self._admission.authorize(call, target.name, "put_tenant", None)
            else:
                await self._tenants.put(call, target.name, changes)
        except TenantqError as error:
            return AppliedItem(queue="", outcome="refused", error=error.message)
        return AppliedItem(queue="", outcome="changed", changes=changed)

    async def _admit(self, call: Call, tenant: str | None, action: str) -> tuple[TenantState, Caller, str]:
        """Admit a call about a tenant, or about the platform. The last value is the tenant whose permissions count."""
        if tenant == "":
            return self._shard.state.platform, await self._admission.admit_platform(call, action), ""
        with await self._admission.admit(call, tenant, action) as admitted:
            user = "" if admitted.principal.is_platform_admin else admitted.tenant
            return admitted.state, admitted.caller, user


def _differences(before: QueueConfig | TenantConfig, after: QueueConfig | TenantConfig) -> dict[str, Any]:
    """Return the settings of ``after`` that differ from ``before``."""
    old = all_fields(before)
    return {name: value for name, value in all_fields(after).items() if value != old[name]}
