"""Other shards of the same server, as far as the service needs them to answer for all shards at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tenantq.service.audit_trail import AuditPage, AuditQuery
from tenantq.service.call import Call, TenantInfo
from tenantq.wire.topology import ShardItem

if TYPE_CHECKING:
    from tenantq.backup.backups import BackupItem
    from tenantq.backup.manifest import BackupManifest
    from tenantq.journal.erasure_certificate import ErasureCertificate


class OtherShards(Protocol):
    """What the platform's facets ask of the other shards. Methods that take ``own`` merge it with the others' answers."""

    @property
    def number(self) -> int:
        """This shard's own number."""

    def shards(self, own: ShardItem) -> list[ShardItem]:
        """Return all shards of the server."""

    def has_shard_in(self, regions: Iterable[str]) -> bool:
        """Return whether another shard is in one of these regions."""

    def may_create(self, tenant: str) -> bool:
        """Return whether an unknown tenant may be created on this shard."""

    def owner_address(self, call: Call, tenant: str | None) -> str:
        """Return where clients reach the shard that owns the tenant, None for the credential's own; empty if it is this one."""

    async def announce_deleted(self, tenant: str) -> None:
        """Return when the other running shards know that a tenant was deleted."""

    async def tenants(
        self, own: Sequence[TenantInfo], after: str | None, limit: int, *, figures: bool
    ) -> Sequence[TenantInfo]:
        """Return a page of all tenants by name."""

    async def audit(self, query: AuditQuery, query_local: Callable[[AuditQuery], Awaitable[AuditPage]]) -> AuditPage:
        """Return a page of all journals by time."""

    async def erasures(self, own: Sequence[ErasureCertificate]) -> Sequence[ErasureCertificate]:
        """Return all certificates by time."""

    async def back_up(self, name: str, *, segments: bool) -> list[BackupManifest]:
        """Create a backup of this name on every other shard."""

    async def backups(self, own: Sequence[BackupItem]) -> Sequence[BackupItem]:
        """Return the backups of which every shard has its part."""

    async def metrics(self, own: bytes) -> bytes:
        """Return the metrics of all shards."""

    def readiness(self) -> dict[str, Any]:
        """Return the readiness of each shard by name; empty if there is one shard only."""


class NoOtherShards:
    """The answers of a server with one shard."""

    number = 0

    def shards(self, own: ShardItem) -> list[ShardItem]:
        """Return the one shard."""
        return [own]

    def has_shard_in(self, _: Iterable[str]) -> bool:
        """Return False."""
        return False

    def may_create(self, _: str) -> bool:
        """Return True."""
        return True

    def owner_address(self, _call: Call, _tenant: str | None) -> str:
        """Return nothing: this shard owns every tenant."""
        return ""

    async def announce_deleted(self, _: str) -> None:
        """Do nothing."""

    async def tenants(
        self, own: Sequence[TenantInfo], _after: str | None, _limit: int, *, figures: bool
    ) -> Sequence[TenantInfo]:
        """Return the same page."""
        del figures
        return own

    async def audit(self, query: AuditQuery, query_local: Callable[[AuditQuery], Awaitable[AuditPage]]) -> AuditPage:
        """Return the local page."""
        return await query_local(query)

    async def erasures(self, own: Sequence[ErasureCertificate]) -> Sequence[ErasureCertificate]:
        """Return the same certificates."""
        return own

    async def back_up(self, _: str, *, segments: bool) -> list[BackupManifest]:
        """Return no further parts."""
        del segments
        return []

    async def backups(self, own: Sequence[BackupItem]) -> Sequence[BackupItem]:
        """Return the same backups."""
        return own

    async def metrics(self, own: bytes) -> bytes:
        """Return the same metrics."""
        return own

    def readiness(self) -> dict[str, Any]:
        """Return nothing."""
        return {}
