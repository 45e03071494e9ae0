"""The tenants of one shard as the directory places them: their moves to other shards, and parts of spread ones."""

import contextlib
import logging
from collections.abc import Mapping

from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.cluster.spread_parts import SpreadParts
from tenantq.cluster.tenant_arrivals import TenantArrivals
from tenantq.cluster.tenant_directory import TenantPlacements, tenants_with_rows
from tenantq.cluster.tenant_moves import TenantMoves
from tenantq.errors import Conflict
from tenantq.service.service import Service

log = logging.getLogger("tenantq.shards")


class PlacedTenants:
    """Moves and spreads the tenants of one shard. Used on the event loop of the shard, except where a method says otherwise."""

    def __init__(self, number: int, service: Service, placements: TenantPlacements, calls: CallsFromShard) -> None:
        self._number, self._service, self._placements = number, service, placements
        self.moves = TenantMoves(number, service.shard, placements, calls)
        self.spread = SpreadParts(number, service, placements, calls)

    def facets(self, known: Mapping[str, object]) -> dict[str, object]:
        """Return the objects whose methods other shards can call, in place of those that are known."""
        return {
            "arrivals": TenantArrivals(self._service.shard),
            "moves": self.moves,
            **self.spread.facets(known),
        }

    async def open(self) -> None:
        """Check the directory rows of this shard's tenants, and begin to maintain their parts."""
        number, placements = self._number, self._placements
        tenants = self._service.shard.state.catalog.tenants
        if any(one.part is not None for one in tenants.values()):
            await placements.refresh()  # so that settings reach all parts
        for tenant in tenants_with_rows(number, [name for name, one in tenants.items() if one.part is None]):
            if placements.find(tenant) is None:  # the store had no directory yet
                await placements.put(tenant, number)
            if placements.find(tenant) != number:
                await self._check_place(tenant)
        await self._remove_deleted()
        for tenant, one in list(tenants.items()):
            if placements.find(tenant) == number and (one.part is None or one.part.is_home):
                with contextlib.suppress(Conflict):  # another process changes the row: the next opening checks it again
                    await placements.record_regions(tenant, one.config.regions)  # a crash may have come first
        self.spread.start()

    async def _check_place(self, tenant: str) -> None:
        """Log an error if the directory, read again, does not name this shard for a tenant that it serves."""
        await self._placements.refresh()
        shard = self._placements.find(tenant)
        if shard not in {None, self._number}:
            log.error(
                "tenant %s is not served by shard %d, which has it: the directory names shard %d. If this is the right one,"
                " delete the other and restart the server. Otherwise, its messages here are only waste.",
                tenant, self._number, shard,
            )  # fmt: skip

    async def _remove_deleted(self) -> None:
        """Remove the rows of tenants that were deleted immediately before a crash."""
        catalog, placements = self._service.shard.state.catalog, self._placements
        for name in {one.tenant for one in self._service.shard.erasure.certificates()}:
            row = placements.row(name)
            if row is None or row.shard != self._number or name in catalog.tenants or catalog.is_in_transit(name):
                continue
            await placements.refresh()  # it may be elsewhere by now
            row = placements.row(name)
            if row is not None and row.shard == self._number:
                await placements.remove(name)

    def has_work(self) -> bool:
        """Return whether ``look`` has something to continue. Safe from any thread."""
        return self.moves.has_work() or bool(self.spread.changes.wanted())

    def look(self) -> None:
        """Continue the moves and changes that the directory requests."""
        self.moves.look()
        self.spread.changes.look()

    async def close(self) -> None:
        """Stop. The next owner of the shard continues."""
        try:
            await self.spread.close()
        finally:
            await self.moves.close()
