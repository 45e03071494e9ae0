"""The placement of tenants and the number of shards, changed by operators through any process with shards."""

import asyncio
from collections.abc import Callable, Container, Coroutine
from typing import Any, Final, Protocol

from tenantq.cluster.placement_plan import Placements, current_shard, plan_dedication, plan_pin, plan_spread, plan_unpin
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.cluster.tenant_moves import MoveProgress
from tenantq.domain.access import Principal
from tenantq.domain.cluster_view import Cluster
from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.domain.placement import split_unit
from tenantq.errors import Conflict, Invalid, no_tenant
from tenantq.journal.record import entry_of
from tenantq.service.call import Call, TenantInfo
from tenantq.store.shard_directories import HOME
from tenantq.wire.cluster import GrowRequest, PlacementReply, PlacementRequest, TenantMoveItem

PROGRESS_MS: Final = 1_000
ATTEMPTS: Final = 5
"""How often a change is planned again because another one came first."""

KNOWN_S: Final = 0.8
"""Longest time until all processes have read a change."""

CHECKS: Final = 3
"""How often a dedicated shard is checked for tenants that other members have placed there at the same time."""


class PlatformAdmission(Protocol):
    """Authorizes calls about the platform."""

    async def identify(self, call: Call, action: str) -> Principal:
        """Return the caller's principal."""

    async def authorize_platform(self, call: Call, action: str) -> None:
        """Raise if the caller may not do this with the platform."""


class PlacementServer(Protocol):
    """What the placement of tenants needs to know about the server or cluster, and asks of it."""

    @property
    def cluster(self) -> Cluster:
        """All shards."""

    @property
    def served(self) -> Container[str]:
        """The regions that have servers."""

    def check_served(self, tenant: str, shard: int) -> None:
        """Raise Conflict if nothing can serve a shard that a tenant is to move to."""

    def check_spread(self) -> None:
        """Raise Conflict if a process cannot serve a part of a tenant."""

    async def allow_spread(self) -> None:
        """Have programs that cannot serve a part of a tenant refuse the store from now on."""

    def look(self) -> None:
        """Have all processes read what has changed in the directory, and move tenants."""

    async def grow(self, shards: int, *, dry_run: bool) -> None:
        """Raise the number of shards, or only check that. Raises Invalid or Conflict."""


class PlacementAdmin:
    """Shows and changes where tenants live."""

    def __init__(
        self,
        placements: TenantPlacements,
        calls: ShardCalls,
        admission: PlatformAdmission,
        server: PlacementServer,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._placements, self._calls = placements, calls
        self._admission, self._server, self._background = admission, server, background

    async def get(self, call: Call, tenant: str) -> PlacementReply:
        """Return where a tenant lives, and how far its move is. Raises NotFound."""
        await self._admission.authorize_platform(call, "get_cluster")
        await self._placements.refresh()
        return await self._reply(tenant, {})

    async def moves(self) -> list[TenantMoveItem]:
        """Return the moves of tenants in progress."""
        rows = self._placements.moving()
        sources = {row.shard for row in rows.values()}
        found = await self._calls.query_each(sources, "moves.progress", timeout_ms=PROGRESS_MS)
        progress: dict[str, MoveProgress] = {
            one.tenant: one for moves in found.values() if isinstance(moves, list) for one in moves
        }
        items = []
        for name, row in sorted(rows.items()):
            known = progress.get(name, MoveProgress(name, current_shard(row), "waiting", 0))
            tenant, queue = split_unit(name)
            items.append(
                TenantMoveItem(
                    tenant=tenant, queue=queue, source=row.shard, target=current_shard(row), stage=known.stage, rows=known.rows,
                    problem=known.problem,
                )
            )  # fmt: skip
        return items

    async def place(self, call: Call, tenant: str, request: PlacementRequest) -> PlacementReply:
        """Pin a tenant to a shard, give it a shard of its own, spread its queues, or let it be like others.

        Returns before anything has moved.

        Raises NotFound, Invalid if the shard does not exist or is in a region that the tenant does not allow, and Conflict.
        """
        await self._admission.authorize_platform(call, "place_tenant")
        principal = await self._admission.identify(call, "place_tenant")
        if request.spread is not None and (request.shard is not None or request.dedicated or not request.pinned):
            raise Invalid("spread: cannot be combined with shard, dedicated or pinned.")
        if request.shard is None and request.pinned and not request.dedicated and request.spread is None:
            raise Invalid("shard: missing. Name the shard, or set dedicated or spread.")
        if not request.pinned and (request.dedicated or request.shard is not None):
            raise Invalid("pinned: must be true together with shard or dedicated.")
        if tenant in {DEFAULT_TENANT, *PROBE_TENANTS}:
            raise Conflict("this tenant always lives on shard 0.", tenant=tenant)
        for _ in range(ATTEMPTS):
            plan = await self._plan(call, tenant, request)
            if request.dry_run:
                return await self._reply(tenant, plan)
            if plan and request.spread is not None and request.spread > 1:
                await self._server.allow_spread()
            if await self._write(plan):
                break
        else:
            raise Conflict("another request is changing the tenant's placement. Try again.", tenant=tenant)
        caller = call.caller(principal.id)
        await self._calls.query(
            self._placements.find(tenant) or 0,
            "peer.note_entries",
            [entry_of("place_tenant", tenant, caller, _details(request))],
        )
        self._server.look()
        if request.dedicated:
            self._background(self._keep_free(call, tenant, request))
        return await self._reply(tenant, plan)

    async def _plan(self, call: Call, tenant: str, request: PlacementRequest) -> Placements:
        """Return the new rows, given the directory as it is now."""
        await self._placements.refresh()
        rows, cluster = self._placements.rows(), self._server.cluster
        if tenant not in rows:
            raise no_tenant(tenant)
        info: TenantInfo = await self._calls.call(rows[tenant].shard, "tenants.get", call, tenant)
        regions = info.config.regions
        if request.spread is not None:
            if any(one.moving_to is not None for one in self._placements.units(tenant).values()):
                raise Conflict("queues of the tenant are moving. Try again later.", tenant=tenant)
            if request.spread > 1:
                self._server.check_spread()
                await self._calls.query(rows[tenant].shard, "parts.check_spreadable", tenant)
            plan = plan_spread(cluster, rows, tenant, request.spread, regions, self._server.served)
        elif request.dedicated:
            plan = plan_dedication(cluster, rows, tenant, request.shard, regions, self._server.served)
        elif request.pinned:
            assert request.shard is not None
            plan = plan_pin(cluster, rows, tenant, request.shard, regions)
        else:
            plan = plan_unpin(rows, tenant)
        for name, row in plan.items():
            for shard in (row.moving_to, *row.next_shards):
                if shard is not None:
                    self._server.check_served(name, shard)
        return plan

    async def _write(self, plan: Placements) -> bool:
        """Write the new rows, the tenant's own first. Return False if one has changed since."""
        for name, row in plan.items():
            if row != self._placements.row(name) and await self._placements.replace(name, row) is None:
                return False
        return True

    async def _keep_free(self, call: Call, tenant: str, request: PlacementRequest) -> None:
        """Move tenants away that members have placed on the shard before they knew that it is dedicated."""
        for _ in range(CHECKS):
            await asyncio.sleep(KNOWN_S)
            row = self._placements.row(tenant)
            if row is None or not row.dedicated:
                return
            await self._write(await self._plan(call, tenant, request))
            self._server.look()

    async def _reply(self, tenant: str, plan: Placements) -> PlacementReply:
        row = plan.get(tenant) or self._placements.row(tenant)
        if row is None:
            raise no_tenant(tenant)
        cluster = self._server.cluster
        planned = [
            TenantMoveItem(
                tenant=name, queue="", source=one.shard, target=one.moving_to, stage="planned", rows=0, problem=""
            )
            for name, one in plan.items()
            if one.moving_to is not None
        ]
        moves = planned or [one for one in await self.moves() if one.tenant == tenant]
        changing = bool(row.next_shards or row.leaving or len(row.shards) == 1 or self._placements.units(tenant))
        return PlacementReply(
            tenant=tenant,
            shard=row.shard,
            region=cluster.region_of(row.shard),
            spread=len(row.next_shards) or row.spread,
            shards=list(row.next_shards or row.shards or (row.shard,)),
            changing=changing,
            problem=await self._problem(tenant, row.shard) if changing and tenant not in plan else "",
            pinned=row.pinned,
            dedicated=row.dedicated,
            version=row.version,
            moves=moves,
        )

    async def _problem(self, tenant: str, home: int) -> str:
        found = await self._calls.query_each([home], "spread.problem", tenant, timeout_ms=PROGRESS_MS)
        problem = found[home]
        return problem if isinstance(problem, str) else ""

    async def grow(self, call: Call, request: GrowRequest) -> None:
        """Raise the number of shards. The current number is accepted and changes nothing.

        Raises Invalid if it is lower than now or above the maximum, or if members have a lower setting. A dry run makes the
        same checks.
        """
        await self._admission.authorize_platform(call, "grow_cluster")
        principal = await self._admission.identify(call, "grow_cluster")
        before = self._server.cluster.shards
        await self._server.grow(request.shards, dry_run=request.dry_run)
        if not request.dry_run:
            caller = call.caller(principal.id)
            entry = entry_of("grow_cluster", "", caller, f"{before} to {request.shards} shards")
            await self._calls.query(HOME, "peer.note_entries", [entry])


def _details(request: PlacementRequest) -> str:
    if request.spread is not None:
        return f"spread over {request.spread} shards"
    if not request.pinned:
        return "unpin"
    shard = f"shard {request.shard}" if request.shard is not None else "a free shard"
    return f"{'dedicate' if request.dedicated else 'pin to'} {shard}"
