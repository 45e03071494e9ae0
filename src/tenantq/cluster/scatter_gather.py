"""Answers about all shards at once, gathered by the shard that was asked. The caller has passed its admission."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Protocol, TypeVar

import msgspec

from tenantq.backup.backups import BackupItem
from tenantq.backup.manifest import BackupManifest
from tenantq.cluster.audit_merge import ALL_READ, merge_pages, parse_cursor
from tenantq.cluster.credentials import ShardCredentials
from tenantq.cluster.error_codec import shard_down
from tenantq.cluster.fleet_shares import FleetShares
from tenantq.cluster.metrics_merge import METRICS_MS, gather_metrics
from tenantq.cluster.peer_queries import PeerQueries
from tenantq.cluster.routed_service import FACETS
from tenantq.cluster.shard_calls import QUICK_MS, READ_MS, CallsFromShard
from tenantq.cluster.shard_routing import RoutingDirectory, ShardRouting
from tenantq.cluster.spread_parts import SpreadParts
from tenantq.cluster.tenant_directory import tenants_with_rows
from tenantq.engine.queue_state import TenantState
from tenantq.engine.reservation import Reservation
from tenantq.errors import TenantqError, no_tenant
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.journal.record import JournalEntry
from tenantq.service.audit_trail import AuditPage, AuditQuery
from tenantq.service.call import Call, TenantInfo
from tenantq.service.other_shards import OtherShards
from tenantq.service.part_export import PartExports
from tenantq.service.service import Service
from tenantq.store.shard_directories import HOME
from tenantq.wire.topology import ShardItem

_T = TypeVar("_T")

STEPS_MAX = 20
"""Pages of one shard's journal that a query reads to find its next row. After that it returns a cursor to continue."""


class ShardFacts(Protocol):
    """What one shard tells the others, and knows about them."""

    def may_create(self, tenant: str) -> bool:
        """Return whether an unknown tenant may be created on this shard."""

    async def announce(self, tenant: str) -> None:
        """Return when the others know that this shard has a tenant, or has it no more."""

    async def record_regions(self, tenant: str, regions: tuple[str, ...]) -> None:
        """Return when the others can know which regions a tenant allows."""

    def moves_on_hold(self) -> AbstractAsyncContextManager[None]:
        """Prevent moves of tenants inside the block, so that a backup has each once. Raises Conflict if one is moving."""

    def is_up(self, shard: int) -> tuple[bool, bool]:
        """Return whether another shard runs, and whether it is ready."""


class ScatterGather(OtherShards):
    """The other shards of a server, as the service of one shard uses them."""

    has_others = True

    def __init__(self, directory: RoutingDirectory, facts: ShardFacts, calls: CallsFromShard) -> None:
        self._directory = directory
        self._facts = facts
        self._calls = calls
        self.number = directory.number
        self.service: Service
        self.spread: SpreadParts | None = None  # once the shard is open
        self._attached = asyncio.Event()
        self.routing: ShardRouting

    def attach(self, spread: SpreadParts) -> None:
        """Set this shard's parts of spread tenants, once it is open."""
        self.spread = spread
        self._attached.set()

    def serve(self, service: Service, credentials: ShardCredentials) -> dict[str, object]:
        """Set the service of this shard, once it exists. Return by name the objects whose methods other shards call."""
        self.service, admission = service, service.admission
        self.routing = ShardRouting(self._directory, admission)
        admission.authenticator.other_shards = credentials
        admission.notes.note_entries = self.note_entries
        return {name: getattr(service, name) for name in FACETS} | {
            "admission": admission,
            "fleet": service.fleet,
            "fleet_shares": FleetShares(service),
            "peer": PeerQueries(service),
        }

    def owner_address(self, call: Call, tenant: str | None, queue: str | None) -> str:
        """Return the address of another shard that owns the queue, or without one the tenant; empty if it is this one."""
        return self.routing.owner_address(call, tenant, queue)

    def shards(self, _: ShardItem) -> list[ShardItem]:
        """Return all shards of the server."""
        return [
            ShardItem(name=one.name, region=one.region, address=one.address) for one in self._directory.topology.shards
        ]

    def has_shard_in(self, regions: Iterable[str]) -> bool:
        """Return whether another shard is in one of these regions."""
        return any(place != self.number for place in self._directory.topology.eligible(regions))

    # ---- tenants ----

    def may_create(self, tenant: str) -> bool:
        """Return whether an unknown tenant may be created here. Another shard may have it otherwise."""
        return self._facts.may_create(tenant)

    async def announce(self, tenant: str, regions: tuple[str, ...] | None) -> None:
        """Return when the other running shards can know which regions a tenant allows; None: that it was deleted."""
        await (self._facts.announce(tenant) if regions is None else self._facts.record_regions(tenant, regions))

    async def tenants(
        self, own: Sequence[TenantInfo], after: str | None, limit: int, *, figures: bool
    ) -> Sequence[TenantInfo]:
        """Return a page of the tenants of all shards; ``own`` is the same page of this shard."""
        pages = {self.number: own, **await self._all("tenants.list_local", after, limit, figures=figures)}
        found: list[TenantInfo] = []
        for shard, page in pages.items():
            names = set(tenants_with_rows(shard, (one.name for one in page)))
            found += [one for one in page if one.name in names]
        return sorted(found, key=lambda tenant: tenant.name)[:limit]

    async def _all(
        self, path: str, /, *arguments: Any, timeout_ms: int | None = READ_MS, **options: Any
    ) -> dict[int, Any]:
        """Return the results of all other shards; raise the error of one that failed, once all have answered."""
        found = await self._calls.query_all(path, *arguments, timeout_ms=timeout_ms, **options)
        for one in found.values():
            if isinstance(one, TenantqError):
                raise one
        return found

    # ---- journals ----

    async def audit(self, query: AuditQuery, query_local: Callable[[AuditQuery], Awaitable[AuditPage]]) -> AuditPage:
        """Return a page of the journals of all shards by time."""

        async def read(shard: int, wanted: AuditQuery) -> AuditPage:
            if shard == self.number:
                return await query_local(wanted)
            found: AuditPage = await self._calls.query(shard, "audit.query_local", wanted)
            return found

        return await self._merged(query, range(len(self._directory.topology.shards)), read)

    async def tenant_audit(
        self,
        query: AuditQuery,
        tenant: str,
        firsts: Mapping[int, int],
        queues: tuple[str, ...] | None,
        page_local: Callable[[AuditQuery, str, int, tuple[str, ...] | None], Awaitable[AuditPage]],
    ) -> AuditPage:
        """Return a page of a tenant's rows by time, from all shards that it has lived on."""

        async def read(shard: int, wanted: AuditQuery) -> AuditPage:
            arguments = (wanted, tenant, firsts[shard], queues)
            if shard == self.number:
                return await page_local(*arguments)
            found: AuditPage = await self._calls.query(shard, "audit.query_tenant_local", *arguments)
            return found

        return await self._merged(query, sorted(firsts), read)

    async def _merged(
        self, query: AuditQuery, shards: Sequence[int], read: Callable[[int, AuditQuery], Awaitable[AuditPage]]
    ) -> AuditPage:
        newest_first = query.order == "newest"
        cursors = parse_cursor(query.cursor, len(shards), newest_first=newest_first)
        pages = await asyncio.gather(
            *(audit_page(shard, query, cursor, read) for shard, cursor in zip(shards, cursors, strict=True))
        )
        return merge_pages(pages, cursors, query.limit, newest_first=newest_first)

    async def note_entries(self, entries: list[JournalEntry]) -> None:
        """Write entries to the journal of their tenant's shard, or to this shard's if that one does not answer."""
        by_shard: dict[int, list[JournalEntry]] = {}
        if any(one.tenant and self._directory.find(one.tenant) is None for one in entries):
            with suppress(TenantqError):  # another member has just created the tenant
                await self._directory.refresh()
        for one in entries:
            shard = self._directory.find(one.tenant) if one.tenant else None
            by_shard.setdefault(self.number if shard is None else shard, []).append(one)
        here = by_shard.pop(self.number, [])
        for shard, theirs in by_shard.items():
            try:
                await self._calls.query(shard, "peer.note_entries", theirs)
            except TenantqError:
                here += theirs
        if here:
            await self.service.shard.journal.note(here)

    async def erasures(self, own: Sequence[ErasureCertificate]) -> Sequence[ErasureCertificate]:
        """Return the certificates of all shards by time."""
        found = [*own, *(one for theirs in (await self._all("peer.erasures")).values() for one in theirs)]
        return sorted(found, key=lambda one: one.erased_at)

    # ---- backups ----

    async def back_up(
        self, create_local: Callable[[], Awaitable[BackupManifest]], *, segments: bool
    ) -> list[BackupManifest]:
        """Create a backup on this shard, and one of the same name on all others. Raise an error only after all have ended.

        No tenant moves meanwhile, so the backup has each once. Raises Conflict if one is already moving.
        """
        async with self._facts.moves_on_hold():
            made = await create_local()
            others = await self._all("backups.create_local", made.name, timeout_ms=None, segments=segments)
        return [made, *others.values()]

    async def backups(self, own: Sequence[BackupItem]) -> Sequence[BackupItem]:
        """Return the backups. One of which a shard has no part comes with an error."""
        listed = {self.number: own, **await self._all("backups.list_local")}
        parts = {shard: {one.name: one for one in items} for shard, items in listed.items()}
        names = sorted({name for items in parts.values() for name in items})
        return [_whole_backup(name, [parts[shard].get(name) for shard in sorted(parts)]) for name in names]

    # ---- status ----

    async def gather(self, path: str, own: Sequence[_T], *arguments: Any) -> Sequence[_T]:
        """Return the items of all shards that answer."""
        found = await self._calls.query_all(path, *arguments, timeout_ms=QUICK_MS)
        return [*own, *(one for theirs in found.values() if not isinstance(theirs, TenantqError) for one in theirs)]

    async def first_held(self, own: int | None) -> int | None:
        """Return the first record of this shard that a legal hold covers. Raises an error if a shard does not answer."""
        found = (own, *(await self._all("legal_holds.first_held_local", self.number)).values())
        return min((one for one in found if one is not None), default=None)

    async def ask(self, path: str, *arguments: Any, shards: Iterable[int] | None = None) -> dict[int, Any]:
        """Return what a method of all other shards returns, or of those of ``shards`` that exist.

        Raises an error if a shard does not answer.
        """
        if shards is None:
            return await self._all(path, *arguments)
        known = [shard for shard in shards if shard < len(self._directory.topology.shards)]
        found = await asyncio.gather(*(self._calls.query(shard, path, *arguments) for shard in known))
        return dict(zip(known, found, strict=True))

    async def at_owner(self, tenant: str, path: str, local: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """Call a method on the shard of a tenant. Raises NotFound if no shard has it."""
        shard = self._directory.find(tenant) if tenant else HOME
        if shard is None:
            await self._directory.refresh()
            shard = self._directory.find(tenant)
        if shard is None:
            raise no_tenant(tenant)
        if shard == self.number:
            return await local(*arguments)
        found: _T = await self._calls.query(shard, path, *arguments)
        return found

    async def at_queue(
        self, tenant: str, queue: str, path: str, local: Callable[..., Awaitable[_T]], call: Call, *arguments: Any
    ) -> _T:
        """Make a call on the shard of a tenant's queue, which need not exist."""
        shard = self._directory.find(tenant, queue)
        if shard is None or shard == self.number:
            return await local(call, *arguments)
        found: _T = await self._calls.call(shard, path, call, *arguments)
        return found

    # ---- parts of a tenant whose queues are spread over shards ----

    def reserve(self, tenant: TenantState, need: Mapping[str, int]) -> AbstractAsyncContextManager[Reservation | None]:
        """Reserve as much of the tenant's quotas as a call needs, or as there is, for the length of a block."""
        if tenant.part is None or self.spread is None:
            return nullcontext()
        return self.spread.escrow.reserve(tenant, need)

    async def ask_parts(self, tenant: TenantState, method: str, *arguments: Any) -> dict[int, Any]:
        """Return the answers of the tenant's parts on other shards. Raises an error if one does not answer."""
        return await self.spread.ask_each(tenant, method, *arguments) if self.spread is not None else {}

    async def export_parts(self, tenant: TenantState) -> PartExports | None:
        """Start to export the tenant's parts on other shards, if it is spread. Raises an error if one does not answer."""
        if self.spread is None or tenant.part is None:
            return None
        return await self.spread.export_parts(tenant)

    async def drop_parts(self, tenant: TenantState) -> list[dict[str, int]]:
        """Delete the tenant's parts on other shards, for good, and return how much each had. Waits for the shard to open."""
        await self._attached.wait()
        assert self.spread is not None
        return await self.spread.drop_parts(tenant)

    async def metrics(self, reader: str, _: Callable[[str], Awaitable[bytes]]) -> bytes:
        """Return the metrics of all shards that run, each with a label of its shard, and which shards run."""
        names = {number: shard.name for number, shard in enumerate(self._directory.topology.shards)}
        return await gather_metrics(self._ask_metrics, reader, names)

    async def _ask_metrics(self, shard: int, reader: str, name: str, share: int) -> bytes:
        if shard == self.number:
            return await self.service.status.metrics_local(reader, name, share)
        text: bytes = await self._calls.query(shard, "status.metrics_local", reader, name, share, timeout_ms=METRICS_MS)
        return text

    def readiness(self) -> dict[str, Any]:
        """Return the readiness of each shard by name: of this one in full, of the others as of their last heartbeat."""
        found: dict[int, Any] = {self.number: self.service.status.readiness()}
        for shard in range(len(self._directory.topology.shards)):
            if shard == self.number:
                continue
            is_up, ready = self._facts.is_up(shard)
            status = "ready" if ready else "failed" if is_up else "down"
            found[shard] = {"status": status, "ready": ready, "reason": "" if is_up else shard_down(shard).message}
        return {self._directory.topology.shards[shard].name: found[shard] for shard in sorted(found)}


async def audit_page(
    shard: int, query: AuditQuery, start: str, read: Callable[[int, AuditQuery], Awaitable[AuditPage]]
) -> AuditPage:
    """Return the next rows of one shard; no rows with a cursor if none was found within some steps."""
    if start == ALL_READ:
        return AuditPage([])
    cursor = start or None
    for _ in range(STEPS_MAX):
        page = await read(shard, msgspec.structs.replace(query, cursor=cursor))
        if page.rows or page.cursor is None:
            break
        cursor = page.cursor
    return page


def _whole_backup(name: str, parts: list[BackupItem | None]) -> BackupItem:
    """Return one backup of all shards. Each shard has its own journal, so that the records are those of the first."""
    missing = [str(number) for number, part in enumerate(parts) if part is None]
    wrong = [part.error for part in parts if part is not None and part.error]
    there = [part for part in parts if part is not None and not part.error]
    if missing or wrong or not there:
        text = f"shard {', '.join(missing)} has no part of it" if missing else wrong[0]
        return BackupItem(name, error=text)
    return BackupItem(
        name,
        max(part.created_at or 0 for part in there),
        there[0].last_seq,
        sum(part.size or 0 for part in there),
        there[0].segments_upto,
        there[0].version,
    )
