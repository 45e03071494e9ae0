"""Legal hold: while a tenant is under one, nothing of it is deleted by hand."""

from dataclasses import dataclass

from tenantq.domain import limits
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.engine.restrictions import Hold
from tenantq.errors import Conflict, NotFound
from tenantq.journal.record import without_surrogates


@dataclass(eq=False)
class HoldTenant(Operation[None]):
    """Put a tenant under legal hold, or change the reason of its hold."""

    name: str
    reason: limits.Reason
    journal_op = "hold_tenant"

    def execute(self, effects: Effects) -> None:
        """Store the hold with the tenant. Raises Conflict if the tenant is being deleted."""
        tenant = effects.state.catalog.tenant(self.name)
        if tenant.erasing is not None:
            raise Conflict("the tenant is being deleted: its data keys are destroyed", tenant=tenant.name)
        tenant.hold = Hold(self.reason, without_surrogates(self.caller.principal), effects.now + effects.wall)
        tenant.version += 1
        effects.state.catalog.save_tenant(effects.batch, tenant)
        effects.log_tenant("hold_tenant", tenant, self.caller, f"version {tenant.version}: {self.reason}")


@dataclass(eq=False)
class ReleaseHold(Operation[None]):
    """Release a tenant from legal hold. Raises NotFound if it is under none."""

    name: str
    reason: limits.Reason
    journal_op = "release_hold"

    def execute(self, effects: Effects) -> None:
        """Remove the hold, and continue deletions that it interrupted."""
        tenant = effects.state.catalog.tenant(self.name)
        if tenant.hold is None:
            raise NotFound("the tenant is under no legal hold", tenant=tenant.name)
        tenant.hold = None
        tenant.version += 1
        effects.state.catalog.save_tenant(effects.batch, tenant)
        for queue in tenant.queues.values():
            if queue.status == "draining":
                effects.touch(queue)
        effects.log_tenant("release_hold", tenant, self.caller, f"version {tenant.version}: {self.reason}")
