"""One shard's parts of tenants that are spread over shards, and what connects them with the other parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from tenantq.cluster.escrow import ANSWER_MS, Escrow
from tenantq.cluster.part_rates import PartRates
from tenantq.cluster.part_rights import RightsQueries
from tenantq.cluster.rights_audit import RightsAudit
from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.cluster.shared_settings import CHANGING, SharedSettings
from tenantq.cluster.spread_changes import SpreadChanges
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.cluster.tenant_parts import PartQueries
from tenantq.domain.message import SYSTEM
from tenantq.domain.placement import unit_name
from tenantq.domain.quotas import NO_QUOTAS
from tenantq.engine.ops.rights import ReportQuotas
from tenantq.engine.queue_groups import arriving_units
from tenantq.engine.queue_state import TenantState
from tenantq.errors import Conflict, TenantMoved, TenantqError
from tenantq.service.admission import own_tenant
from tenantq.service.call import Call
from tenantq.service.export_import import queues_moving
from tenantq.service.part_export import PartExport, PartExports, close_all
from tenantq.service.service import Service
from tenantq.service.tenant_figures import used_by_other_parts

log = logging.getLogger("tenantq.shards")

LOOK_S: Final = 0.1
IDLE_S: Final = 1.0
FLUSH_EVERY: Final = 10
"""Looks between two checks that all parts have the present settings."""

CHECK_S: Final = 2.0
"""Seconds between checks of all parts: their usage, and whether they exist. A failover can lose a new part."""


class SpreadParts:
    """The parts of one shard. Used on the event loop of the shard."""

    def __init__(self, number: int, service: Service, placements: TenantPlacements, calls: CallsFromShard) -> None:
        self._number, self._service, self._placements, self._calls = number, service, placements, calls
        shard = service.shard
        self.escrow = Escrow(number, shard, calls, self.parts_of)
        self.settings = SharedSettings(
            number, shard, calls, self.escrow, self.parts_of, placements.spread, self._own_tenant
        )
        self.changes = SpreadChanges(number, shard, placements, calls, self.escrow, self.settings)
        self.audit = RightsAudit(number, shard, calls, self.escrow, self.parts_of, self.settings)
        self._queries = PartQueries(number, service, placements, self.settings)
        self._rights = RightsQueries(shard, placements, self.escrow, self.audit)
        self._tasks: list[asyncio.Task[None]] = []
        shard.state.catalog.placed_here = self._placed_here
        shard.state.home_keys = self
        admission = service.admission
        admission.home_rates = PartRates(calls, shard.state.clock, admission.in_background)

    def facets(self, known: Mapping[str, object]) -> dict[str, object]:
        """Return the objects whose methods other shards can call, in place of those that are known."""
        sharing = {name: self.settings.sharing(known[name]) for name in CHANGING}
        return {**sharing, "parts": self._queries, "rights": self._rights, "spread": self.changes}

    def parts_of(self, tenant: str) -> tuple[int, ...]:
        """Return the shards that may have a part of a tenant, its home first."""
        row = self._placements.row(tenant)
        return row.parts if row is not None else (self._number,)

    async def _own_tenant(self, call: Call) -> str:
        return own_tenant(await self._service.admission.authenticator.authenticate(call.bearer, call.certificate))

    def _placed_here(self, tenant: str, queue: str | None) -> bool | None:
        row = self._placements.row(unit_name(tenant, queue) if queue is not None else tenant)
        return row.shard == self._number if row is not None else None

    def start(self) -> None:
        """Look after the parts from now on."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._look(), self._check_all(), self._audit_all())]

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.changes.close()

    async def _look(self) -> None:
        looks = 0
        while True:
            here = [name for name, row in self._placements.spread().items() if self._number in row.parts]
            try:
                await self.escrow.feed(here)
                if looks % FLUSH_EVERY == 0:
                    await self.settings.flush_all()
            except TenantqError as error:
                log.debug("parts on shard %d are looked at again: %s", self._number, error)
            except Exception:
                log.exception("parts on shard %d could not be looked at", self._number)
            looks += 1
            await asyncio.sleep(LOOK_S if here else IDLE_S)

    async def _check_all(self) -> None:
        """Check the parts of all tenants again and again. Polls do not wait for parts that are out of reach, nor do other tenants."""
        while True:
            await asyncio.sleep(CHECK_S)
            for tenant in self.settings.homes():
                for check in (self._replace_lost_parts, self._report_quotas):
                    try:
                        await check(tenant)
                    except TenantqError as error:
                        log.debug("parts of tenant %s are checked again later: %s", tenant.name, error)
                    except Exception:
                        log.exception("parts of tenant %s could not be checked", tenant.name)

    async def _replace_lost_parts(self, tenant: TenantState) -> None:
        if await self.changes.replace_lost_parts(tenant):
            await self.audit.restore(tenant)

    async def _report_quotas(self, tenant: TenantState) -> None:
        """Journal the quotas that all parts of a tenant together have brought to their limits."""
        if tenant.config.quotas == NO_QUOTAS or tenant.erasing is not None:
            return
        shard = self._service.shard
        parts = await self.ask_each(tenant, "usage", tenant.id)
        used_by_others = used_by_other_parts(tenant, shard.state.wall_ms(), parts.values())
        await shard.submit(ReportQuotas(shard.state.platform, SYSTEM, tenant.id, dict(used_by_others)))

    async def _audit_all(self) -> None:
        """Have the rights of all parts compared that were here when the shard was opened: commits may have been lost."""
        pending = {one.id for one in self._service.shard.state.catalog.tenants.values() if one.part is not None}
        while pending:
            for id in sorted(pending):
                try:
                    await self._audit_one(id)
                    pending.discard(id)
                except TenantqError as error:
                    log.debug("rights on shard %d are compared later: %s", self._number, error)
                except Exception:
                    log.exception("rights on shard %d could not be compared", self._number)
            if pending:
                await asyncio.sleep(IDLE_S)

    async def _audit_one(self, id: int) -> None:
        tenant = self._service.shard.state.catalog.tenants_by_id.get(id)
        if tenant is None or tenant.part is None or tenant.erasing is not None:
            return
        part = tenant.part
        if part.is_home:
            await self.changes.replace_lost_parts(tenant)
            await self.audit.restore(tenant)
            return
        if await self._calls.query(part.home, "rights.audit", id, self._number, timeout_ms=2 * ANSWER_MS):
            return
        await self._placements.refresh()
        row = self._placements.row(tenant.name)
        if row is None or self._number not in row.parts or row.shard != part.home:
            log.warning(
                "the part of tenant %s on shard %d was deleted before: it is deleted again", tenant.name, self._number
            )
            await self._queries.drop(tenant.name, id, part.home, tenant.queue_blocks)

    # ---- questions to other parts ----

    async def ask_each(self, tenant: TenantState, method: str, *arguments: Any) -> dict[int, Any]:
        """Return the answers of the other parts of a tenant by shard. Raises an error if one does not answer."""
        others = [one for one in self.parts_of(tenant.name) if one != self._number] if tenant.part is not None else []
        found = await asyncio.gather(*(self._ask(one, method, *arguments) for one in others))
        return {shard: one for shard, one in zip(others, found, strict=True) if one is not None}

    async def _queue_places(self, tenant: TenantState) -> object:
        """Return where the tenant's queues are, by the directory. Raises Unavailable while some are moving."""
        await self._placements.refresh()
        row, units = self._placements.row(tenant.name), self._placements.units(tenant.name)
        if row is None or row.next_shards or any(one.moving_to is not None for one in units.values()):
            raise queues_moving(tenant.name)
        if arriving_units(self._service.shard.state.catalog, tenant):
            raise queues_moving(tenant.name)
        return row, units

    async def export_parts(self, tenant: TenantState) -> PartExports:
        """Start to export the other parts of a tenant. Raises an error if a shard does not answer, or has no part."""
        places = await self._queue_places(tenant)

        async def check_places() -> None:
            if await self._queue_places(tenant) != places:
                raise queues_moving(tenant.name)

        found: list[PartExport] = []
        try:
            for shard in self.parts_of(tenant.name):
                if shard != self._number:
                    stream = await self._calls.open_stream(shard, "parts.export", tenant.name, timeout_ms=ANSWER_MS)
                    found.append(PartExport(stream))
        except BaseException as error:
            await close_all(found)
            if isinstance(error, Conflict | TenantMoved):
                raise queues_moving(tenant.name) from error
            raise
        return PartExports(found, check_places)

    async def drop_parts(self, tenant: TenantState) -> list[dict[str, int]]:
        """Delete the other parts of a tenant that is being deleted, for good; return how much each had.

        Raises an error if a shard does not answer that has a part, or was to get one.
        """
        assert tenant.part is not None
        await self._placements.refresh()
        part = tenant.part
        others = {*self.parts_of(tenant.name), *part.shards, *part.next_shards, *part.sent, *part.received}
        arguments = (tenant.name, tenant.id, self._number, tenant.queue_blocks)
        found: list[dict[str, int]] = await asyncio.gather(
            *(
                self._calls.query(one, "parts.drop", *arguments, timeout_ms=ANSWER_MS)
                for one in sorted(others - {self._number})
            )
        )
        return found

    async def _ask(self, shard: int, method: str, *arguments: Any) -> Any:
        try:
            return await self._calls.query(shard, f"parts.{method}", *arguments, timeout_ms=ANSWER_MS)
        except (Conflict, TenantMoved):
            return None  # it has no part, or has none any more

    # ---- data keys, which are stored at home first ----

    async def put_data_key(self, tenant: TenantState, number: int, value: bytes, details: str) -> bool:
        """Store a new data key at home; return whether it was stored."""
        assert tenant.part is not None
        arguments = (tenant.id, number, value, details)
        return bool(await self._calls.query(tenant.part.home, "parts.put_data_key", *arguments, timeout_ms=ANSWER_MS))

    async def replace_data_key(self, tenant: TenantState, number: int, old: bytes, new: bytes, details: str) -> bool:
        """Replace a data key at home; return whether it was replaced."""
        assert tenant.part is not None
        arguments = (tenant.id, number, old, new, details)
        return bool(
            await self._calls.query(tenant.part.home, "parts.replace_data_key", *arguments, timeout_ms=ANSWER_MS)
        )
