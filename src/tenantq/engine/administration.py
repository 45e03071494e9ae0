# ruff: noqa: D102, FBT001, FBT002
# mypy: disable-error-code="no-any-return"
"""Former methods of a shard, kept until their callers use ``submit`` and the shard's collaborators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenantq.domain.message import LOCAL, SYSTEM, Caller, Facts, Page, QueueStats, Result
from tenantq.engine.ops.access import DropGrant, NoteEntries, NoteKeyUse, PutGrant, PutKey, RevokeKey, RevokeToken
from tenantq.engine.ops.data_keys import PutDataKey, ReplaceDataKey
from tenantq.engine.ops.erasure import CertifyErasure
from tenantq.engine.ops.hold import HoldTenant, ReleaseHold
from tenantq.engine.ops.import_part import ImportedPart, ImportPart, last_imported_part
from tenantq.engine.ops.lifecycle import DeleteQueue, EditQueue, PauseQueue, Purge, PutQueue, PutTenant, UnpauseQueue
from tenantq.engine.ops.suspension import ResumeQueue, ResumeTenant, SuspendQueue, SuspendTenant
from tenantq.engine.recount import TenantRecount

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from tenantq.domain.config import QueueConfig, TenantConfig
    from tenantq.engine.access_store import AccessStore
    from tenantq.engine.ops.redrive import RedriveTask
    from tenantq.engine.queue_snapshots import SnapshotFacts
    from tenantq.engine.queue_state import TenantState
    from tenantq.engine.state import ShardState
    from tenantq.engine.tenant_snapshot import TenantSnapshot
    from tenantq.journal.erasure_certificate import DestroyedKey, ErasureCertificate
    from tenantq.journal.record import JournalRow
    from tenantq.runtime.histogram import Histogram


class FormerMethods:
    """The former names."""

    @property
    def core(self: Any) -> ShardState:
        return self.state

    async def put_tenant(
        self: Any, name: str, caller: Caller = LOCAL, may_make: bool = True, /, **changes: Any
    ) -> bool:
        return await self.submit(PutTenant(self.state.platform, caller, name, changes, may_make))

    def key_fingerprints(self: Any, tenant_id: int) -> tuple[DestroyedKey, ...]:
        return self.erasure.key_fingerprints(tenant_id)

    async def delete_tenant(
        self: Any, name: str, *, reason: str = "", caller: Caller = LOCAL, destroyed: Any = None
    ) -> ErasureCertificate:
        return await self.erasure.delete_tenant(name, reason=reason, caller=caller, destroyed=destroyed)

    async def erase_bytes(self: Any, tenant_id: int) -> None:
        await self.erasure.erase_bytes(tenant_id)

    async def certify_erasure(self: Any, certificate: ErasureCertificate, caller: Caller = SYSTEM) -> None:
        await self.submit(CertifyErasure(self.state.platform, caller, certificate))

    def erasures(self: Any) -> list[ErasureCertificate]:
        return self.erasure.certificates()

    def tenants(self: Any) -> dict[str, TenantConfig]:
        return {name: tenant.config for name, tenant in self.state.catalog.tenants.items()}

    async def put_queue(self: Any, tenant: str, name: str, caller: Caller = LOCAL, /, **changes: Any) -> bool:
        return await self.submit(PutQueue(self.tenant(tenant), caller, name, changes))

    async def make_queue(self: Any, tenant: str, name: str, caller: Caller = LOCAL, /, **settings: Any) -> bool:
        return await self.submit(PutQueue(self.tenant(tenant), caller, name, settings, only_create=True))

    async def edit_queue(self: Any, tenant: str, name: str, edit: Any, caller: Caller = LOCAL) -> None:
        await self.submit(EditQueue(self.tenant(tenant), caller, name, edit=edit))

    def queues(self: Any, tenant: str) -> dict[str, QueueConfig]:
        return {name: queue.config for name, queue in self.tenant(tenant).queues.items()}

    async def pause_queue(self: Any, tenant: str, name: str, caller: Caller = LOCAL) -> None:
        await self.submit(PauseQueue(self.tenant(tenant), caller, name))

    async def resume_queue(self: Any, tenant: str, name: str, caller: Caller = LOCAL) -> None:
        await self.submit(UnpauseQueue(self.tenant(tenant), caller, name))

    async def delete_queue(
        self: Any,
        tenant: str,
        name: str,
        *,
        force: bool = False,
        even_frozen: bool = False,
        reason: str = "",
        caller: Caller = LOCAL,
    ) -> None:
        await self.submit(DeleteQueue(self.tenant(tenant), caller, name, reason, force, even_frozen))

    async def suspend_tenant(
        self: Any, name: str, *, reason: str = "", mode: Any = "settle", caller: Caller = LOCAL
    ) -> None:
        self.tenant(name)
        await self.submit(SuspendTenant(self.state.platform, caller, name, reason, mode))

    async def suspend_queue(
        self: Any, tenant: str, name: str, *, reason: str = "", mode: Any = "settle", caller: Caller = LOCAL
    ) -> None:
        await self.submit(SuspendQueue(self.tenant(tenant), caller, name, reason, mode))

    async def reopen_queue(self: Any, tenant: str, name: str, *, reason: str = "", caller: Caller = LOCAL) -> None:
        await self.submit(ResumeQueue(self.tenant(tenant), caller, name, reason))

    async def resume_tenant(self: Any, name: str, *, reason: str = "", caller: Caller = LOCAL) -> None:
        self.tenant(name)
        await self.submit(ResumeTenant(self.state.platform, caller, name, reason))

    async def hold_tenant(self: Any, name: str, *, reason: str, caller: Caller = LOCAL) -> None:
        self.tenant(name)
        await self.submit(HoldTenant(self.state.platform, caller, name, reason))

    async def release_hold(self: Any, name: str, *, reason: str, caller: Caller = LOCAL) -> None:
        self.tenant(name)
        await self.submit(ReleaseHold(self.state.platform, caller, name, reason))

    def tenants_served(self: Any) -> Mapping[str, TenantState]:
        return self.state.catalog.tenants

    def tenant_state(self: Any, name: str) -> TenantState:
        return self.tenant(name)

    def usage(self: Any, name: str) -> dict[str, int]:
        self.loop.check_open()
        return self.tenant(name).usage.used(self.wall_ms())

    def wall_ms(self: Any) -> int:
        return self.state.wall_ms()

    def engine_ms(self: Any) -> int:
        return self.state.shard_clock.now_ms()

    def new_ids(self: Any, count: int) -> list[bytes]:
        self.loop.check_open()
        return self.state.ids.take(self.state.shard_clock.now_ms(), count)

    def recount(self: Any, name: str, rows_max: int) -> TenantRecount | None:
        self.loop.check_open()
        tenant = self.state.catalog.tenants.get(name)
        return TenantRecount(self.state, tenant, rows_max) if tenant is not None else None

    @property
    def access(self: Any) -> AccessStore:
        return self.state.access

    async def put_key(self: Any, key: Any, caller: Caller = LOCAL) -> None:
        await self.submit(PutKey(self.owner(key.tenant), caller, key))

    async def revoke_key(self: Any, tenant: str | None, key_id: str, caller: Caller = LOCAL) -> None:
        await self.submit(RevokeKey(self.owner(tenant), caller, key_id))

    async def put_grant(self: Any, tenant: str, principal: str, grant: Any, caller: Caller = LOCAL) -> None:
        await self.submit(PutGrant(self.owner(tenant), caller, principal, grant))

    async def delete_grant(self: Any, tenant: str, principal: str, caller: Caller = LOCAL) -> None:
        await self.submit(DropGrant(self.owner(tenant), caller, principal))

    async def revoke_token(
        self: Any, tenant: str | None, *, token_id: Any, principal: Any, until: int, caller: Caller = LOCAL
    ) -> None:
        await self.submit(RevokeToken(self.owner(tenant), caller, token_id, principal, until))

    async def note_key_use(self: Any, uses: Any) -> None:
        if uses:
            await self.submit(NoteKeyUse(self.state.platform, SYSTEM, uses))

    async def note_entries(self: Any, entries: Any) -> None:
        if entries:
            await self.submit(NoteEntries(self.state.platform, SYSTEM, entries))

    @property
    def data_keys(self: Any) -> Mapping[int, Mapping[int, bytes]]:
        return self.state.data_keys.by_tenant

    @property
    def destroyed_data_keys(self: Any) -> set[int]:
        return self.state.data_keys.destroyed

    async def put_data_key(
        self: Any, tenant_id: int, number: int, value: bytes, *, details: str = "", caller: Caller = SYSTEM
    ) -> bool:
        tenant = self.state.catalog.tenant_by_id(tenant_id)
        return await self.submit(PutDataKey(tenant, caller, number, value, details))

    async def replace_data_key(
        self: Any, tenant_id: int, number: int, old: bytes, new: bytes, *, details: str = "", caller: Caller = SYSTEM
    ) -> bool:
        tenant = self.state.catalog.tenant_by_id(tenant_id)
        return await self.submit(ReplaceDataKey(tenant, caller, number, old, new, details))

    async def drop_data_keys(self: Any, tenant_id: int, *, reason: str = "", caller: Caller = SYSTEM) -> int:
        return await self.erasure.drop_data_keys(tenant_id, reason=reason, caller=caller)

    @property
    def journal_span(self: Any) -> tuple[int, int]:
        return self.journal.span

    @property
    def shard_name(self: Any) -> str:
        return self.name

    @property
    def durability(self: Any) -> str:
        return self.settings.durability

    @property
    def journal_synced(self: Any) -> tuple[int, int]:
        return self.journal.synced_span

    @property
    def journal_bytes(self: Any) -> int:
        return self.journal.size

    def journal_link(self: Any, seq: int) -> bytes:
        return self.journal.link(seq)

    def last_checkpoint(self: Any) -> int:
        return self.journal.last_checkpoint()

    def read_checkpoints(self: Any, first_seq: int) -> list[tuple[int, bytes]]:
        return self.journal.checkpoints(first_seq)

    async def put_checkpoint(self: Any, key: Any) -> None:
        await self.journal.sign(key)

    def journal_link_if_kept(self: Any, seq: int) -> bytes | None:
        return self.journal.link_if_kept(seq)

    async def trim_journal(self: Any, upto_seq: int) -> None:
        await self.journal.trim(upto_seq)

    def scan_journal(self: Any, first_seq: int, last_seq: int, limit: int) -> list[tuple[int, bytes]]:
        return self.journal.scan(first_seq, last_seq, limit)

    async def snapshot(self: Any, tenant: str, queue: str | None = None) -> TenantSnapshot:
        return await self.snapshots.of_tenant(tenant, queue)

    async def take_in(
        self: Any,
        tenant: str,
        queue: str,
        export: bytes,
        part: int,
        messages: Any,
        results: Any,
        caller: Caller = LOCAL,
        idempotency: Any = (),
    ) -> ImportedPart:
        return await self.submit(
            ImportPart(self.tenant(tenant), caller, queue, export, part, messages, results, idempotency)
        )

    def taken_part(self: Any, tenant: str, queue: str, export: bytes) -> int:
        self.loop.check_open()
        return last_imported_part(self.state.store, self.state.queue(tenant, queue), export)

    async def all_synced(self: Any) -> None:
        await self.loop.synced()

    async def finished(self: Any, task: RedriveTask) -> None:
        await task.ended.wait()
        await self.loop.synced()

    def stats(self: Any, tenant: str, queue: str) -> QueueStats:
        return self.reads.stats(tenant, queue)

    async def get(self: Any, tenant: str, queue: str, id: str | bytes) -> Facts:
        return await self.reads.get(tenant, queue, id)

    async def peek(self: Any, tenant: str, queue: str, *, limit: int = 10, cursor: str | None = None) -> Page:
        return await self.reads.peek(tenant, queue, limit=limit, cursor=cursor)

    async def result(self: Any, tenant: str, queue: str, id: str | bytes, *, wait_ms: int = 0) -> Result:
        return await self.reads.result(tenant, queue, id, wait_ms=wait_ms)

    async def trace(self: Any, tenant: str, queue: str, id: str | bytes) -> list[JournalRow]:
        return await self.reads.trace(tenant, queue, id)

    async def open_snapshot(
        self: Any, tenant: str, queue: str, *, keep_ms: int = 60_000, part_messages: int | None = None
    ) -> SnapshotFacts:
        return await self.snapshots.open(tenant, queue, keep_ms=keep_ms, part_messages=part_messages)

    def read_snapshot(
        self: Any, tenant: str, queue: str, id: str, *, start: str | None = None, end: Any = None, limit: int = 100
    ) -> Page:
        return self.snapshots.read(tenant, queue, id, start=start, end=end, limit=limit)

    def close_snapshot(self: Any, tenant: str, queue: str, id: str) -> None:
        self.snapshots.close(tenant, queue, id)

    async def purge(self: Any, tenant: str, name: str, *, reason: str = "", caller: Caller = LOCAL) -> int:
        return await self.submit(Purge(self.tenant(tenant), caller, name, reason))

    @property
    def rounds(self: Any) -> int:
        return self.loop.rounds

    @property
    def rounds_took(self: Any) -> Histogram:
        return self.loop.rounds_took

    @property
    def syncs_took(self: Any) -> Histogram:
        return self.loop.syncs_took

    @property
    def stopped(self: Any) -> asyncio.Event:
        return self.loop.stopped

    @property
    def is_doubtful(self: Any) -> bool:
        return self.loop.is_doubtful
