"""Changes of the number of shards that a tenant's queues are spread over. The tenant's home makes them.

``next_shards`` in the tenant's directory row starts a change:

1. All parts, old and new, are prepared: from here on a part creates a queue only if both the old and the new shards put it
   there. New parts get the tenant's settings, and no rights.
2. Queues that are not where the new shards put them get directory rows, which name the shard they are on and the one they
   shall move to. They move as tenants do; see ``tenant_moves``.
3. The tenant's row is replaced: queues without a row of their own are where the new shards put them.
4. All parts read the directory, and then use the new shards.
5. When its last queue has left, a part that is not needed any more sends its rights home and is deleted.

Every step can be repeated, so the server that opens the home shard continues a change from its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import Final

import msgspec

from tenantq.cluster.escrow import ANSWER_MS, Escrow
from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.cluster.shared_settings import SharedSettings
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.cluster_view import TenantPlacement
from tenantq.domain.message import SYSTEM
from tenantq.domain.placement import split_unit, spread_shard, unit_name
from tenantq.engine.operation import Operation
from tenantq.engine.ops.spread import (
    EndSpread,
    ForgetPart,
    NotePart,
    PrepareHome,
    ReserveBlock,
    SwitchPart,
    shared_state,
)
from tenantq.engine.queue_groups import arriving_units
from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, StoreFailed, TenantqError

log = logging.getLogger("tenantq.shards")

RETRY_S: Final = 0.5


class SpreadChanges:
    """Changes the spread of tenants whose home is one shard. Used on the event loop of the shard."""

    def __init__(
        self,
        number: int,
        shard: Shard,
        placements: TenantPlacements,
        calls: CallsFromShard,
        escrow: Escrow,
        settings: SharedSettings,
    ) -> None:
        self._number, self._shard, self._placements = number, shard, placements
        self._calls, self._escrow, self._settings = calls, escrow, settings
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._problems: dict[str, str] = {}  # by tenant: why the last attempt failed
        self._closing = False

    def wanted(self) -> list[str]:
        """Return the tenants whose spread is to be changed. Safe from any thread."""
        return [
            name
            for name, row in self._placements.spread().items()
            if row.shard == self._number
            and (
                row.next_shards
                or row.leaving
                or len(row.shards) == 1
                or self._placements.units(name)
                or not self._is_spread(name)
            )
        ]

    def _is_spread(self, name: str) -> bool:
        tenant = self._shard.state.catalog.tenants.get(name)
        return tenant is not None and tenant.part is not None

    def problem(self, tenant: str) -> str:
        """Return why the last attempt to change the spread of a tenant failed; empty if it did not."""
        return self._problems.get(tenant, "")

    def look(self) -> None:
        """Continue what the directory asks for."""
        for name in self.wanted() if not self._closing else ():
            if name not in self._tasks:
                task = self._tasks[name] = asyncio.get_running_loop().create_task(self._run(name))
                task.add_done_callback(functools.partial(self._ended, name))

    def _ended(self, name: str, _: object) -> None:
        self._tasks.pop(name, None)

    async def close(self) -> None:
        """Stop. The next owner of the shard continues."""
        self._closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, name: str) -> None:
        try:
            while not self._closing and name in self.wanted():
                try:
                    await self._change(name)
                except TenantqError as error:
                    if isinstance(error, StoreFailed) and self._shard.failure is not None:
                        return
                    if self._problems.get(name) != error.message:
                        log.info("tenant %s is not spread as wanted yet: %s", name, error)
                    self._problems[name] = error.message
                    await asyncio.sleep(RETRY_S)
                    with contextlib.suppress(TenantqError):
                        await self._placements.refresh()
                except Exception:
                    log.exception("tenant %s is not spread as wanted yet", name)
                    self._problems[name] = "internal server error; see the server log"
                    await asyncio.sleep(RETRY_S)
        finally:
            self._problems.pop(name, None)

    async def _change(self, name: str) -> None:
        await self._placements.refresh()
        row = self._placements.row(name)
        if row is None or row.shard != self._number:
            return
        tenant = self._shard.state.catalog.tenants.get(name)
        if tenant is None or (tenant.part is None and not row.next_shards and len(row.shards) > 1):
            await self._forget(name, row)
            return
        if tenant.erasing is not None:
            raise Conflict("the tenant is being deleted", tenant=name)
        if row.next_shards:
            row = await self._switch(tenant, row)
        await self._each(row, "switch", name, list(row.shards))
        await self._clean_up(tenant.name)
        if row.leaving:
            row = await self._leave(tenant, row)
        if len(row.shards) == 1 and not row.leaving:
            await self._end(tenant, row)

    async def _forget(self, name: str, row: TenantPlacement) -> None:
        """Have the directory forget the spread of a tenant that was deleted: a new one of its name has one shard."""
        for unit in self._placements.units(name):
            await self._placements.remove_unit(unit)
        plain = msgspec.structs.replace(row, shards=(), next_shards=(), leaving=())
        if await self._placements.replace(name, plain) is None:
            raise Conflict("its placement was changed meanwhile", tenant=name)

    async def replace_lost_parts(self, tenant: TenantState) -> bool:
        """Create parts again that the directory names, and whose shards have lost them. Return whether there were any."""
        row = self._placements.row(tenant.name)
        if row is None or row.next_shards or tenant.part is None or tenant.erasing is not None:
            return False  # a change prepares them
        lost = [one for one in row.shards if one != self._number and not await self._has_part(tenant, one)]
        for shard in lost:
            await self._prepare(tenant, shard, row.shards, ())
        return bool(lost)

    async def _has_part(self, tenant: TenantState, shard: int) -> bool:
        return bool(await self._calls.query(shard, "parts.has_part", tenant.id, timeout_ms=ANSWER_MS))

    # ---- steps ----

    async def _switch(self, tenant: TenantState, row: TenantPlacement) -> TenantPlacement:
        """Prepare all parts, record where queues are, and replace the tenant's row."""
        name, old, new = tenant.name, row.shards or (row.shard,), row.next_shards
        platform = self._shard.state.platform
        await self._submit(PrepareHome(platform, SYSTEM, name, self._number, new))
        for shard in row.parts:
            if shard != self._number:
                await self._prepare(tenant, shard, old, new)
        await self._settings.send_again(tenant)  # a new part may have got older settings
        for shard in row.parts:
            units = await self._units(name, shard)
            for unit in units:
                await self._record(unit, shard, spread_shard(name, split_unit(unit)[1], new))
        for unit, known in self._placements.units(name).items():  # also of queues that were deleted since
            await self._record(unit, known.shard, spread_shard(name, split_unit(unit)[1], new))
        leaving = tuple(one for one in dict.fromkeys((*row.leaving, *old)) if one not in new)
        done = msgspec.structs.replace(row, shards=new, next_shards=(), leaving=leaving)
        stored = await self._placements.replace(name, done)
        if stored is None:
            raise Conflict("its placement was changed meanwhile", tenant=name)
        return stored

    async def _prepare(self, tenant: TenantState, shard: int, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        platform, block = self._shard.state.platform, 0
        if not await self._has_part(tenant, shard):
            await self._submit(ForgetPart(platform, SYSTEM, tenant.name, shard))
            block = await self._shard.submit(
                ReserveBlock(platform, SYSTEM, tenant.name)
            )  # no other part gets these ids
        arguments = (shared_state(self._shard.state, tenant), self._number, list(old), list(new), block)
        await self._shard.loop.made_durable()
        since: int = await self._calls.query(shard, "parts.prepare", *arguments, timeout_ms=ANSWER_MS)
        await self._submit(NotePart(platform, SYSTEM, tenant.name, shard, since))

    async def _units(self, name: str, shard: int) -> list[str]:
        if shard == self._number:
            return sorted({unit_name(name, queue) for queue in self._shard.tenant(name).queues})
        found: list[str] = await self._calls.query(shard, "parts.units", name, timeout_ms=ANSWER_MS)
        return found

    async def _record(self, unit: str, shard: int, target: int) -> None:
        """Write where a group of queues is, and where it shall be, unless the hash and its row say so already."""
        known = self._placements.row(unit)
        moving_to = target if target != shard else None
        if known is None:
            if moving_to is not None:
                await self._placements.put_unit(unit, TenantPlacement(shard=shard, moving_to=moving_to))
        elif known.shard == shard and known.moving_to != moving_to:
            changed = msgspec.structs.replace(known, moving_to=moving_to)
            if await self._placements.replace(unit, changed) is None:
                raise Conflict("a queue is moving; the next attempt follows", tenant=split_unit(unit)[0])

    async def _each(self, row: TenantPlacement, method: str, name: str, shards: list[int]) -> None:
        for shard in row.parts:
            if shard == self._number:
                await self._submit(SwitchPart(self._shard.state.platform, SYSTEM, name, tuple(shards)))
                continue
            with contextlib.suppress(Conflict):  # the part is gone already
                await self._calls.query(shard, f"parts.{method}", name, shards, timeout_ms=ANSWER_MS)

    async def _leave(self, tenant: TenantState, row: TenantPlacement) -> TenantPlacement:
        """Delete the parts that are not needed any more. Raises Conflict while one has queues."""
        platform, left = self._shard.state.platform, row.leaving
        for shard in left:
            if await self._has_part(tenant, shard):
                await self._escrow.take_back(tenant, shard)
                arguments = (tenant.name, tenant.id, self._number, tenant.queue_blocks)
                await self._calls.query(shard, "parts.drop", *arguments, timeout_ms=ANSWER_MS)
            await self._submit(ForgetPart(platform, SYSTEM, tenant.name, shard))
            stored = await self._placements.replace(
                tenant.name, msgspec.structs.replace(row, leaving=tuple(one for one in row.leaving if one != shard))
            )
            if stored is None:
                raise Conflict("its placement was changed meanwhile", tenant=tenant.name)
            row = stored
        return row

    async def _clean_up(self, name: str) -> None:
        """Delete the rows of queues that are where their hash says. Raises Conflict while queues are moving.

        A row decides the move of its queues, so it stays until their new shard serves them.
        """
        units = self._placements.units(name)
        if any(known.moving_to is not None for known in units.values()):
            raise Conflict("queues are moving", tenant=name)
        for shard in dict.fromkeys(known.shard for known in units.values()):
            if not units.keys().isdisjoint(await self._arriving(name, shard)):
                raise Conflict("queues are moving", tenant=name)
        for unit in units:
            await self._placements.remove_unit(unit)

    async def _arriving(self, name: str, shard: int) -> list[str]:
        if shard == self._number:
            return arriving_units(self._shard.state.catalog, self._shard.tenant(name))
        found: list[str] = await self._calls.query(shard, "parts.arriving", name, timeout_ms=ANSWER_MS)
        return found

    async def _end(self, tenant: TenantState, row: TenantPlacement) -> None:
        """Make a tenant whose queues are all at home an ordinary one."""
        await self._submit(EndSpread(self._shard.state.platform, SYSTEM, tenant.name))
        if await self._placements.replace(tenant.name, msgspec.structs.replace(row, shards=())) is None:
            raise Conflict("its placement was changed meanwhile", tenant=tenant.name)

    async def _submit(self, operation: Operation[None]) -> None:
        await self._shard.submit(operation)
