"""Which shard has which tenant, for all shards of a server or cluster and for transports without a shard."""

import asyncio
import threading
import time
from collections.abc import Callable, Container, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

import msgspec

from tenantq.cluster.error_codec import shard_down
from tenantq.cluster.placement_plan import dedicated_shards
from tenantq.cluster.registry import PlacementRows
from tenantq.domain.cluster_view import Cluster, TenantPlacement
from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.domain.placement import (
    GROUP_SEPARATOR,
    Topology,
    jump_hash,
    split_unit,
    spread_shard,
    tenant_key,
    unit_name,
)
from tenantq.errors import Conflict, Invalid
from tenantq.store.shard_directories import HOME

ATTEMPTS: Final = 5
"""How often a row is written that others change at the same time."""


def tenants_with_rows(number: int, names: Iterable[str]) -> list[str]:
    """Return the tenants of a shard that have directory rows: not its probe tenants, and 'default' only on shard 0."""
    hidden = {*PROBE_TENANTS, *(() if number == HOME else (DEFAULT_TENANT,))}
    return [name for name in names if name not in hidden]


class TenantPlacements:
    """The directory rows of all tenants, kept in memory. Reading is safe from any thread."""

    def __init__(self, stored: PlacementRows, cluster: Cluster) -> None:
        self.cluster = cluster
        self._stored = stored
        self._rows: dict[str, TenantPlacement] = {}
        self._marked: set[str] = set()  # tenants that move, are spread over shards, or have a shard of their own
        self._units: dict[str, set[str]] = {}  # by tenant: the rows of its queues
        self.version = 0
        self._lock = threading.Lock()
        self._read_at = 0.0

    def find(self, tenant: str, queue: str | None = None) -> int | None:
        """Return the home of a tenant, or the shard of its queue, which need not exist; None if it is not known."""
        row = self._rows.get(tenant)
        if row is None:
            return HOME if tenant == DEFAULT_TENANT else None
        if queue is None or not (row.shards or row.next_shards):
            return row.shard
        recorded = self._rows.get(unit_name(tenant, queue))
        if recorded is not None:
            return recorded.shard
        return spread_shard(tenant, queue, row.shards) if row.shards else row.shard

    def row(self, tenant: str) -> TenantPlacement | None:
        """Return the row of a tenant; None if it is not known."""
        return self._rows.get(tenant)

    def shard_of(self, name: str) -> int | None:
        """Return the shard of a tenant or of a group of queues, by the name that its row has or would have."""
        tenant, group = split_unit(name)
        return self.find(tenant, group or None)

    def rows(self) -> dict[str, TenantPlacement]:
        """Return the rows of all tenants, without those of single queues."""
        return {name: row for name, row in list(self._rows.items()) if GROUP_SEPARATOR not in name}

    def units(self, tenant: str) -> dict[str, TenantPlacement]:
        """Return the rows of the queues of a spread tenant that are not where their hash says, or were not."""
        return {name: row for name in list(self._units.get(tenant, ())) if (row := self._rows.get(name)) is not None}

    def spread(self) -> dict[str, TenantPlacement]:
        """Return the rows of the tenants that are spread over several shards, or were until now."""
        return {name: row for name, row in self._marked_rows().items() if len(row.parts) > 1 or row.shards}

    def moving(self) -> dict[str, TenantPlacement]:
        """Return the rows of the tenants and queues that are moving to another shard."""
        return {name: row for name, row in self._marked_rows().items() if row.moving_to is not None}

    def _marked_rows(self) -> dict[str, TenantPlacement]:
        return {name: row for name in list(self._marked) if (row := self._rows.get(name)) is not None}

    async def refresh(self) -> None:
        """Read the rows that have changed."""
        await asyncio.to_thread(self.read, time.monotonic())

    def read(self, since: float) -> None:
        """Read the rows that have changed. Blocks. Does nothing if another thread has started to read ``since`` then."""
        with self._lock:
            if self._read_at > since:
                return
            started_at = time.monotonic()
            found = self._stored.placement_changes(self.version) if self.version else None
            if found is None:
                self.version, self._rows = self._stored.placements()
                self._marked = {tenant for tenant, row in self._rows.items() if _is_marked(row)}
                self._units = {}
                for name in self._rows:
                    self._index(name)
            else:
                version, changes = found
                for tenant, row in changes.items():
                    self._keep(tenant, row)
                self.version = version
            self._read_at = started_at  # not if the reading has failed

    def _keep(self, tenant: str, row: TenantPlacement | None) -> None:
        known = self._rows.get(tenant)
        self._index(tenant, removed=row is None)
        if row is None:
            self._rows.pop(tenant, None)
        elif known is None or known.version <= row.version:
            self._rows[tenant] = row
        if row is not None and _is_marked(row):
            self._marked.add(tenant)
        else:
            self._marked.discard(tenant)

    def _index(self, name: str, *, removed: bool = False) -> None:
        tenant, group = split_unit(name)
        if group and removed:
            self._units.get(tenant, set()).discard(name)
        elif group:
            self._units.setdefault(tenant, set()).add(name)

    async def place(self, tenant: str, regions: Iterable[str], served: Container[str]) -> int:
        """Return the shard of a tenant, or of a new one the jump hash of its name over the shards in its regions.

        ``served`` are the regions that have servers. Raises Invalid if no shard is in the tenant's regions, and Conflict if no
        server can own such a shard.
        """
        allowed, cluster = tuple(regions), self.cluster
        taken = dedicated_shards(self._marked_rows())
        in_regions = cluster.shards_in(allowed, served)
        if not in_regions and cluster.shards_in(allowed):
            names = ", ".join(allowed) or ", ".join(cluster.regions)
            raise Conflict(f"regions: no server of region {names} is running. Start one first.", tenant=tenant)
        shards = [shard for shard in in_regions if shard not in taken]
        if in_regions and not shards:
            raise Conflict(
                f"every shard in {', '.join(allowed) or 'the cluster'} is dedicated to one tenant. Add shards first.",
                tenant=tenant,
            )
        if not shards:
            known = ", ".join(self.cluster.regions) or "none"
            raise Invalid(
                f"regions: no shard is in {', '.join(allowed)}. There are shards in these regions: {known}.",
                tenant=tenant,
            )
        return await self.put(tenant, shards[jump_hash(tenant_key(tenant), len(shards))], allowed)

    async def put(self, tenant: str, shard: int, regions: tuple[str, ...] = ()) -> int:
        """Place a tenant on a shard unless it has a place already; return its shard."""
        wanted = TenantPlacement(shard=shard, regions=regions)
        row = await asyncio.to_thread(self._stored.place_tenant, tenant, wanted)
        self._keep(tenant, row)
        return row.shard

    async def put_unit(self, unit: str, row: TenantPlacement) -> None:
        """Write the row of a group of queues that has none."""
        self._keep(unit, await asyncio.to_thread(self._stored.place_tenant, unit, row))

    async def remove_unit(self, unit: str) -> None:
        """Delete the row of a group of queues that is where its hash says."""
        await asyncio.to_thread(self._stored.remove_tenant, unit)
        self._keep(unit, None)

    async def replace(self, tenant: str, row: TenantPlacement) -> TenantPlacement | None:
        """Replace the row that has the version of ``row``; return the new one, or None if it has another version."""
        stored = await asyncio.to_thread(self._stored.move_tenant, tenant, row, row.version)
        if stored is not None:
            self._keep(tenant, stored)
        return stored

    async def record_regions(self, tenant: str, regions: tuple[str, ...]) -> None:
        """Write the regions that a tenant allows into its row. Raises Conflict if others change the row all the time."""
        for _ in range(ATTEMPTS):
            row = self._rows.get(tenant)
            if row is None or row.regions == regions:
                return
            if await self.replace(tenant, msgspec.structs.replace(row, regions=regions)) is not None:
                return
            await self.refresh()
        raise Conflict("stored, but other servers do not know its regions yet. Try again.", tenant=tenant)

    async def remove(self, tenant: str) -> None:
        """Forget a tenant that was deleted, and its queues; or one of its queues, by the name of its row."""
        for name in (*self.units(tenant), tenant):
            await asyncio.to_thread(self._stored.remove_tenant, name)
            self._keep(name, None)


def _is_marked(row: TenantPlacement) -> bool:
    return row.moving_to is not None or row.dedicated or len(row.parts) > 1 or bool(row.shards)


class TenantDirectory:
    """The directory as one shard sees it, or the transports of a process, which have no shard."""

    def __init__(
        self,
        placements: TenantPlacements,
        fallback: Callable[[], int],
        topology: Callable[[], Topology],
        own: Callable[[], Container[str]] = tuple,
        runs: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """Prepare. ``fallback`` returns the shard that refuses calls that no shard can answer, ``own`` its tenants.

        ``runs`` returns whether a shard runs that stays in its process. In a cluster, calls follow a shard to its owner.
        """
        self._placements = placements
        self._own = own
        self._runs = runs
        self._fallback = fallback
        self._topology = topology

    @property
    def number(self) -> int:
        """The shard that refuses calls that no shard can answer; of a shard, it is the shard itself."""
        return self._fallback()

    @property
    def topology(self) -> Topology:
        """All shards, and where clients reach their owners."""
        return self._topology()

    def find(self, tenant: str, queue: str | None = None) -> int | None:
        """Return the home of a tenant, or the shard of its queue; None if it is not known."""
        return self.number if tenant in PROBE_TENANTS else self._placements.find(tenant, queue)

    def is_known(self, shard: int) -> bool:
        """Return whether this shard exists, and runs or has an owner to wait for."""
        return 0 <= shard < len(self.topology.shards) and self._runs(shard)

    async def refresh(self) -> None:
        """Read what has changed, because a tenant is not known."""
        await self._placements.refresh()

    def check_all_run(self) -> None:
        """Raise ShardDown unless all shards run: an unknown name gets the same reply as a tenant of one that does not."""
        for shard in range(len(self.topology.shards)):
            if not self._runs(shard):
                raise shard_down(shard)

    def check_reachable(self, tenant: str) -> None:
        """Raise ShardDown for a tenant whose shard does not run."""
        shard = self.find(tenant)
        if shard is not None and not self.is_known(shard):
            raise shard_down(shard)

    # ---- for the service of a shard ----

    def may_create(self, tenant: str) -> bool:
        """Return whether an unknown tenant may be created on this shard. May block the shard for a moment."""
        if self.find(tenant) != self.number:
            self._placements.read(time.monotonic())  # another server has placed it, perhaps just now
        return self.find(tenant) == self.number

    async def announce(self, tenant: str) -> None:
        """Remove a tenant that was deleted. A tenant that was created again meanwhile, here or elsewhere, keeps its place."""
        await self._placements.refresh()
        if tenant not in self._own() and self._placements.find(tenant) == self.number:
            await self._placements.remove(tenant)
        if tenant in self._own():
            await self._placements.put(tenant, self.number)

    async def record_regions(self, tenant: str, regions: tuple[str, ...]) -> None:
        """Write the regions that a tenant allows into its row. The other servers read it with their next heartbeat."""
        await self._placements.record_regions(tenant, regions)

    def moves_on_hold(self) -> AbstractAsyncContextManager[None]:
        """Do nothing: a store that servers share has its own backups."""
        return nullcontext()

    def is_up(self, shard: int) -> tuple[bool, bool]:
        """Return whether a shard has an owner."""
        has_owner = bool(self.topology.shards[shard].address)
        return has_owner, has_owner
