"""Moves of tenants, and of queues of spread tenants, between the shards of a cluster, as one shard takes part in them.

The directory row of a tenant is the truth. ``moving_to`` starts a move, and the source makes it:

1. The target deletes what an earlier attempt left, and the source copies all rows while it serves the tenant.
2. The source fences the tenant: it stops serving it, durably. From here on, calls wait.
3. The source copies what has changed meanwhile, and the target has everything.
4. The source replaces the directory row, if its version is still the same. This decides the move.
5. The target serves the tenant, and the source deletes its rows.

Before step 4 the source can serve the tenant again, but only after it has replaced the directory row by one with a new
version: then a source that was paused cannot decide the move any more. The server that opens a shard continues its moves.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine
from functools import partial
from typing import Final, Literal

import msgspec

from tenantq.cluster.moving_units import MovingGroup, MovingTenant
from tenantq.cluster.row_transfer import RowTransfer
from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.cluster_view import TenantPlacement
from tenantq.domain.message import SYSTEM
from tenantq.domain.placement import GROUP_SEPARATOR, split_unit
from tenantq.engine.catalog import MovedRow, decode_tenant
from tenantq.engine.operation import Operation
from tenantq.engine.ops.move import (
    ActivateTenant,
    CancelArrival,
    DropMoved,
    ReturnTenant,
)
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, StoreFailed, TenantqError, Unavailable
from tenantq.runtime.clock import sleep_ms

log = logging.getLogger("tenantq.shards")

GROUPS_AT_ONCE: Final = 4
"""Groups of queues that leave a shard at a time. Each commit looks at the captures of all."""

NEXT_GROUP_S: Final = 0.01
RETRY_S: Final = 1.0
ANSWER_MS: Final = 10_000
"""Timeout of one step at the target."""

_COPY_IS_USELESS: Final = ("served", "erased")
"""What may have become of a tenant at the source, if another shard can delete its rows."""

MoveStage = Literal["waiting", "copying", "switching", "deleting"]


class MoveProgress(msgspec.Struct, frozen=True):
    """How far a move is."""

    tenant: str
    target: int
    stage: MoveStage
    rows: int  # copied so far
    problem: str = ""  # why the last attempt failed


class Superseded(Conflict):
    """The tenant's placement was changed during the move."""


class TenantMoves:
    """Moves tenants away from one shard, and ends arrivals that nobody continues. Used on the event loop of the shard."""

    def __init__(self, number: int, shard: Shard, placements: TenantPlacements, calls: CallsFromShard) -> None:
        self._number = number
        self._shard = shard
        self._placements = placements
        self._calls = calls
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, MoveProgress] = {}
        self._closing = False

    def has_work(self) -> bool:
        """Return whether a look is worth it. Safe from any thread."""
        catalog = self._shard.state.catalog
        return (
            bool(catalog.arriving)
            or any(row.shard == self._number for row in self._placements.moving().values())
            or any(moved.row for moved in list(catalog.moved.values()))
        )

    def look(self) -> None:
        """Continue what the directory asks for: moves from here, and arrivals that were decided or given up."""
        if self._closing:
            return
        catalog = self._shard.state.catalog
        leaving = [name for name, row in self._placements.moving().items() if row.shard == self._number]
        leaving += [name for name, moved in catalog.moved.items() if moved.row]
        for name in leaving:
            if not split_unit(name)[1] or sum(GROUP_SEPARATOR in one for one in self._tasks) < GROUPS_AT_ONCE:
                self._begin(name, self._leave(name))
        for name in list(catalog.arriving):
            if not self._is_coming(name):
                self._begin(name, self._end_arrival(name))

    def _begin(self, name: str, work: Coroutine[object, object, None]) -> None:
        if name in self._tasks:
            work.close()
            return
        task = self._tasks[name] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    def _is_coming(self, name: str) -> bool:
        row = self._placements.row(name)
        return row is not None and row.moving_to == self._number and row.shard != self._number

    async def _end_arrival(self, name: str) -> None:
        """Serve an arriving tenant if the move was decided, or delete its rows if it was given up."""
        try:
            await self._placements.refresh()  # its source may have read the row of a new move first
        except TenantqError as error:
            log.debug("an arriving tenant waits for the directory: %s", error)
            return
        if self._placements.shard_of(name) == self._number:
            await self._attempt(ActivateTenant(self._shard.state.platform, SYSTEM, name))
        elif not self._is_coming(name):
            await self._give_up(name)

    async def _give_up(self, name: str) -> None:
        """Delete the rows of an arriving tenant, unless they may be the only copy: then its source decides."""
        tenant, group = split_unit(name)
        id, arriving = self._shard.state.catalog.arriving.get(name, (0, None))
        if arriving is not None and self._placements.row(tenant) is None:  # deleted, or the directory has lost the row
            if group:
                return  # if the tenant was deleted, its part here will be, with this
            try:
                fate = await self._calls.query(arriving.source, "arrivals.fate", id, timeout_ms=ANSWER_MS)
            except TenantqError as error:
                log.debug("an arriving tenant waits for its source: %s", error)
                return
            if fate not in _COPY_IS_USELESS:
                return
        await self._attempt(CancelArrival(self._shard.state.platform, SYSTEM, name))

    async def _attempt(self, operation: Operation[None]) -> None:
        try:
            await self._shard.submit(operation)
        except TenantqError as error:
            log.debug("an arriving tenant waits for the next look at the directory: %s", error)
        except Exception:
            log.exception("a tenant's arrival at shard %d could not be ended", self._number)

    async def close(self) -> None:
        """Stop. A move that has fenced its tenant gets a moment to end; the next owner continues the others."""
        self._closing = True
        tasks = list(self._tasks.items())
        for name, task in tasks:
            progress = self._progress.get(name)
            if progress is None or progress.stage != "switching":
                task.cancel()
        _, late = await asyncio.wait([task for _, task in tasks], timeout=RETRY_S) if tasks else (set(), set())
        for task in late:
            task.cancel()

    def progress(self) -> list[MoveProgress]:
        """Return the moves away from this shard."""
        return list(self._progress.values())

    # ---- at the source ----

    async def _leave(self, name: str) -> None:
        """Move a tenant away, in as many attempts as it takes."""
        try:
            while not self._closing and (row := self._wanted(name)) is not None:
                try:
                    await self._move(name, row)
                except Superseded:
                    log.info("tenant %s: its placement was changed during a move", name)
                except TenantqError as error:
                    if isinstance(error, StoreFailed) and self._shard.failure is not None:
                        return
                    log.warning("tenant %s does not move to shard %s yet: %s", name, row.moving_to, error)
                    self._note(name, row, "waiting", problem=error.message)
                    await asyncio.sleep(RETRY_S)
                    with contextlib.suppress(TenantqError):
                        await self._placements.refresh()
                except Exception:
                    log.exception("tenant %s does not move to shard %s yet", name, row.moving_to)
                    self._note(name, row, "waiting", problem="internal server error; see the server log")
                    await asyncio.sleep(RETRY_S)
        finally:
            self._progress.pop(name, None)
            if split_unit(name)[1] and not self._closing:
                asyncio.get_running_loop().call_later(NEXT_GROUP_S, self.look)

    def _wanted(self, name: str) -> TenantPlacement | None:
        """Return the directory row of a tenant that is leaving, None if there is nothing left to do."""
        row = self._placements.row(name)
        moved = self._shard.state.catalog.moved.get(name)
        if moved is not None and moved.row:
            return row or TenantPlacement(shard=moved.target)
        return row if row is not None and row.shard == self._number and row.moving_to is not None else None

    def _note(self, name: str, row: TenantPlacement, stage: MoveStage, rows: int = 0, problem: str = "") -> None:
        target = row.moving_to if row.moving_to is not None else row.shard
        self._progress[name] = MoveProgress(name, target, stage, rows, problem)

    async def _move(self, name: str, row: TenantPlacement) -> None:
        state = self._shard.state
        moved = state.catalog.moved.get(name)
        if moved is not None and moved.row:
            await self._settle(name)
            return
        tenant = state.catalog.tenants.get(split_unit(name)[0])
        target = row.moving_to
        if tenant is None or target is None or target == self._number:
            await self._placements.replace(name, msgspec.structs.replace(row, moving_to=None))
            return
        what = MovingGroup(self._shard, tenant, name) if split_unit(name)[1] else MovingTenant(self._shard, tenant)
        what.check()
        self._note(name, row, "copying")
        session, sent_ms = secrets.token_hex(8), state.shard_clock.now_ms()
        target_ms: int = await self.ask(target, "begin", tenant.id, name, self._number, session)
        # Moved times are ahead of the target's clock by at most the duration of this call, so leases never end early.
        ahead_ms = state.shard_clock.now_ms() - sent_ms
        send = partial(self.ask, target, "receive", tenant.id, name, session)
        transfer = RowTransfer(self._shard, name, target_ms - sent_ms, send, partial(self._report, name, row))
        capture = state.captures[name] = what.capture()
        try:
            await transfer.copy(capture, what.ranges())
            self._note(name, row, "switching", transfer.rows)
            await self._shard.submit(what.fence(target))
            await self._shard.loop.made_durable()
            until_ms = state.shard_clock.now_ms() + ahead_ms + 1  # from then on the target's messages are younger
            try:
                await transfer.finish(capture, what.key_ids())
                await sleep_ms(state.clock, max(0, until_ms - state.shard_clock.now_ms()))
                done = msgspec.structs.replace(row, shard=target, moving_to=None)
                if await self._placements.replace(name, done) is None:
                    raise Superseded
            finally:
                await self._settle(name)
        except BaseException:
            with contextlib.suppress(TenantqError):
                if self._shard.failure is None and not self._closing and (await self._current(name)) != target:
                    await self.ask(target, "cancel", name, session)
            raise
        finally:
            state.captures.pop(name, None)

    def _report(self, name: str, row: TenantPlacement, rows: int) -> None:
        """Note how many rows were copied. Raises Superseded if the tenant shall not move any more."""
        known = self._placements.row(name)
        if known is None or known.version != row.version:
            raise Superseded
        self._note(name, row, "copying", rows)

    async def _current(self, name: str) -> int | None:
        await self._placements.refresh()
        return self._placements.shard_of(name)

    async def _settle(self, name: str) -> None:
        """End the move of a fenced tenant, whatever happened before: it is served elsewhere, or here again."""
        moved = self._shard.state.catalog.moved.get(name)
        while moved is not None and moved.row:
            try:
                await self._placements.refresh()
                if self._placements.row(split_unit(name)[0]) is None:
                    await self._place_again(name, moved)
                row, shard = self._placements.row(name), self._placements.shard_of(name)
                if shard != self._number:
                    if shard == moved.target:
                        self._note(name, row or TenantPlacement(shard=shard), "deleting")
                        if await self._is_lost(name, moved):
                            await self._take_back(name, row, moved)
                            continue
                    await self._shard.submit(DropMoved(self._shard.state.platform, SYSTEM, name))
                    if not split_unit(name)[1]:
                        await self._erase(name, moved.id)
                elif (
                    row is None or await self._placements.replace(name, row) is not None
                ):  # nobody else can decide the move now
                    await self._shard.submit(ReturnTenant(self._shard.state.platform, SYSTEM, name))
            except TenantqError as error:
                if self._shard.failure is not None or self._closing:
                    raise
                log.warning("tenant %s is not served while its move is undecided: %s", name, error)
                await asyncio.sleep(RETRY_S / 10)
            moved = self._shard.state.catalog.moved.get(name)

    async def _is_lost(self, name: str, moved: MovedRow) -> bool:
        """Have the target serve a tenant. Return whether its rows are there no longer, and not because it was deleted."""
        if not await self.ask(moved.target, "activate", name):
            return False
        if split_unit(name)[1]:
            return True
        fate = await self._calls.query(moved.target, "arrivals.fate", moved.id, timeout_ms=ANSWER_MS)
        return fate not in _COPY_IS_USELESS

    async def _take_back(self, name: str, row: TenantPlacement | None, moved: MovedRow) -> None:
        """Start the move again, because the rows of a fenced tenant are only here."""
        if row is None:
            raise Unavailable("the directory has no row of the tenant", tenant=split_unit(name)[0])
        log.warning("tenant %s: shard %d has deleted its copy; the move starts again", name, moved.target)
        onward = moved.target if row.moving_to is None else row.moving_to
        await self._placements.replace(name, msgspec.structs.replace(row, shard=self._number, moving_to=onward))

    async def _place_again(self, name: str, moved: MovedRow) -> None:
        """Write the directory row of a fenced tenant that has none, unless it was deleted.

        Raises an error if this is not known: because of a lost row, no shard deletes what may be the only copy.
        """
        tenant, group = split_unit(name)
        id = moved.id
        if group:
            if id in self._shard.state.catalog.tenants_by_id:
                raise Unavailable("the directory has no row of the tenant", tenant=tenant)
            return
        fates = await self._calls.query_all("arrivals.fate", id, timeout_ms=ANSWER_MS)
        for fate in fates.values():
            if isinstance(fate, TenantqError):
                raise fate
        if "erased" not in fates.values():
            shard = next((one for one, fate in fates.items() if fate == "served"), self._number)
            log.warning("tenant %s: the directory has lost its row; it is on shard %d", name, shard)
            await self._placements.put(name, shard, decode_tenant(moved.row).config.regions)

    async def _erase(self, name: str, id: int) -> None:
        """Remove the deleted rows from the files of the store, if it allows that."""
        try:
            await self._shard.erasure.erase_bytes(id)
        except TenantqError as error:
            log.warning("deleted rows of tenant %s may still be in files of the store: %s", name, error)

    async def ask(self, target: int, method: str, *arguments: object) -> int:
        """Have the target do a step of a move, and return its answer. Raises what it raises, or ShardDown."""
        found: int = await self._calls.query(target, f"arrivals.{method}", *arguments, timeout_ms=ANSWER_MS)
        return found
