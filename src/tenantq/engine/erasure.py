"""Erasure of a tenant: its data keys are destroyed first, then its rows are deleted, then the bytes are purged from all files."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import msgspec

from tenantq.domain.message import LOCAL, SYSTEM, Caller
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.engine.arguments import check_reason
from tenantq.engine.data_key_rows import tenant_range
from tenantq.engine.ops.data_keys import DropDataKeys
from tenantq.engine.ops.erasure import ERASURE_ROW, decode_erasure
from tenantq.engine.ops.lifecycle import DeleteTenant
from tenantq.engine.round_loop import RoundLoop
from tenantq.engine.shard_journal import ShardJournal
from tenantq.errors import Conflict
from tenantq.journal.erasure_certificate import DestroyedKey, ErasureCertificate
from tenantq.store.keys import after, tenant_prefix
from tenantq.store.row_pages import rows_under


class TenantErasure:
    """Deletes tenants of an open shard so that nothing of them is left in any file."""

    def __init__(self, loop: RoundLoop, journal: ShardJournal) -> None:
        self._loop, self._state, self._journal = loop, loop.state, journal

    def key_fingerprints(self, tenant_id: int) -> tuple[DestroyedKey, ...]:
        """Return what a certificate says about a tenant's data keys; to be called before they are destroyed."""
        rows = self._state.data_keys.of(tenant_id)
        return tuple(DestroyedKey(number, sha256(row).hexdigest()) for number, row in sorted(rows.items()))

    async def drop_data_keys(self, tenant_id: int, *, reason: str = "", caller: Caller = SYSTEM) -> int:
        """Destroy all of a tenant's wrapped keys and return how many. Afterwards none is left in any file of the store."""
        tenant = self._state.catalog.tenant_by_id(tenant_id)
        count = await self._loop.submit(DropDataKeys(tenant, caller, reason))
        lower, upper = tenant_range(tenant_id)
        store = self._state.store
        await asyncio.shield(self._loop.background.begin(store.scrub, store.meta, lower, upper))
        return count

    async def delete_tenant(
        self,
        name: str,
        *,
        reason: str = "",
        caller: Caller = LOCAL,
        destroyed: tuple[DestroyedKey, ...] | None = None,
    ) -> ErasureCertificate:
        """Delete a tenant and everything it has; its data keys first.

        Return what was erased, to be certified after ``erase_bytes``. ``destroyed`` are keys that were destroyed before.
        """
        if name == DEFAULT_TENANT:
            raise Conflict("the tenant 'default' always exists; delete its queues instead", tenant=name)
        tenant = self._state.catalog.tenant(name)
        check_reason(reason)
        destroyed = destroyed if destroyed is not None else self.key_fingerprints(tenant.id)
        if tenant.id in self._state.data_keys.by_tenant and tenant.hold is None:
            await self.drop_data_keys(tenant.id, reason=reason, caller=caller)
        erased = await self._loop.submit(DeleteTenant(self._state.platform, caller, name, reason, destroyed))
        return msgspec.structs.replace(erased, link=self._journal.link(erased.seq).hex())

    async def erase_bytes(self, tenant_id: int) -> None:
        """Return when no byte of a deleted tenant's rows is left in the store's tables and log."""
        self._loop.check_open()
        lower = tenant_prefix(tenant_id)
        await asyncio.shield(self._loop.background.begin(self._state.store.erase, lower, after(lower)))

    def certificates(self) -> list[ErasureCertificate]:
        """Return the certificates of all erasures, oldest first. One without a signature is not complete yet."""
        self._loop.check_open()
        store = self._state.store
        return [decode_erasure(value) for _, value in rows_under(store, store.meta, ERASURE_ROW)]
