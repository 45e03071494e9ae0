"""Queues: create, change, list, pause, suspend, purge and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from tenantq.domain import limits
from tenantq.domain.config import QueueConfig
from tenantq.domain.names import check_queue_name
from tenantq.domain.validation import check_field
from tenantq.engine.ops.lifecycle import ConfigChanged, DeleteQueue, PauseQueue, Purge, PutQueue, UnpauseQueue
from tenantq.engine.ops.suspension import ResumeQueue, SuspendQueue
from tenantq.engine.restrictions import SuspensionMode
from tenantq.engine.shard import Shard
from tenantq.gates.worker_registry import WorkerEntry
from tenantq.service.admission import Admission
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.call import Call, QueueInfo
from tenantq.service.other_shards import OtherShards
from tenantq.service.request_checks import check_destroy, check_settings, page_of_names


class Queues:
    """Manages the queues of a tenant."""

    def __init__(self, shard: Shard, admission: Admission, other_shards: OtherShards) -> None:
        self._shard, self._admission, self._other_shards = shard, admission, other_shards

    async def get(self, call: Call, tenant: str | None, queue: str) -> QueueInfo:
        with await self._admission.admit_queue(call, tenant, "get_queue", queue) as admitted:
            info = self.info(admitted.tenant, queue)
            self._admission.notes.note_view(admitted.caller, admitted.tenant, "get_queue", queue=queue)
            return info

    async def list(
        self, call: Call, tenant: str | None, *, after: str | None = None, limit: int = 100
    ) -> Sequence[QueueInfo]:
        """Return a page of the tenant's queues that the caller may see, by name."""
        check_field("limit", limit, limits.PageSize)
        with await self._admission.admit(call, tenant, "list_queues") as admitted:
            allowed, principal, owner = self._admission.authorizer.allowed, admitted.principal, admitted.tenant
            self._admission.notes.note_view(admitted.caller, owner, "list_queues")
            here = self._shard.tenant(owner).queues
            others = await self._other_shards.ask_parts(admitted.state, "queue_names", owner)
            names = dict.fromkeys(chain(here, *others.values()))
            seen = [name for name in names if allowed(principal, owner, "list_queues", name)]
            page = page_of_names(seen, after, limit)
            found = [self.info(owner, name) for name in page if name in here]
            if others:
                missing = [name for name in page if name not in here]
                parts = await self._other_shards.ask_parts(admitted.state, "queue_infos", owner, missing)
                found += chain(*parts.values())
            return sorted(found, key=lambda one: one.name)

    async def workers(self, call: Call, tenant: str | None) -> Sequence[WorkerEntry]:
        """Return the workers of the queues that the caller may see."""
        with await self._admission.admit(call, tenant, "list_queues") as admitted:
            allowed, principal, owner = self._admission.authorizer.allowed, admitted.principal, admitted.tenant
            self._admission.notes.note_view(admitted.caller, owner, "list_queues", "workers")
            parts = await self._other_shards.ask_parts(admitted.state, "workers", owner)
            found = chain(self._admission.workers.of(owner), *parts.values())
            return [one for one in found if allowed(principal, owner, "list_queues", one.queue)]

    async def put(self, call: Call, tenant: str | None, queue: str, changes: dict[str, Any]) -> tuple[bool, QueueInfo]:
        """Create a queue or change its settings; return whether it is new."""
        with await self._admission.admit_queue(call, tenant, "put_queue", queue) as admitted:
            created = await self._put(admitted, queue, changes)
            return created, self.info(admitted.tenant, queue)

    async def create(self, call: Call, tenant: str | None, queue: str, settings: dict[str, Any]) -> bool:
        """Create a queue and return True, or return False and change nothing if it exists."""
        with await self._admission.admit_queue(call, tenant, "put_queue", queue) as admitted:
            return await self._put(admitted, queue, settings, only_create=True)

    async def _put(self, admitted: AdmittedCall, queue: str, changes: object, *, only_create: bool = False) -> bool:
        tenant, settings = admitted.state, check_settings(changes)
        async with self._other_shards.reserve(tenant, {"queues": queue not in tenant.queues}):
            return await self._shard.submit(PutQueue(tenant, admitted.caller, queue, settings, only_create=only_create))

    async def change(
        self, call: Call, tenant: str | None, queue: str, changes: dict[str, Any], *, expected: QueueConfig
    ) -> bool:
        """Change the settings of a queue if its configuration is still as ``expected``; return whether it was."""
        with await self._admission.admit_queue(call, tenant, "put_queue", queue) as admitted:
            settings = check_settings(changes)
            try:
                await self._shard.submit(PutQueue(admitted.state, admitted.caller, queue, settings, expected=expected))
            except ConfigChanged:
                return False
            return True

    async def pause(self, call: Call, tenant: str | None, queue: str) -> QueueInfo:
        """Stop deliveries. Messages can still be added."""
        with await self._admission.admit_queue(call, tenant, "pause_queue", queue) as admitted:
            await self._shard.submit(PauseQueue(admitted.state, admitted.caller, queue))
            return self.info(admitted.tenant, queue)

    async def unpause(self, call: Call, tenant: str | None, queue: str) -> QueueInfo:
        """Resume the deliveries of a paused queue."""
        with await self._admission.admit_queue(call, tenant, "resume_queue", queue) as admitted:
            await self._shard.submit(UnpauseQueue(admitted.state, admitted.caller, queue))
            return self.info(admitted.tenant, queue)

    async def suspend(
        self, call: Call, tenant: str, queue: str, reason: str = "", mode: SuspensionMode = "settle"
    ) -> QueueInfo:
        """Refuse adds and polls of one queue. Like the suspension of a tenant, this is an action of the platform."""
        check_queue_name(queue)
        caller = await self._admission.admit_platform(call, "suspend_tenant", tenant)
        await self._shard.submit(SuspendQueue(self._shard.tenant(tenant), caller, queue, reason, mode))
        return self.info(tenant, queue)

    async def resume(self, call: Call, tenant: str, queue: str, reason: str = "") -> QueueInfo:
        """End the suspension of a queue."""
        check_queue_name(queue)
        caller = await self._admission.admit_platform(call, "resume_tenant", tenant)
        await self._shard.submit(ResumeQueue(self._shard.tenant(tenant), caller, queue, reason))
        return self.info(tenant, queue)

    async def delete(
        self, call: Call, tenant: str | None, queue: str, *, confirm: str, reason: str, force: bool = False
    ) -> None:
        """Start to delete a queue. It is gone once its leases have settled, or at once with ``force``.

        Only the platform can delete a frozen queue, and only with ``force``.
        """
        with await self._admission.admit_queue(call, tenant, "delete_queue", queue) as admitted:
            with self._admission.notes.noting_failure(admitted.caller, admitted.tenant, "delete_queue", queue):
                check_destroy(queue, confirm, reason)
            even_frozen = admitted.principal.is_platform_admin
            await self._shard.submit(DeleteQueue(admitted.state, admitted.caller, queue, reason, force, even_frozen))

    async def purge(self, call: Call, tenant: str | None, queue: str, *, confirm: str, reason: str) -> int:
        """Remove all messages of a queue; return how many were removed."""
        with await self._admission.admit_queue(call, tenant, "purge", queue) as admitted:
            with self._admission.notes.noting_failure(admitted.caller, admitted.tenant, "purge", queue):
                check_destroy(queue, confirm, reason)
            return await self._shard.submit(Purge(admitted.state, admitted.caller, queue, reason))

    def info(self, tenant: str, queue: str) -> QueueInfo:
        """Return a queue of this shard."""
        stats = self._shard.reads.stats(tenant, queue)
        state = self._shard.tenant(tenant).queues[queue]
        return QueueInfo(tenant, queue, state.id, state.config, stats, state.suspension)
