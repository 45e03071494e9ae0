"""Suspend tenants and queues, in one of three modes, and resume them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tenantq.domain.message import Caller
from tenantq.engine.arguments import QueueArgument, ReasonArgument
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.engine.ops.lifecycle import end_polls
from tenantq.engine.queue_state import TenantState, queue_suspended
from tenantq.engine.restrictions import Suspension, SuspensionMode
from tenantq.errors import Conflict, Draining
from tenantq.journal.record import without_surrogates


def _suspension(
    effects: Effects, caller: Caller, mode: SuspensionMode, reason: str, before: Suspension | None
) -> Suspension:
    """Return a suspension that starts now. A second freeze keeps the start of the first."""
    at, seq, engine_ms = effects.now + effects.wall, effects.seq, effects.now
    if before is not None and before.mode == mode == "freeze":
        at, seq, engine_ms = before.at, before.seq, before.engine_ms
    return Suspension(mode, reason, without_surrogates(caller.principal), at, seq, engine_ms)


def _check_change(before: Suspension | None, mode: SuspensionMode, remedy: str, tenant: str, queue: str | None) -> None:
    """Raise Conflict if another mode would end a freeze or fill: a move relies on it and on its reason."""
    if before is not None and before.mode not in {"settle", mode}:
        why = f" ({before.reason})" if before.reason else ""
        raise Conflict(
            f"it is suspended with mode {before.mode}{why}, which mode {mode} would end: {remedy} it first",
            tenant=tenant,
            queue=queue,
        )


def _suspend(effects: Effects, tenant: TenantState, caller: Caller, mode: SuspensionMode, reason: str) -> None:
    """Change the tenant's status, end its waiting polls, and have its queues re-examined."""
    tenant.status = "suspended"
    if tenant.frozen is None or mode != "freeze":  # another reason alone leaves exports the same
        tenant.version += 1
    tenant.suspension = _suspension(effects, caller, mode, reason, tenant.suspension)
    effects.state.catalog.save_tenant(effects.batch, tenant)
    for queue in tenant.queues.values():
        end_polls(effects, queue.demands, tenant.suspended(queue.name))
        effects.touch(queue)
    end_polls(effects, effects.state.early_polls.pop(tenant, deque()), tenant.suspended())


def resume(effects: Effects, tenant: TenantState) -> None:
    """Change the tenant's status, and have its queues re-examined: leases and lifetimes that are over end now."""
    tenant.status, tenant.suspension = "active", None
    tenant.version += 1
    effects.state.catalog.save_tenant(effects.batch, tenant)
    for queue in tenant.queues.values():
        effects.touch(queue)


def freeze(effects: Effects, tenant: TenantState, caller: Caller, reason: str) -> None:
    """Freeze a tenant. This replaces any other suspension."""
    _suspend(effects, tenant, caller, "freeze", reason)


@dataclass(eq=False)
class SuspendTenant(Operation[None]):
    """Refuse adds and polls of a tenant. Suspension says what each mode still allows."""

    name: str
    reason: ReasonArgument = ""
    mode: SuspensionMode = "settle"
    journal_op = "suspend_tenant"

    def execute(self, effects: Effects) -> None:
        """Suspend the tenant. Raises Conflict if a move or a deletion relies on its current suspension."""
        tenant = effects.state.catalog.tenant(self.name)
        tenant.check_not_erasing()
        _check_change(tenant.suspension, self.mode, "resume", tenant.name, None)
        _suspend(effects, tenant, self.caller, self.mode, self.reason)
        details = self.reason if self.mode == "settle" else f"{self.mode}: {self.reason}"
        effects.log_tenant("suspend_tenant", tenant, self.caller, details)


@dataclass(eq=False)
class ResumeTenant(Operation[None]):
    """Serve a suspended tenant again."""

    name: str
    reason: ReasonArgument = ""
    journal_op = "resume_tenant"

    def execute(self, effects: Effects) -> None:
        """Resume the tenant. Raises Conflict if it is being deleted."""
        tenant = effects.state.catalog.tenant(self.name)
        tenant.check_not_erasing()
        resume(effects, tenant)
        effects.log_tenant("resume_tenant", tenant, self.caller, self.reason)


@dataclass(eq=False)
class SuspendQueue(Operation[None]):
    """Refuse adds and polls of one queue. Suspension says what each mode still allows."""

    name: QueueArgument
    reason: ReasonArgument = ""
    mode: SuspensionMode = "settle"
    journal_op = "suspend_queue"

    def execute(self, effects: Effects) -> None:
        """Store the suspension with the queue, and end its waiting polls."""
        queue = effects.state.catalog.queue(self.tenant, self.name)
        if queue.status == "draining":
            raise Draining(tenant=self.tenant.name, queue=queue.name)
        _check_change(queue.suspension, self.mode, "reopen", self.tenant.name, queue.name)
        queue.suspension = _suspension(effects, self.caller, self.mode, self.reason, queue.suspension)
        effects.state.catalog.save_queue(effects.batch, queue)
        end_polls(effects, queue.demands, queue_suspended(queue))
        effects.touch(queue)
        effects.log("suspend_queue", queue, self.caller, details=f"{self.mode}: {self.reason}")


@dataclass(eq=False)
class ResumeQueue(Operation[None]):
    """End the suspension of a queue. A paused queue stays paused."""

    name: QueueArgument
    reason: ReasonArgument = ""
    journal_op = "reopen_queue"

    def execute(self, effects: Effects) -> None:
        """Remove the suspension, and have the queue re-examined."""
        queue = effects.state.catalog.queue(self.tenant, self.name)
        queue.suspension = None
        effects.state.catalog.save_queue(effects.batch, queue)
        effects.touch(queue)
        effects.log("reopen_queue", queue, self.caller, details=self.reason)
