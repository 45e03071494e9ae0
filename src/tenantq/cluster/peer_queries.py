"""What the shards of one server ask each other apart from facets: for journal entries, leases and credentials."""

from __future__ import annotations

from tenantq.domain.access import StoredKey
from tenantq.domain.message import Delivery
from tenantq.gates.api_key import is_over
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.journal.record import JournalEntry
from tenantq.runtime.clock import Clock
from tenantq.service import Service


class PeerQueries:
    """Answers the other shards. They are authenticated, and have admitted the caller."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._shard = service.shard
        self._clock = clock

    async def note_entries(self, entries: list[JournalEntry]) -> None:
        """Write entries about tenants of this shard to its journal."""
        await self._shard.journal.note(entries)

    def release(self, deliveries: list[Delivery]) -> None:
        """Release messages that were leased for a caller who is gone."""
        self._shard.release_undelivered(deliveries)

    async def erasures(self) -> list[ErasureCertificate]:
        """Return the certificates of this shard."""
        return list(self._shard.erasure.certificates())

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the API key of a hash if this shard has it."""
        key = self._shard.state.access.key(hash)
        now_ms = self._clock.wall_ms()
        if key is not None and not is_over(key, now_ms):
            self._service.admission.authenticator.last_used[key.id] = now_ms
        return key

    async def is_token_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        """Return whether a token of this tenant, or every credential of the principal, is revoked."""
        return self._shard.state.access.token_revoked(tenant, token_id, principal, self._clock.wall_ms())
