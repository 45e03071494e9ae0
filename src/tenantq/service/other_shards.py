"""Other shards of the same server, for calls that concern all shards."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from tenantq.backup.backups import BackupItem
from tenantq.backup.manifest import BackupManifest
from tenantq.engine.queue_state import TenantState
from tenantq.engine.reservation import Reservation
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.service.audit_trail import AuditPage, AuditQuery
from tenantq.service.call import Call, TenantInfo
from tenantq.service.part_export import PartExports
from tenantq.wire.topology import ShardItem

_T = TypeVar("_T")


class OtherShards:
    """The queries of the platform's facets to other shards. Methods with ``own`` merge it with the other shards' answers.

    These are the answers of a server with one shard; a cluster overrides them.
    """

    number = 0  # of this shard
    has_others = False

    def shards(self, own: ShardItem) -> list[ShardItem]:
        """Return all shards of the server."""
        return [own]

    def has_shard_in(self, _regions: Iterable[str]) -> bool:
        """Return whether another shard is in one of these regions."""
        return False

    def may_create(self, _tenant: str) -> bool:
        """Return whether an unknown tenant may be created on this shard."""
        return True

    def owner_address(self, _call: Call, _tenant: str | None, _queue: str | None) -> str:
        """Return where clients reach the shard that owns the queue, or without one the tenant; empty if it is this one.

        ``tenant`` None means the credential's own.
        """
        return ""

    async def announce(self, _tenant: str, _regions: tuple[str, ...] | None) -> None:
        """Wait until the other running shards can know the regions of a tenant; None: that it was deleted."""

    async def tenants(
        self, own: Sequence[TenantInfo], _after: str | None, _limit: int, *, figures: bool
    ) -> Sequence[TenantInfo]:
        """Return a page of all tenants by name, with their current figures if ``figures`` is set."""
        del figures
        return own

    async def audit(self, query: AuditQuery, query_local: Callable[[AuditQuery], Awaitable[AuditPage]]) -> AuditPage:
        """Return a page of all journals by time."""
        return await query_local(query)

    async def tenant_audit(
        self,
        query: AuditQuery,
        tenant: str,
        firsts: Mapping[int, int],
        queues: tuple[str, ...] | None,
        page_local: Callable[[AuditQuery, str, int, tuple[str, ...] | None], Awaitable[AuditPage]],
    ) -> AuditPage:
        """Return a page of a tenant's rows by time. ``firsts``: its shards, each with the first record about it there."""
        return await page_local(query, tenant, firsts[self.number], queues)

    async def erasures(self, own: Sequence[ErasureCertificate]) -> Sequence[ErasureCertificate]:
        """Return all certificates by time."""
        return own

    async def back_up(
        self, create_local: Callable[[], Awaitable[BackupManifest]], *, segments: bool
    ) -> list[BackupManifest]:
        """Create a backup on this shard, and one of the same name on every other, with exported segments if ``segments`` is set."""
        del segments
        return [await create_local()]

    async def backups(self, own: Sequence[BackupItem]) -> Sequence[BackupItem]:
        """Return the backups that are complete on all shards."""
        return own

    async def gather(self, _path: str, own: Sequence[_T], *_arguments: Any) -> Sequence[_T]:
        """Return ``own`` and what the method at ``_path`` of the other shards returns, if they answer."""
        return own

    async def first_held(self, own: int | None) -> int | None:
        """Return the first record of this shard that a legal hold of any shard's tenants covers."""
        return own

    async def ask(self, _path: str, *_arguments: Any, shards: Iterable[int] | None = None) -> dict[int, Any]:
        """Return what a method of all other shards returns, or of those of ``shards`` that exist.

        Raises an error if a shard does not answer.
        """
        del shards
        return {}

    async def at_owner(self, _tenant: str, _path: str, local: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """Call a method on the shard of a tenant, or of the platform if it is empty. ``local`` is the method of this shard."""
        return await local(*arguments)

    async def at_queue(
        self, _tenant: str, _queue: str, _path: str, local: Callable[..., Awaitable[_T]], call: Call, *arguments: Any
    ) -> _T:
        """Call a method on the shard of a tenant's queue, which need not exist. ``local`` is the method of this shard."""
        return await local(call, *arguments)

    # ---- parts of a tenant whose queues are spread over shards ----

    def reserve(
        self, _tenant: TenantState, _need: Mapping[str, int]
    ) -> AbstractAsyncContextManager[Reservation | None]:
        """Reserve as much of the tenant's quotas as a call needs, or as there is, for the duration of a block."""
        return contextlib.nullcontext()

    async def ask_parts(self, _tenant: TenantState, _method: str, *_arguments: Any) -> dict[int, Any]:
        """Return the answers of the tenant's parts on other shards."""
        return {}

    async def export_parts(self, _tenant: TenantState) -> PartExports | None:
        """Start to export the tenant's parts on other shards, if it is spread. Raises Unavailable while queues are moving."""
        return None

    async def drop_parts(self, _tenant: TenantState) -> list[dict[str, int]]:
        """Delete the tenant's parts on other shards permanently, and return the counts of each."""
        return []

    async def metrics(self, reader: str, own: Callable[[str], Awaitable[bytes]]) -> bytes:
        """Return the metrics of all shards, for a reader; see ``Metrics.text``."""
        return await own(reader)

    def readiness(self) -> dict[str, Any]:
        """Return the readiness of each shard by name; empty if there is one shard only."""
        return {}
