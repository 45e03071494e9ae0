"""What administrators can ask of a shard: tenants, queues, keys, grants, usage, and its journal."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import LOCAL, SYSTEM, Caller, check_int, check_text
from tenantq.domain.names import DEFAULT_TENANT, check_queue_name, check_tenant_name
from tenantq.engine import reads
from tenantq.engine.data_key_rows import tenant_range
from tenantq.engine.ops.access import DropGrant, NoteEntries, NoteKeyUse, PutGrant, PutKey, RevokeKey, RevokeToken
from tenantq.engine.ops.checkpoint import PutCheckpoint
from tenantq.engine.ops.data_keys import DropDataKeys, PutDataKey, ReplaceDataKey
from tenantq.engine.ops.erasure import ERASURE_ROW, CertifyErasure, decode_erasure
from tenantq.engine.ops.hold import HoldTenant, ReleaseHold
from tenantq.engine.ops.import_part import IMPORT_ROW, ImportedPart, ImportPart
from tenantq.engine.ops.lifecycle import (
    DeleteQueue,
    DeleteTenant,
    EditQueue,
    MakeQueue,
    PauseQueue,
    PutQueue,
    PutTenant,
    ResumeQueue,
)
from tenantq.engine.ops.suspension import ReopenQueue, ResumeTenant, SuspendQueue, SuspendTenant
from tenantq.engine.ops.trim import TrimJournal
from tenantq.engine.queue_state import SuspensionMode
from tenantq.engine.recount import TenantRecount
from tenantq.engine.round_loop import RoundLoop
from tenantq.engine.tenant_snapshot import StoredMessage, StoredResult, TakenKey, TenantSnapshot
from tenantq.errors import Conflict, Invalid, TenantqError
from tenantq.journal.erasure_certificate import DestroyedKey, ErasureCertificate
from tenantq.store.interface import Beat
from tenantq.store.keys import after, tenant_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tenantq.domain.access import Grant, KeyUse, StoredKey
    from tenantq.domain.config import QueueConfig, ShardSettings, TenantConfig
    from tenantq.engine.access_store import AccessStore
    from tenantq.engine.queue_state import TenantState
    from tenantq.journal.record import JournalEntry
    from tenantq.journal.signing import SigningKey

_PAGE = 1_000


def check_reason(reason: str) -> None:
    """Raise Invalid unless ``reason`` is text that the journal takes; none is fine."""
    if type(reason) is not str or reason:
        check_text("reason", reason, limits.REASON_CHARS_MAX)


def check_mode(mode: object) -> SuspensionMode:
    """Return ``mode`` if something can be suspended in this way, else raise Invalid."""
    for known in get_args(SuspensionMode):
        if mode == known:
            return known  # type: ignore[no-any-return]  # one of the literals
    raise Invalid(f"mode: must be one of {', '.join(get_args(SuspensionMode))}")


def check_truth(field: str, value: object) -> None:
    """Raise Invalid unless ``value`` is true or false."""
    if type(value) is not bool:
        raise Invalid(f"{field}: must be true or false, not {type(value).__name__}")


def _check_data_key(number: int, value: bytes) -> None:
    check_int("number", number, 0, limits.DATA_KEY_NUMBER_MAX)
    if type(value) is not bytes or not 1 <= len(value) <= limits.DATA_KEY_BYTES_MAX:
        raise Invalid(f"value: must be 1 to {limits.DATA_KEY_BYTES_MAX} bytes")


class Checkpoint(msgspec.Struct, frozen=True):
    """A state of the store, and when it was taken: its journal may end behind what was synced then."""

    stage: Path
    taken: Beat


class Administration(RoundLoop):
    """The part of a shard that keeps order in it."""

    # ---- tenants and queues ----

    async def put_tenant(self, name: str, caller: Caller = LOCAL, may_make: bool = True, /, **changes: Any) -> bool:  # noqa: FBT001, FBT002  # keywords are the tenant's settings
        """Make a tenant or change it; return whether it is new. Conflict, if it would be and ``may_make`` is false."""
        check_tenant_name(name)
        created: bool = await self._submit(PutTenant(self._system, caller, name, changes, may_make=may_make))
        return created

    def key_fingerprints(self, tenant_id: int) -> tuple[DestroyedKey, ...]:
        """Return what a certificate will say of a tenant's data keys; to be asked for before they are destroyed."""
        rows = self.core.data_keys.of(tenant_id)
        return tuple(DestroyedKey(number, sha256(row).hexdigest()) for number, row in sorted(rows.items()))

    async def delete_tenant(
        self,
        name: str,
        *,
        reason: str = "",
        caller: Caller = LOCAL,
        destroyed: tuple[DestroyedKey, ...] | None = None,
    ) -> ErasureCertificate:
        """Delete a tenant and everything it has. Its data keys go first, for good, then everything they sealed.

        Return what was erased, to be certified once ``erase_bytes`` is through. ``destroyed`` are keys that went before.
        """
        if name == DEFAULT_TENANT:
            raise Conflict("the tenant 'default' always exists; delete its queues instead", tenant=name)
        tenant = self.core.catalog.tenant(name)
        check_reason(reason)
        destroyed = destroyed if destroyed is not None else self.key_fingerprints(tenant.id)
        if tenant.id in self.core.data_keys.by_tenant and tenant.hold is None:
            await self.drop_data_keys(tenant.id, reason=reason, caller=caller)
        erased: ErasureCertificate = await self._submit(DeleteTenant(self._system, caller, name, reason, destroyed))
        return msgspec.structs.replace(erased, link=self.journal_link(erased.seq).hex())

    async def erase_bytes(self, tenant_id: int) -> None:
        """Return when no byte of a deleted tenant's rows is left in the store's tables and log."""
        self._check_open()
        lower = tenant_prefix(tenant_id)
        await asyncio.shield(self._background_work.begin(self._store.erase, lower, after(lower)))

    async def certify_erasure(self, certificate: ErasureCertificate, caller: Caller = SYSTEM) -> None:
        """Keep the signed certificate."""
        await self._submit(CertifyErasure(self._system, caller, certificate))

    def erasures(self) -> list[ErasureCertificate]:
        """Return the certificates of all erasures, oldest first; one that is not signed is not through yet."""
        self._check_open()
        store, lower, found = self._store, ERASURE_ROW, list[ErasureCertificate]()
        while page := store.scan_items(store.meta, lower, after(ERASURE_ROW), _PAGE):
            found += [decode_erasure(value) for _, value in page]
            lower = page[-1][0] + b"\0"
        return found

    def tenants(self) -> dict[str, TenantConfig]:
        """Return all tenants with their configuration."""
        return {name: tenant.config for name, tenant in self.core.catalog.tenants.items()}

    async def put_queue(self, tenant: str, name: str, caller: Caller = LOCAL, /, **changes: Any) -> bool:
        """Make a queue or change it; return whether it is new."""
        check_queue_name(name)
        created: bool = await self._submit(PutQueue(self.core.catalog.tenant(tenant), caller, name, changes))
        return created

    async def make_queue(self, tenant: str, name: str, caller: Caller = LOCAL, /, **settings: Any) -> bool:
        """Make a queue; return whether it is new: one that is there stays as it is."""
        check_queue_name(name)
        created: bool = await self._submit(MakeQueue(self.core.catalog.tenant(tenant), caller, name, settings))
        return created

    async def edit_queue(
        self, tenant: str, name: str, edit: Callable[[QueueConfig], dict[str, Any]], caller: Caller = LOCAL
    ) -> None:
        """Change a queue that is there; ``edit`` returns the changes, given its configuration in the round that makes them."""
        check_queue_name(name)
        await self._submit(EditQueue(self.core.catalog.tenant(tenant), caller, name, edit))

    def queues(self, tenant: str) -> dict[str, QueueConfig]:
        """Return a tenant's queues with their configuration."""
        return {name: queue.config for name, queue in self.core.catalog.tenant(tenant).queues.items()}

    async def pause_queue(self, tenant: str, name: str, caller: Caller = LOCAL) -> None:
        """Stop deliveries; adding goes on and waiting polls wait."""
        check_queue_name(name)
        await self._submit(PauseQueue(self.core.catalog.tenant(tenant), caller, name))

    async def resume_queue(self, tenant: str, name: str, caller: Caller = LOCAL) -> None:
        """Deliver again."""
        check_queue_name(name)
        await self._submit(ResumeQueue(self.core.catalog.tenant(tenant), caller, name))

    async def delete_queue(
        self,
        tenant: str,
        name: str,
        *,
        force: bool = False,
        even_frozen: bool = False,
        reason: str = "",
        caller: Caller = LOCAL,
    ) -> None:
        """Begin to delete a queue. It goes when its leases have settled, or at once with ``force``."""
        check_reason(reason)
        check_queue_name(name)
        check_truth("force", force)
        check_truth("even_frozen", even_frozen)
        owner = self.core.catalog.tenant(tenant)
        await self._submit(DeleteQueue(owner, caller, name, reason, force=force, even_frozen=even_frozen))

    # ---- suspension and usage ----

    async def suspend_tenant(
        self, name: str, *, reason: str = "", mode: SuspensionMode = "settle", caller: Caller = LOCAL
    ) -> None:
        """Refuse adds and polls of a tenant; see Suspension for what goes on."""
        self.core.catalog.tenant(name)
        check_reason(reason)
        await self._submit(SuspendTenant(self._system, caller, name, reason, check_mode(mode)))

    async def suspend_queue(
        self, tenant: str, name: str, *, reason: str = "", mode: SuspensionMode = "settle", caller: Caller = LOCAL
    ) -> None:
        """Refuse adds and polls of one queue; see Suspension for what goes on."""
        check_queue_name(name)
        check_reason(reason)
        await self._submit(SuspendQueue(self.core.catalog.tenant(tenant), caller, name, reason, check_mode(mode)))

    async def reopen_queue(self, tenant: str, name: str, *, reason: str = "", caller: Caller = LOCAL) -> None:
        """Let a suspended queue work again."""
        check_queue_name(name)
        check_reason(reason)
        await self._submit(ReopenQueue(self.core.catalog.tenant(tenant), caller, name, reason))

    async def resume_tenant(self, name: str, *, reason: str = "", caller: Caller = LOCAL) -> None:
        """Serve a suspended tenant again."""
        self.core.catalog.tenant(name)
        check_reason(reason)
        await self._submit(ResumeTenant(self._system, caller, name, reason))

    async def hold_tenant(self, name: str, *, reason: str, caller: Caller = LOCAL) -> None:
        """Put a tenant under legal hold: nothing of it is deleted by hand until that is released."""
        self.core.catalog.tenant(name)
        check_text("reason", reason, limits.REASON_CHARS_MAX)
        await self._submit(HoldTenant(self._system, caller, name, reason))

    async def release_hold(self, name: str, *, reason: str, caller: Caller = LOCAL) -> None:
        """Take a tenant out of legal hold; NotFound if it is under none."""
        self.core.catalog.tenant(name)
        check_text("reason", reason, limits.REASON_CHARS_MAX)
        await self._submit(ReleaseHold(self._system, caller, name, reason))

    def tenants_served(self) -> Mapping[str, TenantState]:
        """Return all tenants by name; to be read, not changed."""
        return self.core.catalog.tenants

    def tenant_state(self, name: str) -> TenantState:
        """Return a tenant as it is served; to be read, not changed."""
        return self.core.catalog.tenant(name)

    def usage(self, name: str) -> dict[str, int]:
        """Return what a tenant uses of each quota that is counted."""
        self._check_open()
        return self.core.catalog.tenant(name).usage.used(self.wall_ms())

    def wall_ms(self) -> int:
        """Return the wall clock's time as the journal sees it."""
        return self.core.shard_clock.now_ms() + self.core.shard_clock.wall_offset_ms()

    def engine_ms(self) -> int:
        """Return the shard's own time, which never goes back."""
        return self.core.shard_clock.now_ms()

    def recount(self, name: str, rows_max: int) -> TenantRecount | None:
        """Return a tenant's counters and rows as they are now, to be compared anywhere; None: there is no such tenant."""
        self._check_open()
        tenant = self.core.catalog.tenants.get(name)
        return TenantRecount(self.core, tenant, rows_max) if tenant is not None else None

    # ---- keys and grants; ``tenant`` None is the platform ----

    @property
    def access(self) -> AccessStore:
        """The keys and grants; to be read, not changed."""
        return self.core.access

    def _owner(self, tenant: str | None) -> TenantState:
        return self.core.catalog.tenant(tenant) if tenant is not None else self._system

    async def put_key(self, key: StoredKey, caller: Caller = LOCAL) -> None:
        """Store a new API key of ``key.tenant``."""
        await self._submit(PutKey(self._owner(key.tenant), caller, key))

    async def revoke_key(self, tenant: str | None, key_id: str, caller: Caller = LOCAL) -> None:
        """Refuse a key from now on."""
        await self._submit(RevokeKey(self._owner(tenant), caller, key_id))

    async def put_grant(self, tenant: str, principal: str, grant: Grant, caller: Caller = LOCAL) -> None:
        """Store what a principal may do in a tenant, in place of what was stored for it."""
        await self._submit(PutGrant(self._owner(tenant), caller, principal, grant))

    async def delete_grant(self, tenant: str, principal: str, caller: Caller = LOCAL) -> None:
        """Forget what is stored for a principal in a tenant."""
        await self._submit(DropGrant(self._owner(tenant), caller, principal))

    async def revoke_token(
        self, tenant: str | None, *, token_id: str | None, principal: str | None, until: int, caller: Caller = LOCAL
    ) -> None:
        """Refuse a JSON web token by its id, or all of a principal's, until a time of the wall clock."""
        await self._submit(RevokeToken(self._owner(tenant), caller, token_id, principal, until))

    async def note_key_use(self, uses: Mapping[str, KeyUse]) -> None:
        """Remember when and from where keys were used."""
        if uses:
            await self._submit(NoteKeyUse(self._system, SYSTEM, uses))

    async def note_entries(self, entries: Sequence[JournalEntry]) -> None:
        """Journal what happened before the engine was asked."""
        if entries:
            await self._submit(NoteEntries(self._system, SYSTEM, entries))

    # ---- wrapped data keys; tenants by id, which never means another one later ----

    @property
    def data_keys(self) -> Mapping[int, Mapping[int, bytes]]:
        """The wrapped data keys of every tenant that has any, by tenant id and number; to be read, not changed."""
        return self.core.data_keys.by_tenant

    @property
    def destroyed_data_keys(self) -> set[int]:
        """The tenants whose data keys were destroyed since the start, deleted or not."""
        return self.core.data_keys.destroyed

    async def put_data_key(
        self, tenant_id: int, number: int, value: bytes, *, details: str = "", caller: Caller = SYSTEM
    ) -> bool:
        """Store a new wrapped key; False: there is one of this number already, and it is left as it is."""
        _check_data_key(number, value)
        tenant = self.core.catalog.tenant_by_id(tenant_id)
        done: bool = await self._submit(PutDataKey(tenant, caller, number, value, details))
        return done

    async def replace_data_key(
        self, tenant_id: int, number: int, old: bytes, new: bytes, *, details: str = "", caller: Caller = SYSTEM
    ) -> bool:
        """Store ``new`` in place of ``old``; False: ``old`` is not what is stored (any more)."""
        _check_data_key(number, new)
        tenant = self.core.catalog.tenant_by_id(tenant_id)
        done: bool = await self._submit(ReplaceDataKey(tenant, caller, number, old, new, details))
        return done

    async def drop_data_keys(self, tenant_id: int, *, reason: str = "", caller: Caller = SYSTEM) -> int:
        """Destroy all of a tenant's wrapped keys, and return how many. Afterwards none is left in any file of the store."""
        check_reason(reason)
        tenant = self.core.catalog.tenant_by_id(tenant_id)
        count: int = await self._submit(DropDataKeys(tenant, caller, reason))
        lower, upper = tenant_range(tenant_id)
        await asyncio.shield(self._background_work.begin(self._store.scrub, self._store.meta, lower, upper))
        return count

    # ---- journal ----

    @property
    def journal_span(self) -> tuple[int, int]:
        """The first and last sequence number that the journal holds."""
        return self._journal_first, self._seq

    @property
    def shard_name(self) -> str:
        """The name that every row of the journal bears."""
        return self._name

    @property
    def settings(self) -> ShardSettings:
        """What it was opened with."""
        return self._settings

    @property
    def journal_synced(self) -> tuple[int, int]:
        """The first record that the journal holds and the last that is durable."""
        return self._journal_first, self._synced_seq

    def journal_link(self, seq: int) -> bytes:
        """Return the hash of a record that the journal holds, or of the one before its first."""
        return reads.journal_link(self.core, seq)

    def last_checkpoint(self) -> int:
        """Return the record that was signed last; 0: none that the journal still holds."""
        return reads.last_checkpoint(self.core)

    def read_checkpoints(self, first_seq: int) -> list[tuple[int, bytes]]:
        """Return checkpoints from a record on, as they are stored. Safe from any thread."""
        return reads.checkpoints(self.core, first_seq)

    async def put_checkpoint(self, key: SigningKey) -> None:
        """Sign the journal as it is, with a record of its own."""
        await self._submit(PutCheckpoint(self._system, SYSTEM, key))

    def journal_link_if_kept(self, seq: int) -> bytes | None:
        """Return the hash of a record, or None where it was trimmed."""
        return self.journal_link(seq) if seq >= self._journal_first - 1 else None

    async def trim_journal(self, upto_seq: int) -> None:
        """Drop journal records up to ``upto_seq``, which were exported; the chain goes on from an anchor."""
        self._check_open()
        check_int("upto_seq", upto_seq, self._journal_first, self._seq)
        before, self._journal_first = self._journal_first, upto_seq + 1  # at once, so that no other call trims less
        try:
            await self._submit(TrimJournal(self._system, SYSTEM, upto_seq))
        except TenantqError:
            self._journal_first = before
            raise

    # ---- copies ----

    async def snapshot(self, tenant: str, queue: str | None = None) -> TenantSnapshot:
        """Return a tenant as it is now, or one queue of it, to be read beside the work; it is returned when all of it is durable."""
        self._check_open()
        owner = self.core.catalog.tenant(tenant)
        one = self.core.catalog.queue(owner, queue) if queue is not None else None
        taken = TenantSnapshot(self.core, owner, self._seq, one)
        try:
            await self._all_synced()
        except BaseException:
            taken.close()
            raise
        return taken

    async def take_in(
        self,
        tenant: str,
        queue: str,
        export: bytes,
        part: int,
        messages: Sequence[StoredMessage],
        results: Sequence[StoredResult],
        caller: Caller = LOCAL,
        idempotency: Sequence[TakenKey] = (),
    ) -> ImportedPart:
        """Put one part of an export into a queue as it was elsewhere: ids, order, times, attempts, history. Each part once, in order."""
        check_queue_name(queue)
        self._check_open()
        self._space.check()
        operation = ImportPart(
            self.core.catalog.tenant(tenant), caller, queue, export, part, messages, results, idempotency
        )
        taken: ImportedPart = await self._submit(operation)
        return taken

    def taken_part(self, tenant: str, queue: str, export: bytes) -> int:
        """Return the last part of an export that a queue has taken in; 0: none."""
        self._check_open()
        found = self.core.catalog.queue(self.core.catalog.tenant(tenant), queue)
        stored = self._store.get(self._store.meta, IMPORT_ROW + found.prefix + export)
        return int.from_bytes(stored) if stored is not None else 0

    async def checkpoint(self) -> Checkpoint:
        """Take the store's state, with everything acknowledged so far, by hard links; one at a time. The caller removes it."""
        await self._all_synced()
        stage = await self._background_work.begin(self._store.checkpoint)
        return Checkpoint(stage, self.core.shard_clock.beat(self._synced_seq))

    def scan_journal(self, first_seq: int, last_seq: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to ``limit`` records that are there, in order, as they are stored. Safe from any thread."""
        return reads.scan_journal(self.core, first_seq, last_seq, limit)

    async def all_synced(self) -> None:
        """Return when everything written so far is durable, so that a look at the journal misses nothing that was done."""
        await self._all_synced()
