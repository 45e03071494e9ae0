"""Tenants and queues: make, configure, pause, empty, delete."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from tenantq.domain.config import TenantConfig, change_queue, change_tenant
from tenantq.engine import usage
from tenantq.engine.operation import RANGE, Operation
from tenantq.engine.ops.erasure import put_erasure
from tenantq.engine.ops.import_part import forget_imports
from tenantq.engine.queue_state import NEVER, REMOVED
from tenantq.errors import Conflict, Draining, Invalid
from tenantq.journal.erasure_certificate import DestroyedKey, ErasureCertificate
from tenantq.journal.record import without_surrogates
from tenantq.store.keys import QUEUE_FAMILIES, after, tenant_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.domain.config import QueueConfig
    from tenantq.domain.message import Caller
    from tenantq.engine.queue_state import QueueState, Status, TenantState
    from tenantq.engine.round import Round
    from tenantq.engine.state import ShardState
    from tenantq.errors import TenantqError


def _shown(changes: dict[str, Any]) -> str:
    return msgspec.json.encode(changes).decode()


class PutTenant(Operation):
    """Make a tenant, or change one."""

    __slots__ = ("changes", "may_make", "name")
    journal_op = "configure_tenant"

    def __init__(
        self, system: TenantState, caller: Caller, name: str, changes: dict[str, Any], *, may_make: bool = True
    ) -> None:
        super().__init__(system, caller)
        self.may_make = may_make
        self.name = name
        self.changes = changes

    def execute(self, round: Round) -> None:
        """Reply whether the tenant is new."""
        catalog = round.core.catalog
        tenant = catalog.tenants.get(self.name)
        self.reply = tenant is None
        if tenant is not None:
            tenant.check_thawed()
        elif not self.may_make:
            raise Conflict(
                "the tenant was deleted a moment ago. Send the request again to make a new one", tenant=self.name
            )
        config = change_tenant(tenant.config if tenant is not None else TenantConfig(), self.changes)
        region = round.core.settings.region
        if config.regions and region not in config.regions:
            here = f"this server is in {region!r}" if region is not None else "this server names no region"
            raise Invalid(f"regions: no shard is in any of {', '.join(config.regions)}; {here}", tenant=self.name)
        if tenant is None:
            tenant = catalog.create_tenant(round.batch, self.name, config, round.seq)
            round.log_tenant("create_tenant", tenant, self.caller, _shown(self.changes))
            return
        tenant.config = config
        tenant.version += 1
        tenant.line.weight = config.weight
        catalog.save_tenant(round.batch, tenant)
        for queue in (*tenant.starved, *islice(tenant.queues.values(), 1)):  # so that use is held against it at once
            round.touch(queue)
        round.log_tenant("configure_tenant", tenant, self.caller, f"version {tenant.version}: {_shown(self.changes)}")


class DeleteTenant(Operation):
    """Delete a tenant and everything it has, by range. Its data keys were destroyed before, or go with it."""

    __slots__ = ("data_keys", "name", "reason")
    journal_op = "delete_tenant"
    phase = RANGE

    def __init__(
        self, system: TenantState, caller: Caller, name: str, reason: str, data_keys: tuple[DestroyedKey, ...] = ()
    ) -> None:
        super().__init__(system, caller)
        self.name = name
        self.reason = reason
        self.data_keys = data_keys

    def execute(self, round: Round) -> None:
        """Drop every row under the tenant's id; reply what was erased."""
        tenant = round.core.catalog.tenant(self.name)
        tenant.check_hold()
        self.reply = self._certificate(round, tenant)
        put_erasure(round, self.reply)
        for queue in list(tenant.queues.values()):
            _forget(round, queue)
        round.core.data_keys.drop(round.batch, tenant.id)
        round.core.access.drop_tenant(round.batch, tenant.id, tenant.name)
        _delete_range(round, tenant_prefix(tenant.id))
        forget_imports(round, tenant_prefix(tenant.id))
        tenant.gone = True
        round.core.catalog.drop_tenant(round.batch, tenant)
        round.log_tenant("delete_tenant", tenant, self.caller, self.reason)

    def _certificate(self, round: Round, tenant: TenantState) -> ErasureCertificate:
        access, queues = round.core.access, tenant.queues.values()
        return ErasureCertificate(
            id=f"{round.seq}-{tenant.id}",
            shard=round.core.shard,
            tenant=tenant.name,
            tenant_id=tenant.id,
            erased_at=round.now + round.wall,
            erased_by=without_surrogates(self.caller.principal),
            reason=self.reason,
            counts={
                "queues": len(tenant.queues),
                "messages": sum(queue.messages for queue in queues),
                "bytes": sum(queue.bytes for queue in queues),
                "keys": len(access.keys(tenant.id)),
                "grants": len(access.grants_in(tenant.name)),
            },
            data_keys=self.data_keys,
            seq=round.seq,
            link="",
        )


class PutQueue(Operation):
    """Make a queue, or change one."""

    __slots__ = ("changes", "name")
    journal_op = "configure_queue"

    def __init__(self, tenant: TenantState, caller: Caller, name: str, changes: dict[str, Any]) -> None:
        super().__init__(tenant, caller)
        self.name = name
        self.changes = changes

    def execute(self, round: Round) -> None:
        """Reply whether the queue is new."""
        queue = self.tenant.queues.get(self.name)
        self.reply = queue is None
        if self.changes.get("dead_letter") == self.name:
            raise Invalid("dead_letter: a queue cannot take its own dead letters", queue=self.name)
        if queue is None:
            self.tenant.check_thawed(self.name)
            config = change_queue(self.tenant.config.defaults, self.changes)
            round.create_queue(self.tenant, self.name, config, self.caller)
            return
        if queue.status == "draining":
            raise Draining(tenant=self.tenant.name, queue=queue.name)
        queue.check_thawed()
        queue.config = change_queue(queue.config, self.changes)
        round.core.catalog.save_queue(round.batch, queue)
        round.touch(queue)
        round.log("configure_queue", queue, self.caller, details=_shown(self.changes))


class MakeQueue(PutQueue):
    """Make a queue; one that is there stays as it is."""

    __slots__ = ()

    def execute(self, round: Round) -> None:
        """Reply whether the queue is new."""
        queue = self.tenant.queues.get(self.name)
        if queue is None or queue.status == "draining":
            super().execute(round)
        else:
            self.reply = False


class EditQueue(PutQueue):
    """Change a queue by what somebody makes of its configuration in this very round."""

    __slots__ = ("edit",)

    def __init__(
        self, tenant: TenantState, caller: Caller, name: str, edit: Callable[[QueueConfig], dict[str, Any]]
    ) -> None:
        super().__init__(tenant, caller, name, {})
        self.edit = edit

    def execute(self, round: Round) -> None:
        """Reply that the queue is not new."""
        self.changes = self.edit(round.core.catalog.queue(self.tenant, self.name).config)
        super().execute(round)


class PauseQueue(Operation):
    """Stop deliveries of a queue; adding goes on."""

    __slots__ = ("name",)
    journal_op = "pause_queue"
    status: Status = "paused"

    def __init__(self, tenant: TenantState, caller: Caller, name: str) -> None:
        super().__init__(tenant, caller)
        self.name = name

    def execute(self, round: Round) -> None:
        """Change the queue's status."""
        queue = round.core.catalog.queue(self.tenant, self.name)
        if queue.status == "draining":
            raise Draining(tenant=self.tenant.name, queue=queue.name)
        queue.check_thawed()
        queue.status = self.status
        round.core.catalog.save_queue(round.batch, queue)
        round.touch(queue)
        round.log(self.journal_op, queue, self.caller)


class ResumeQueue(PauseQueue):
    """Deliver again."""

    __slots__ = ()
    journal_op = "resume_queue"
    status = "active"


class Purge(Operation):
    """Empty a queue: messages, leases, idempotency keys and results go, in one range."""

    __slots__ = ("name", "reason")
    journal_op = "purge"
    phase = RANGE

    def __init__(self, tenant: TenantState, caller: Caller, name: str, reason: str) -> None:
        super().__init__(tenant, caller)
        self.name = name
        self.reason = reason

    def execute(self, round: Round) -> None:
        """Reply how many messages went."""
        queue = round.core.catalog.queue(self.tenant, self.name)
        self.tenant.check_hold(queue.name)
        queue.check_thawed()
        count, size = queue.messages, queue.bytes
        _delete_range(round, queue.prefix)
        round.cleared.add(queue.prefix)
        queue.clear()
        queue.next_expiry = NEVER
        queue.totals[REMOVED] += count
        round.results_ready += [(queue, id) for id in queue.result_waiters]
        round.touch(queue)
        round.log("purge", queue, self.caller, size=size, details=f"{count} messages: {self.reason}")
        self.reply = count


class DeleteQueue(Operation):
    """Begin to delete a queue: no adds, no polls; when no lease is left, or at once by force, its rows go.

    One that is frozen by itself goes by force, ``even_frozen``: thawed first, it would work until then. Of a frozen tenant none goes.
    """

    __slots__ = ("even_frozen", "force", "name", "reason")
    journal_op = "delete_queue"

    def __init__(
        self, tenant: TenantState, caller: Caller, name: str, reason: str, *, force: bool, even_frozen: bool
    ) -> None:
        super().__init__(tenant, caller)
        self.name = name
        self.reason = reason
        self.force = force
        self.even_frozen = even_frozen

    def execute(self, round: Round) -> None:
        """Mark the queue as draining; the round's end sees whether it can go."""
        queue = round.core.catalog.queue(self.tenant, self.name)
        self.tenant.check_hold(queue.name)
        self.tenant.check_thawed(queue.name)
        if not (self.force and self.even_frozen):
            queue.check_thawed()
        queue.doomed = queue.doomed or self.force
        round.touch(queue)
        if queue.status == "draining" and not self.force:
            return
        queue.status = "draining"
        round.core.catalog.save_queue(round.batch, queue)
        round.log("delete_queue", queue, self.caller, details=self.reason)
        send_polls_away(round, queue, Draining(tenant=self.tenant.name, queue=queue.name))


def puts_off_drop(tenant: TenantState) -> bool:
    """Tell whether queues that are being deleted stay for now. What is frozen by itself is deleted only on purpose."""
    return tenant.hold is not None or tenant.frozen is not None


class DropQueue(Operation):
    """Finish deleting a queue that has drained."""

    __slots__ = ("queue",)
    journal_op = "drop_queue"
    phase = RANGE

    def __init__(self, core: ShardState, queue: QueueState) -> None:
        super().__init__(queue.tenant, core.system)
        self.queue = queue
        queue.dropping = True

    def execute(self, round: Round) -> None:
        """Delete every row under the queue's prefix, counters too; a legal hold or a frozen tenant puts that off."""
        queue = self.queue
        if puts_off_drop(queue.tenant):
            queue.dropping = False
            return
        count, size = queue.messages, queue.bytes
        _forget(round, queue)
        _delete_range(round, queue.prefix)
        forget_imports(round, queue.prefix)
        round.core.catalog.drop_queue(round.batch, queue)
        round.log("drop_queue", queue, round.core.system, size=size, details=f"{count} messages")


def _delete_range(round: Round, prefix: bytes) -> None:
    round.emptied.append(prefix)
    for name in QUEUE_FAMILIES:
        round.batch.delete_range(prefix, after(prefix), round.store.family(name).handle)


def _forget(round: Round, queue: QueueState) -> None:
    """Take a queue out of everything that may still turn to it."""
    queue.status = "draining"
    queue.dropping = True
    round.cleared.add(queue.prefix)
    queue.clear()
    queue.next_expiry = NEVER
    usage.count(queue)
    round.eased[queue.tenant] = None
    queue.tenant.starved.pop(queue, None)
    if queue.timer is not None:
        queue.timer.cancel()
    round.core.hot.pop(queue, None)
    round.dirty.pop(queue, None)
    round.results_ready += [(queue, id) for id in queue.result_waiters]
    send_polls_away(round, queue, Draining(tenant=queue.tenant.name, queue=queue.name))


def send_polls_away(round: Round, queue: QueueState, error: TenantqError) -> None:
    """Answer the polls that wait for a queue with an error."""
    for poll in queue.demands:
        poll.error = error
        if poll.timer is not None:
            poll.timer.cancel()
        round.caller_ops.append(poll)
    queue.demands.clear()
