"""Reactions to alerts: rules contain a credential or a tenant, platform administrators list and release."""

import logging
from collections.abc import Sequence

from tenantq.domain.access import can_be_granted_to
from tenantq.domain.containment import ABOUT_PRINCIPALS, Containment, ContainmentRule
from tenantq.domain.limits import PrincipalName
from tenantq.domain.message import SYSTEM, Caller
from tenantq.domain.validation import check_field, projected
from tenantq.engine.ops.containment import Contain, ReleaseContainment
from tenantq.engine.queue_state import is_home
from tenantq.engine.shard import Shard
from tenantq.errors import NotFound, TenantqError
from tenantq.gates.signals import Alert
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.other_shards import OtherShards
from tenantq.wire.alerts import ContainmentItem, ContainmentsReply

log = logging.getLogger("tenantq")


class Containments:
    """Applies the server's rules to alerts. The shard that owns the tenant stores and applies a containment."""

    def __init__(
        self, shard: Shard, admission: Admission, other_shards: OtherShards, rules: Sequence[ContainmentRule]
    ) -> None:
        self._shard, self._admission, self._other_shards, self._rules = shard, admission, other_shards, rules

    def react(self, alert: Alert) -> None:
        """Apply the rules for an alert, in the background."""
        for rule in self._rules:
            if rule.alert == alert.kind:
                self._admission.in_background(self._apply(rule, alert))

    async def _apply(self, rule: ContainmentRule, alert: Alert) -> None:
        tenant, principal = alert.tenant, ""
        if alert.kind in ABOUT_PRINCIPALS:
            if not can_be_granted_to(alert.principal):
                return  # the alert is about no principal, or about all of a tenant, and other tenants can cause it
            tenant, principal = alert.home, alert.principal
        if rule.action == "suspend_key" and not principal.startswith("key:"):
            return
        containment = Containment(
            action=rule.action,
            tenant=tenant,
            principal="" if rule.action == "freeze_tenant" else principal,
            alert=alert.kind,
            text=alert.details,
            dry_run=rule.dry_run,
            ops_per_sec=rule.ops_per_sec,
            created_at=alert.at,
            until=alert.at + rule.duration_ms,
        )
        try:
            await self._other_shards.at_owner(tenant, "containment.contain_local", self.contain_local, containment)
        except TenantqError as error:  # its refusal is journaled
            log.warning("alert %s: %s of %s failed: %s", alert.kind, rule.action, principal or tenant, error.message)

    async def contain_local(self, containment: Containment) -> None:
        """Store and apply a containment on this shard, which owns the tenant."""
        await self._shard.submit(Contain(self._shard.state.platform, SYSTEM, containment))

    async def list(self, call: Call) -> ContainmentsReply:
        """Return the containments in force on all shards, including dry runs, oldest first."""
        caller = await self._admission.admit_platform(call, "list_containments")
        self._admission.notes.note_view(caller, "", "list_containments")
        return ContainmentsReply(containments=[*await self._items()])

    def list_local(self) -> Sequence[ContainmentItem]:
        """Return the containments of this shard, for a caller that was authorized."""
        tenants = self._shard.state.catalog.tenants_by_id
        return [
            projected(ContainmentItem, one)
            for id, one in self._shard.state.access.containments.values()
            if id not in tenants or is_home(tenants[id])
        ]

    async def release(self, call: Call, id: str) -> ContainmentItem:
        """Release a containment and return it. Raises NotFound."""
        check_field("id", id, PrincipalName)
        caller = await self._admission.admit_platform(call, "release_containment")
        with self._admission.notes.noting_failure(caller, "", "release_containment"):
            found = next((one for one in await self._items() if one.id == id), None)
            if found is None:
                raise NotFound(f"containment {id[:80]!r} does not exist, or has ended")
        await self._other_shards.at_owner(found.tenant, "containment.release_local", self.release_local, caller, id)
        return found

    async def release_local(self, caller: Caller, id: str) -> None:
        """Release a containment of this shard for a caller that was authorized."""
        await self._shard.submit(ReleaseContainment(self._shard.state.platform, caller, id))

    async def _items(self) -> Sequence[ContainmentItem]:
        found = await self._other_shards.gather("containment.list_local", self.list_local())
        return sorted(found, key=lambda one: (one.created_at, one.id))
