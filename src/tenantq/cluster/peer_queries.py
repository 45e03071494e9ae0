"""What shards ask each other apart from facets: for journal entries, leases and certificates."""

from __future__ import annotations

from tenantq.domain.message import LOCAL, SYSTEM, Delivery
from tenantq.engine.ops.access import NoteEntries
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.journal.record import JournalEntry
from tenantq.service.service import Service


class PeerQueries:
    """Answers the other shards. They are authenticated, and have admitted the caller."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._shard = service.shard

    async def note_entries(self, entries: list[JournalEntry]) -> None:
        """Write entries about tenants of this shard to its journal."""
        await self._shard.journal.note(entries)

    async def unplace(self, tenant: str) -> None:
        """Delete the directory row of a tenant that could not be created on this shard."""
        state, others = self._shard.state, self._service.other_shards
        catalog = state.catalog
        if tenant in catalog.tenants or tenant in catalog.moved or catalog.is_in_transit(tenant):
            return
        await others.announce(tenant, None)
        await self._shard.submit(NoteEntries(state.platform, SYSTEM, ()))  # after creations that have begun
        if tenant in catalog.tenants:
            await others.announce(tenant, None)

    def release(self, deliveries: list[Delivery]) -> None:
        """Release messages that were leased for a caller who is gone."""
        self._shard.loop.release_undelivered(deliveries, LOCAL)

    async def erasures(self) -> list[ErasureCertificate]:
        """Return the certificates of this shard."""
        return list(self._shard.erasure.certificates())
