"""Suspending a tenant or a queue, in one of three ways, and letting it work again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.engine.operation import Operation
from tenantq.engine.ops.lifecycle import send_polls_away
from tenantq.engine.queue_state import Suspension, queue_suspended
from tenantq.errors import Conflict, Draining, Suspended
from tenantq.journal.record import without_surrogates

if TYPE_CHECKING:
    from tenantq.domain.message import Caller
    from tenantq.engine.queue_state import SuspensionMode, TenantState
    from tenantq.engine.round import Round


def _suspension(
    round: Round, caller: Caller, mode: SuspensionMode, reason: str, before: Suspension | None
) -> Suspension:
    """Return a suspension from now on; what is frozen already has been so since it was, whatever the reason is now."""
    at, seq, engine_ms = round.now + round.wall, round.seq, round.now
    if before is not None and before.mode == mode == "freeze":
        at, seq, engine_ms = before.at, before.seq, before.engine_ms
    return Suspension(mode, reason, without_surrogates(caller.principal), at, seq, engine_ms)


def _check_change(
    before: Suspension | None, mode: SuspensionMode, way_out: str, tenant: str, queue: str | None
) -> None:
    """Raise Conflict where another mode would end what is frozen or filled, and its reason, which a move goes on by."""
    if before is not None and before.mode not in {"settle", mode}:
        why = f" ({before.reason})" if before.reason else ""
        raise Conflict(
            f"it is suspended with mode {before.mode}{why}, which mode {mode} would end: {way_out} it first",
            tenant=tenant,
            queue=queue,
        )


class SuspendTenant(Operation):
    """Take no new messages of a tenant and hand none out."""

    __slots__ = ("mode", "name", "reason")
    journal_op = "suspend_tenant"

    def __init__(self, system: TenantState, caller: Caller, name: str, reason: str, mode: SuspensionMode) -> None:
        super().__init__(system, caller)
        self.name = name
        self.reason = reason
        self.mode: SuspensionMode = mode

    def execute(self, round: Round) -> None:
        """Change the tenant's status, send its waiting polls away, and have its queues looked at again."""
        tenant = round.core.catalog.tenant(self.name)
        _check_change(tenant.suspension, self.mode, "resume", tenant.name, None)
        tenant.status = "suspended"
        if tenant.frozen is None or self.mode != "freeze":  # another reason alone leaves exports the same
            tenant.version += 1
        tenant.suspension = _suspension(round, self.caller, self.mode, self.reason, tenant.suspension)
        round.core.catalog.save_tenant(round.batch, tenant)
        for queue in tenant.queues.values():
            send_polls_away(round, queue, Suspended(tenant=tenant.name, queue=queue.name))
            round.touch(queue)
        told = self.reason if self.mode == "settle" else f"{self.mode}: {self.reason}"
        round.log_tenant("suspend_tenant", tenant, self.caller, told)


class ResumeTenant(Operation):
    """Serve a suspended tenant again."""

    __slots__ = ("name", "reason")
    journal_op = "resume_tenant"

    def __init__(self, system: TenantState, caller: Caller, name: str, reason: str) -> None:
        super().__init__(system, caller)
        self.name = name
        self.reason = reason

    def execute(self, round: Round) -> None:
        """Change the tenant's status, and have its queues looked at again: leases and lifetimes that are over end now."""
        tenant = round.core.catalog.tenant(self.name)
        tenant.status, tenant.suspension = "active", None
        tenant.version += 1
        round.core.catalog.save_tenant(round.batch, tenant)
        for queue in tenant.queues.values():
            round.touch(queue)
        round.log_tenant("resume_tenant", tenant, self.caller, self.reason)


class SuspendQueue(Operation):
    """Take no new messages of one queue and hand none out."""

    __slots__ = ("mode", "name", "reason")
    journal_op = "suspend_queue"

    def __init__(self, tenant: TenantState, caller: Caller, name: str, reason: str, mode: SuspensionMode) -> None:
        super().__init__(tenant, caller)
        self.name = name
        self.reason = reason
        self.mode: SuspensionMode = mode

    def execute(self, round: Round) -> None:
        """Note it with the queue, and send its waiting polls away."""
        queue = round.core.catalog.queue(self.tenant, self.name)
        if queue.status == "draining":
            raise Draining(tenant=self.tenant.name, queue=queue.name)
        _check_change(queue.suspension, self.mode, "reopen", self.tenant.name, queue.name)
        queue.suspension = _suspension(round, self.caller, self.mode, self.reason, queue.suspension)
        round.core.catalog.save_queue(round.batch, queue)
        send_polls_away(round, queue, queue_suspended(queue))
        round.touch(queue)
        round.log("suspend_queue", queue, self.caller, details=f"{self.mode}: {self.reason}")


class ReopenQueue(Operation):
    """Let a suspended queue work again; whether it is paused stays as it is."""

    __slots__ = ("name", "reason")
    journal_op = "reopen_queue"

    def __init__(self, tenant: TenantState, caller: Caller, name: str, reason: str) -> None:
        super().__init__(tenant, caller)
        self.name = name
        self.reason = reason

    def execute(self, round: Round) -> None:
        """Forget the suspension, and have the queue looked at again."""
        queue = round.core.catalog.queue(self.tenant, self.name)
        queue.suspension = None
        round.core.catalog.save_queue(round.batch, queue)
        round.touch(queue)
        round.log("reopen_queue", queue, self.caller, details=self.reason)
