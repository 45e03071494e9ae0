"""Other shards of the same server, for calls that concern all shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tenantq.service.audit_trail import AuditPage, AuditQuery
from tenantq.service.call import Call, TenantInfo
from tenantq.wire.topology import ShardItem

if TYPE_CHECKING:
    from tenantq.backup.backups import BackupItem
    from tenantq.backup.manifest import BackupManifest
    from tenantq.journal.erasure_certificate import ErasureCertificate


class OtherShards:
    """The queries of the platform's facets to other shards. Methods with ``own`` merge it with the other shards' answers.

    These are the answers of a server with one shard; a cluster overrides them.
    """

    number = 0  # of this shard

    def shards(self, own: ShardItem) -> list[ShardItem]:
        """Return all shards of the server."""
        return [own]

    def has_shard_in(self, _regions: Iterable[str]) -> bool:
        """Return whether another shard is in one of these regions."""
        return False

    def may_create(self, _tenant: str) -> bool:
        """Return whether an unknown tenant may be created on this shard."""
        return True

    def owner_address(self, _call: Call, _tenant: str | None) -> str:
        """Return where clients reach the shard that owns the tenant, None for the credential's own; empty if it is this one."""
        return ""

    async def announce_deleted(self, _tenant: str) -> None:
        """Return when the other running shards know that a tenant was deleted."""

    async def tenants(
        self, own: Sequence[TenantInfo], _after: str | None, _limit: int, *, figures: bool
    ) -> Sequence[TenantInfo]:
        """Return a page of all tenants by name, with their current figures if ``figures`` is set."""
        del figures
        return own

    async def audit(self, query: AuditQuery, query_local: Callable[[AuditQuery], Awaitable[AuditPage]]) -> AuditPage:
        """Return a page of all journals by time."""
        return await query_local(query)

    async def erasures(self, own: Sequence[ErasureCertificate]) -> Sequence[ErasureCertificate]:
        """Return all certificates by time."""
        return own

    async def back_up(self, _name: str, *, segments: bool) -> list[BackupManifest]:
        """Create a backup of this name on every other shard, with exported segments if ``segments`` is set."""
        del segments
        return []

    async def backups(self, own: Sequence[BackupItem]) -> Sequence[BackupItem]:
        """Return the backups of which every shard has its part."""
        return own

    async def metrics(self, own: bytes) -> bytes:
        """Return the metrics of all shards."""
        return own

    def readiness(self) -> dict[str, Any]:
        """Return the readiness of each shard by name; empty if there is one shard only."""
        return {}
