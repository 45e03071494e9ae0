"""Tenants and queues: create, configure, pause, purge, delete."""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from tenantq.domain.config import QueueConfig, TenantConfig, change_config
from tenantq.domain.message import SYSTEM
from tenantq.domain.plans import PLANS, PlanSettings
from tenantq.engine import spread_rules
from tenantq.engine.arguments import QueueArgument, ReasonArgument, TenantArgument
from tenantq.engine.effects import Effects
from tenantq.engine.level import NEVER
from tenantq.engine.operation import RANGE, Operation
from tenantq.engine.ops.erasure import put_erasure
from tenantq.engine.ops.import_part import forget_imports
from tenantq.engine.queue_groups import forget_units, save_part
from tenantq.engine.queue_state import QueueState, Status, TenantState, WaitingPoll
from tenantq.engine.work_counters import REMOVED
from tenantq.errors import Conflict, Draining, Invalid, TenantqError, no_tenant
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.journal.record import without_surrogates
from tenantq.store.keys import QUEUE_FAMILIES, after, tenant_prefix


def _shown(changes: dict[str, Any]) -> str:
    return msgspec.json.encode(changes).decode()


@dataclass(eq=False)
class PutTenant(Operation[bool]):
    """Create a tenant, or change one. Replies whether it is new."""

    name: TenantArgument
    changes: dict[str, Any]  # settings, and a reason that is only journaled
    may_create: bool = True
    plans: PlanSettings | None = None  # None: new tenants get no plan
    journal_op = "configure_tenant"

    def execute(self, effects: Effects) -> None:
        """Write the tenant's row. Raises Conflict if the tenant is new and ``may_create`` is false."""
        catalog = effects.state.catalog
        tenant = catalog.tenants.get(self.name)
        self.reply = tenant is None
        if tenant is not None:
            tenant.check_thawed()
        elif catalog.is_in_transit(self.name) or (self.name in catalog.moved and not self.may_create):
            raise catalog.missing(self.name)
        elif not self.may_create:
            raise deleted_just_now(self.name)
        changes = self.changes
        if tenant is None and self.plans is not None:
            changes = {"plan": self.plans.default, **changes}
        plans = self.plans or PLANS
        settings = {name: one for name, one in changes.items() if name != "reason"}
        config = plans.change(tenant.config if tenant is not None else TenantConfig(), settings)
        region = effects.state.settings.region
        if config.regions and region not in config.regions:
            here = f"this server is in {region!r}" if region is not None else "this server has no region"
            raise Invalid(f"regions: no shard is in any of {', '.join(config.regions)}; {here}", tenant=self.name)
        if tenant is None:
            tenant = catalog.create_tenant(effects.batch, self.name, config, effects.seq)
            effects.log_tenant("create_tenant", tenant, self.caller, _shown(plans.shown(changes)))
            return
        if tenant.part is not None:
            spread_rules.check_config(tenant, config)
            if tenant.part.change_limits(tenant.config.quotas, config.quotas):
                save_part(effects.batch, effects.store, tenant)
        tenant.config = config
        tenant.version += 1
        tenant.line.weight = config.weight
        catalog.save_tenant(effects.batch, tenant)
        for queue in (
            *tenant.starved,
            *islice(tenant.queues.values(), 1),
        ):  # so that their quotas are checked in this round
            effects.touch(queue)
        effects.log_tenant(
            "configure_tenant", tenant, self.caller, f"version {tenant.version}: {_shown(plans.shown(changes))}"
        )


def deleted_just_now(tenant: str) -> Conflict:
    """Return the error for a call that would create a tenant on a shard where it no longer belongs."""
    return Conflict("the tenant was deleted a moment ago. Send the request again to create a new one.", tenant=tenant)


class ConfigChanged(Conflict):
    """The configuration of the queue has changed."""


class SpreadBegun(Conflict):
    """The tenant has been spread over shards meanwhile."""


@dataclass(eq=False)
class DeleteTenant(Operation[ErasureCertificate]):
    """Delete a tenant and everything it has, by range. Replies what was erased."""

    name: str
    reason: str
    is_spread: bool = False  # its parts on other shards are deleted, and there can be no new ones
    journal_op = "delete_tenant"
    phase = RANGE

    def execute(self, effects: Effects) -> None:
        """Delete all rows of the tenant. Raises SpreadBegun if it has been spread over shards meanwhile."""
        tenant = effects.state.catalog.tenant(self.name)
        tenant.check_hold()
        if tenant.part is not None and not self.is_spread:
            raise SpreadBegun(tenant=tenant.name)
        self.reply = self._certificate(effects, tenant)
        put_erasure(effects, self.reply)
        for queue in list(tenant.queues.values()):
            forget_queue(effects, queue, Draining(tenant=tenant.name, queue=queue.name))
        early = effects.state.early_polls.pop(tenant, deque())
        end_polls(effects, early, no_tenant(tenant.name))
        delete_rows(effects, tenant.id, tenant.name)
        if tenant.part is not None:
            forget_units(effects.state.catalog, effects.batch, tenant)
        tenant.gone = True
        effects.state.catalog.drop_tenant(effects.batch, tenant)
        effects.log_tenant("delete_tenant", tenant, self.caller, self.reason)

    def _certificate(self, effects: Effects, tenant: TenantState) -> ErasureCertificate:
        access, queues = effects.state.access, tenant.queues.values()
        return ErasureCertificate(
            id=f"{effects.seq}-{tenant.id}",
            shard=effects.state.shard,
            tenant=tenant.name,
            tenant_id=tenant.id,
            erased_at=effects.now + effects.wall,
            erased_by=without_surrogates(self.caller.principal),
            reason=self.reason,
            counts={
                "queues": len(tenant.queues),
                "messages": sum(queue.messages for queue in queues),
                "bytes": sum(queue.bytes for queue in queues),
                "keys": len(access.keys(tenant.id)),
                "grants": len(access.grants_in(tenant.name)),
            },
            data_keys=tenant.erasing.data_keys if tenant.erasing is not None else (),
            seq=effects.seq,
            link="",
        )


@dataclass(eq=False)
class PutQueue(Operation[bool]):
    """Create a queue, or change one. Replies whether it is new."""

    name: QueueArgument
    changes: dict[str, Any] = field(default_factory=dict)
    only_create: bool = False  # leave an existing queue as it is
    expected: QueueConfig | None = None  # change only an existing queue that has this configuration
    journal_op = "configure_queue"

    def execute(self, effects: Effects) -> None:
        """Write the queue's row. Raises NotFound or ConfigChanged if it is not as expected."""
        expected = self.expected
        if expected is not None and effects.state.catalog.queue(self.tenant, self.name).config != expected:
            raise ConfigChanged(tenant=self.tenant.name, queue=self.name)
        queue = self.tenant.queues.get(self.name)
        self.reply = queue is None
        if self.only_create and queue is not None and queue.status != "draining":
            return
        if self.changes.get("dead_letter") == self.name:
            raise Invalid("dead_letter: a queue cannot take its own dead letters", queue=self.name)
        if queue is None:
            self.tenant.check_thawed(self.name)
            config = change_config(self.tenant.config.defaults, self.changes)
            effects.create_queue(self.tenant, self.name, config, self.caller)
            return
        if queue.status == "draining":
            raise Draining(tenant=self.tenant.name, queue=queue.name)
        queue.check_thawed()
        config = change_config(queue.config, self.changes)
        spread_rules.check_queue(self.tenant, self.name, config.dead_letter)
        queue.config = config
        effects.state.catalog.save_queue(effects.batch, queue)
        effects.touch(queue)
        effects.log("configure_queue", queue, self.caller, details=_shown(self.changes))


@dataclass(eq=False)
class PauseQueue(Operation[None]):
    """Stop deliveries of a queue. Adds continue, and waiting polls keep waiting."""

    name: QueueArgument
    journal_op = "pause_queue"

    def execute(self, effects: Effects) -> None:
        _set_status(effects, self, "paused")


@dataclass(eq=False)
class UnpauseQueue(Operation[None]):
    """Deliver messages of a paused queue again."""

    name: QueueArgument
    journal_op = "resume_queue"

    def execute(self, effects: Effects) -> None:
        _set_status(effects, self, "active")


def _set_status(effects: Effects, step: PauseQueue | UnpauseQueue, status: Status) -> None:
    queue = effects.state.catalog.queue(step.tenant, step.name)
    if queue.status == "draining":
        raise Draining(tenant=step.tenant.name, queue=queue.name)
    queue.check_thawed()
    queue.status = status
    effects.state.catalog.save_queue(effects.batch, queue)
    effects.touch(queue)
    effects.log(step.journal_op, queue, step.caller)


@dataclass(eq=False)
class Purge(Operation[int]):
    """Delete a queue's messages, leases, idempotency keys and results by range. Replies how many messages it had."""

    name: QueueArgument
    reason: ReasonArgument = ""
    journal_op = "purge"
    phase = RANGE

    def execute(self, effects: Effects) -> None:
        queue = effects.state.catalog.queue(self.tenant, self.name)
        self.tenant.check_hold(queue.name)
        queue.check_thawed()
        count, size = queue.messages, queue.bytes
        delete_range(effects, queue.prefix)
        effects.cleared.add(queue.prefix)
        queue.clear()
        queue.next_expiry = NEVER
        queue.work.totals[REMOVED] += count
        effects.results_ready += [(queue, id) for id in queue.result_waiters]
        effects.touch(queue)
        effects.log("purge", queue, self.caller, size=size, details=f"{count} messages: {self.reason}")
        self.reply = count


@dataclass(eq=False)
class DeleteQueue(Operation[None]):
    """Start to delete a queue: it refuses adds and polls, and its rows are deleted when no lease is left, or immediately with ``force``.

    A queue frozen by itself is deleted with ``force`` and ``even_frozen``: if it were thawed first, it would work until
    then. A queue of a frozen tenant is not deleted.
    """

    name: QueueArgument
    reason: ReasonArgument = ""
    force: bool = False
    even_frozen: bool = False
    journal_op = "delete_queue"

    def execute(self, effects: Effects) -> None:
        """Mark the queue as draining. The end of the round checks whether it can be deleted."""
        queue = effects.state.catalog.queue(self.tenant, self.name)
        self.tenant.check_hold(queue.name)
        self.tenant.check_thawed(queue.name)
        if not (self.force and self.even_frozen):
            queue.check_thawed()
        queue.doomed = queue.doomed or self.force
        effects.touch(queue)
        if queue.status == "draining" and not self.force:
            return
        queue.status = "draining"
        effects.state.catalog.save_queue(effects.batch, queue)
        effects.log("delete_queue", queue, self.caller, details=self.reason)
        end_polls(effects, queue.demands, Draining(tenant=self.tenant.name, queue=queue.name))


def defers_drop(tenant: TenantState) -> bool:
    """Return whether queues of the tenant that are being deleted must stay for now."""
    return tenant.hold is not None or tenant.frozen is not None


class DropQueue(Operation[None]):
    """Finish deleting a queue that has drained."""

    journal_op = "drop_queue"
    phase = RANGE

    def __init__(self, queue: QueueState) -> None:
        super().__init__(queue.tenant, SYSTEM)
        self.queue = queue
        queue.dropping = True

    def execute(self, effects: Effects) -> None:
        """Delete every row under the queue's prefix, counters too. A legal hold or a frozen tenant defers that."""
        queue = self.queue
        if defers_drop(queue.tenant):
            queue.dropping = False
            return
        count, size = queue.messages, queue.bytes
        forget_queue(effects, queue, Draining(tenant=queue.tenant.name, queue=queue.name))
        delete_range(effects, queue.prefix)
        forget_imports(effects, queue.prefix)
        effects.state.redrives.delete_rows(effects.batch, queue.prefix)
        effects.state.catalog.drop_queue(effects.batch, queue)
        effects.log("drop_queue", queue, effects.state.system, size=size, details=f"{count} messages")


def delete_range(effects: Effects, prefix: bytes) -> None:
    """Delete all rows of a queue or a tenant."""
    effects.emptied.append(prefix)
    for name in QUEUE_FAMILIES:
        effects.batch.delete_range(prefix, after(prefix), effects.store.family(name).handle)


def delete_rows(effects: Effects, tenant_id: int, name: str) -> None:
    """Delete all rows of a tenant, except those of the catalog."""
    effects.state.data_keys.drop(effects.batch, tenant_id)
    effects.state.access.drop_tenant(effects.batch, tenant_id, name)
    effects.state.templates.drop_tenant(effects.batch, tenant_id)
    delete_range(effects, tenant_prefix(tenant_id))
    forget_imports(effects, tenant_prefix(tenant_id))
    effects.state.redrives.delete_rows(effects.batch, tenant_prefix(tenant_id))


def forget_queue(effects: Effects, queue: QueueState, error: TenantqError) -> None:
    """Remove a queue from everything that refers to it. Its waiting polls get the error."""
    effects.state.damaged.pop(queue, None)
    effects.state.redrives.forget(queue)
    queue.status = "draining"
    queue.dropping = True
    effects.cleared.add(queue.prefix)
    queue.clear()
    queue.next_expiry = NEVER
    queue.count_usage()
    effects.eased[queue.tenant] = None
    queue.tenant.starved.pop(queue, None)
    if queue.timer is not None:
        queue.timer.cancel()
    effects.state.queues_to_match.pop(queue, None)
    effects.dirty.pop(queue, None)
    effects.results_ready += [(queue, id) for id in queue.result_waiters]
    end_polls(effects, queue.demands, error)


def end_polls(effects: Effects, demands: deque[WaitingPoll], error: TenantqError) -> None:
    """Answer waiting polls with an error, or with the messages that they have already."""
    for poll in demands:
        poll.reply, poll.error = poll.got, None if poll.got else error
        if poll.timer is not None:
            poll.timer.cancel()
        effects.answered.append(poll)
    demands.clear()
