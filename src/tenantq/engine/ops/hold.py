"""Legal hold: while a tenant is under one, nobody deletes anything of it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.engine.operation import Operation
from tenantq.engine.queue_state import Hold
from tenantq.errors import Conflict, NotFound
from tenantq.journal.record import without_surrogates

if TYPE_CHECKING:
    from tenantq.domain.message import Caller
    from tenantq.engine.queue_state import TenantState
    from tenantq.engine.round import Round


class HoldTenant(Operation):
    """Put a tenant under legal hold, or give another reason for the one it is under."""

    __slots__ = ("name", "reason")
    journal_op = "hold_tenant"

    def __init__(self, system: TenantState, caller: Caller, name: str, reason: str) -> None:
        super().__init__(system, caller)
        self.name = name
        self.reason = reason

    def execute(self, round: Round) -> None:
        """Store the hold with the tenant; one whose data keys are gone is being deleted already."""
        tenant = round.core.catalog.tenant(self.name)
        if tenant.id in round.core.data_keys.destroyed:
            raise Conflict("the tenant is being deleted: its data keys are destroyed", tenant=tenant.name)
        tenant.hold = Hold(self.reason, without_surrogates(self.caller.principal), round.now + round.wall)
        tenant.version += 1
        round.core.catalog.save_tenant(round.batch, tenant)
        round.log_tenant("hold_tenant", tenant, self.caller, f"version {tenant.version}: {self.reason}")


class ReleaseHold(Operation):
    """Take a tenant out of legal hold."""

    __slots__ = ("name", "reason")
    journal_op = "release_hold"

    def __init__(self, system: TenantState, caller: Caller, name: str, reason: str) -> None:
        super().__init__(system, caller)
        self.name = name
        self.reason = reason

    def execute(self, round: Round) -> None:
        """Forget the hold, and let deletions that it stopped half-way go on."""
        tenant = round.core.catalog.tenant(self.name)
        if tenant.hold is None:
            raise NotFound("the tenant is under no legal hold", tenant=tenant.name)
        tenant.hold = None
        tenant.version += 1
        round.core.catalog.save_tenant(round.batch, tenant)
        for queue in tenant.queues.values():
            if queue.status == "draining":
                round.touch(queue)
        round.log_tenant("release_hold", tenant, self.caller, f"version {tenant.version}: {self.reason}")
