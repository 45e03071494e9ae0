"""Receives tenants, and queues of spread tenants, that move to a shard; see ``tenant_moves``."""

from tenantq.domain.message import SYSTEM
from tenantq.engine.ops.move import (
    ActivateTenant,
    BeginArrival,
    CancelArrival,
    ReceiveRows,
)
from tenantq.engine.shard import Shard
from tenantq.engine.tenant_rows import RowChange
from tenantq.errors import Conflict


class TenantArrivals:
    """Receives tenants of other shards, whose owners call it. Used on the event loop of the shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._sessions: dict[str, str] = {}  # by name: copies that have begun since this shard was opened

    async def begin(self, id: int, name: str, source: int, session: str) -> int:
        """Prepare to receive a tenant's rows, and return this shard's time."""
        await self._shard.submit(BeginArrival(self._shard.state.platform, SYSTEM, id, name, source))
        self._sessions[name] = session
        return self._shard.state.shard_clock.now_ms()

    async def receive(
        self, id: int, name: str, session: str, changes: list[RowChange], row: bytes, key_ids: list[str]
    ) -> int:
        """Write rows of an arriving tenant; with ``row``, the last ones. Raises Conflict if another copy has begun."""
        if self._sessions.get(name) != session:
            raise Conflict("the target shard has another owner now, or another copy has begun")
        platform = self._shard.state.platform
        await self._shard.submit(ReceiveRows(platform, SYSTEM, id, name, changes, row, tuple(key_ids)))
        if row:
            await (
                self._shard.loop.made_durable()
            )  # what the directory decides next must not be undone by a power failure
        return len(changes)

    async def activate(self, name: str) -> int:
        """Serve a tenant whose rows have arrived, and whose directory row names this shard. Return 1 if there are no rows here."""
        activation = ActivateTenant(self._shard.state.platform, SYSTEM, name)
        await self._shard.submit(activation)
        await self._shard.loop.made_durable()  # the source deletes its rows
        return int(activation.is_lost)

    def fate(self, id: int) -> str:
        """Return what became of a tenant on this shard: "served", "leaving" (it is fenced), "erased", or "" if it is not known."""
        catalog = self._shard.state.catalog
        if id in catalog.tenants_by_id:
            return "served"
        if any(moved.id == id and moved.row for moved in catalog.moved.values()):
            return "leaving"
        return "erased" if any(one.tenant_id == id for one in self._shard.erasure.certificates()) else ""

    async def cancel(self, name: str, session: str) -> int:
        """Delete the rows of a tenant that does not move here."""
        if self._sessions.get(name) == session:
            await self._shard.submit(CancelArrival(self._shard.state.platform, SYSTEM, name))
        return 0
