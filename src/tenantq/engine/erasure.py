"""Erasure of a tenant: data keys first, then rows, then the bytes in all files. Each step is durable and can be repeated."""

import asyncio
from collections.abc import Callable

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
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.store.keys import after, tenant_prefix
from tenantq.store.row_pages import rows_under


class TenantErasure:
    """Deletes tenants of an open shard until no file contains any of their data."""

    def __init__(self, loop: RoundLoop, journal: ShardJournal, close_snapshots: Callable[[int], None]) -> None:
        """Prepare. ``close_snapshots`` closes the snapshots of a tenant, given its id."""
        self._loop, self._state, self._journal = loop, loop.state, journal
        self._close_snapshots = close_snapshots

    async def begin(self, name: str, *, reason: str = "", caller: Caller = LOCAL) -> None:
        """Destroy the data keys of an encrypted tenant and freeze it until it is deleted. Raises LegalHold.

        A tenant that is spread over shards is frozen too: its parts are deleted one after the other.
        """
        tenant = self._state.catalog.tenant(name)
        is_encrypted = tenant.id in self._state.data_keys.by_tenant or tenant.config.encryption.enabled
        if is_encrypted or tenant.part is not None:
            await self._loop.submit(DropDataKeys(tenant, caller, reason))

    async def drop_data_keys(self, tenant_id: int, *, reason: str = "", caller: Caller = SYSTEM) -> int:
        """Destroy all of a tenant's wrapped keys and return how many. Afterwards none is left in any file of the store.

        The tenant stays frozen until it is deleted.
        """
        tenant = self._state.catalog.tenant_by_id(tenant_id)
        count = await self._loop.submit(DropDataKeys(tenant, caller, reason))
        lower, upper = tenant_range(tenant_id)
        store = self._state.store
        await asyncio.shield(self._loop.background.begin(store.files.scrub, store.meta, lower, upper))
        return count

    async def delete_tenant(
        self, name: str, *, reason: str = "", caller: Caller = LOCAL, is_spread: bool = False
    ) -> ErasureCertificate:
        """Delete a tenant and everything it has; its data keys first. ``is_spread``: its parts on other shards are deleted.

        Return the certificate, which is signed after ``erase_bytes``. Raises SpreadBegun if there may be parts elsewhere.
        """
        if name == DEFAULT_TENANT:
            raise Conflict("the tenant 'default' always exists; delete its queues instead", tenant=name)
        tenant = self._state.catalog.tenant(name)
        check_reason(reason)
        await self.begin(name, reason=reason, caller=caller)
        if tenant.erasing is not None:
            await self.drop_data_keys(tenant.id, reason=reason, caller=caller)
        erased = await self._loop.submit(DeleteTenant(self._state.platform, caller, name, reason, is_spread))
        return msgspec.structs.replace(erased, link=self._journal.link(erased.seq).hex())

    async def erase_bytes(self, tenant_id: int) -> bool:
        """Remove every byte of a deleted tenant's rows from the store's tables and log.

        Return False if some may be left, because a snapshot of another tenant holds them.
        """
        self._loop.check_open()
        self._close_snapshots(tenant_id)
        lower = tenant_prefix(tenant_id)
        return await asyncio.shield(self._loop.background.begin(self._state.store.files.erase, lower, after(lower)))

    def certificates(self) -> list[ErasureCertificate]:
        """Return the certificates of all erasures, oldest first. One without a signature is not complete yet."""
        self._loop.check_open()
        store = self._state.store
        return [decode_erasure(value) for _, value in rows_under(store, store.meta, ERASURE_ROW)]
