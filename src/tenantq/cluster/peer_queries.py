"""What the shards of one server ask each other apart from facets: for journal entries, leases and credentials."""

from __future__ import annotations

from tenantq.domain.access import StoredKey
from tenantq.domain.message import LOCAL, SYSTEM, Delivery
from tenantq.engine.ops.access import NoteEntries
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.journal.record import JournalEntry
from tenantq.runtime.clock import Clock
from tenantq.service.service import Service


class PeerQueries:
    """Answers the other shards. They are authenticated, and have admitted the caller."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._shard = service.shard
        self._clock = clock

    async def note_entries(self, entries: list[JournalEntry]) -> None:
        """Write entries about tenants of this shard to its journal."""
        await self._shard.journal.note(entries)

    async def unplace(self, tenant: str) -> None:
        """Delete the directory row of a tenant that could not be created on this shard."""
        state, others = self._shard.state, self._service.other_shards
        catalog = state.catalog
        if tenant in catalog.tenants or tenant in catalog.moved or catalog.is_in_transit(tenant):
            return
        await others.announce_deleted(tenant)
        await self._shard.submit(NoteEntries(state.platform, SYSTEM, ()))  # after creations that have begun
        if tenant in catalog.tenants:
            await others.announce_deleted(tenant)

    def release(self, deliveries: list[Delivery]) -> None:
        """Release messages that were leased for a caller who is gone."""
        self._shard.loop.release_undelivered(deliveries, LOCAL)

    async def erasures(self) -> list[ErasureCertificate]:
        """Return the certificates of this shard."""
        return list(self._shard.erasure.certificates())

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the API key of a hash if this shard has it."""
        key = self._shard.state.access.key(hash)
        now_ms = self._clock.wall_ms()
        if key is not None and not key.is_over(now_ms):
            self._service.admission.authenticator.last_used[key.id] = now_ms
        return key

    async def is_token_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        """Return whether a token of this tenant, or every credential of the principal, is revoked."""
        return self._shard.state.access.token_revoked(tenant, token_id, principal, self._clock.wall_ms())
