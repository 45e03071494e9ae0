"""One run of ``tenantq bench``: all cases in turn on a queue of the run, and the clean-up, also after an interrupt."""

import asyncio
import contextlib
import math
import os
import platform
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple

from tenantq.client import AsyncClient, AsyncQueue
from tenantq.domain.formatting import plural
from tenantq.errors import Conflict, Forbidden, NotFound, TenantqError
from tenantq.load.cases import make_add, make_batch_add, make_batch_cycle, make_cycle
from tenantq.load.closed_loop import LoadCall, drive_seconds
from tenantq.load.loaded_server import LoadedServer
from tenantq.load.measurement import Measurement
from tenantq.load.neighbour import NeighbourTenants, measure
from tenantq.load.report import BenchEnvironment, BenchReport, CaseFigures, LoadSettings, NeighbourRatios, case_figures
from tenantq.runtime.clock import SystemClock
from tenantq.wire.queues import QueueReply

Progress = Callable[[str, float, float, int], None]
"""Called periodically with the case, seconds so far, seconds in total, and messages so far."""

_ATTEMPTS: Final = 1_000
"""Enough attempts that no dead-letter queue is created."""
_REASON: Final = "end of a tenantq bench"

Case = Literal["add", "cycle", "batch", "neighbour"]
CASES: Final[tuple[Case, ...]] = ("add", "cycle", "batch", "neighbour")
DEFAULT_CASES: Final[tuple[Case, ...]] = ("add", "cycle", "batch")
_REPORT_EVERY_S: Final = 0.5
_CONNECTIONS_MIN: Final = 4


class BenchQueue:
    """A queue that is empty at the start of each case."""

    def __init__(self, queue: AsyncQueue, *, reuse: bool) -> None:
        self._queue = queue
        self._reuse = reuse
        self._is_own = False
        self._added_before = 0
        self._added_at_most = 0  # by the measurements so far
        self._is_used = False

    async def open(self) -> None:
        """Create the queue, or check that the existing one may be used and is empty. Raises Conflict otherwise."""
        name = self._queue.name
        try:
            there = await self._queue.stats()
        except NotFound:
            await self._make()
            return
        if not self._reuse:
            raise Conflict(f"queue {name} already exists. Choose another name, or give --reuse if it is empty")
        held = _held(there)
        if held or there.status != "active":
            state = f"holds {plural(held, 'message')}" if held else f"is {there.status}"
            raise Conflict(f"queue {name} {state}; --reuse requires an empty, active queue")
        self._added_before = there.added_total

    async def _make(self) -> None:
        try:
            await self._queue.configure(max_attempts=_ATTEMPTS)
        except Forbidden as error:
            error.args = (f"{error.message} Or give an empty queue to use, with --queue and --reuse.",)
            raise
        self._is_own = True

    def added(self, at_most: int) -> None:
        """Record the maximum of messages that a measurement added."""
        self._is_used = True
        self._added_at_most += at_most

    async def empty(self) -> None:
        """Empty the queue for the next measurement."""
        if self._is_used and self._is_own:
            await self._delete()
            await self._make()  # a new queue has no deleted rows that slow it down
        elif self._is_used:
            await self._purge()
        self._is_used = False

    async def close(self) -> list[str]:
        """Delete the queue, or empty it if it existed before. Returns what could not be removed, and why."""
        try:
            if self._is_own:
                await self._delete()
            else:
                await self._purge()
        except NotFound:
            return []  # deleted by someone else
        except TenantqError as error:
            what = "the queue" if self._is_own else "messages in the queue"
            return [f"{what} {self._queue.name}: {error.message}"]
        return []

    async def _delete(self) -> None:
        await self._queue.delete(confirm=self._queue.name, reason=_REASON, force=True)

    async def _purge(self) -> None:
        there = await self._queue.stats()
        if there.added_total - self._added_before > self._added_at_most:
            raise Conflict("another client added messages, so the queue was not purged")
        if _held(there):
            await self._queue.purge(confirm=self._queue.name, reason=_REASON)


def _held(stats: QueueReply) -> int:
    return stats.ready + stats.delayed + stats.in_flight + stats.blocked


class _PlannedCase(NamedTuple):
    """A planned measurement on the queue."""

    name: str
    loops: int
    batch: int
    coalesce: bool
    keeps: bool  # it only adds
    work: Callable[[Callable[[int], AsyncQueue], str], LoadCall]


@dataclass(kw_only=True)
class BenchRun:
    """Measures, and keeps the figures so far."""

    server: LoadedServer
    load: LoadSettings
    cases: Collection[Case]
    coalesce: Sequence[bool] = (True,)  # the modes to measure
    queue: str | None = None  # None: the run creates its own
    reuse: bool = False
    stop: asyncio.Event
    progress: Progress
    file_system: str | None = None
    failure: TenantqError | None = field(default=None, init=False)  # why a measurement is missing

    def __post_init__(self) -> None:
        self._suffix = secrets.token_hex(4)
        self._queue_name = self.queue or f"bench-{self._suffix}"
        self._figures: list[CaseFigures] = []
        self._neighbour: NeighbourRatios | None = None

    async def run(self) -> BenchReport:
        """Measure all cases and clean up. Raises an error only if nothing was measured."""
        async with self.server.patient() as admin:
            environment = self._environment((await admin.health()).get("details", {}))
            measured_at = SystemClock().wall_ms()
            left_behind: list[str] = []
            try:
                await self._measure(admin, left_behind)
            except TenantqError as error:
                if not self._figures:
                    raise
                self.failure = error
        return BenchReport(
            measured_at=measured_at,
            environment=environment,
            load=self.load,
            cases=self._figures,
            neighbour=self._neighbour,
            interrupted=self.stop.is_set(),
            left_behind=left_behind,
        )

    def _environment(self, health: dict[str, Any]) -> BenchEnvironment:
        return BenchEnvironment(
            url=self.server.url,
            server_version=health.get("version"),
            durability=health.get("durability"),
            client_version=version("tenantq"),
            python=platform.python_version(),
            cores=os.cpu_count() or 1,
            file_system=self.file_system,
        )

    async def _measure(self, admin: AsyncClient, left_behind: list[str]) -> None:
        tenants = NeighbourTenants(admin, self._suffix)
        try:
            if "neighbour" in self.cases:
                await tenants.open()  # first, because it may be refused
            if set(self.cases) - {"neighbour"}:
                queue = BenchQueue(self.server.queue(admin, self._queue_name), reuse=self.reuse)
                await queue.open()
                try:
                    await self._measure_queue(queue)
                finally:
                    left_behind += await queue.close()
            if "neighbour" in self.cases and self._continues:
                async for figures in measure(self.server, tenants, self.load, self.stop, self._watching):
                    if isinstance(figures, NeighbourRatios):
                        self._neighbour = figures
                    else:
                        self._figures.append(figures)
        finally:
            left_behind += await tenants.close()

    @property
    def _continues(self) -> bool:
        return not self.stop.is_set() and self.failure is None

    # ---- cases on one queue ----

    def _plan(self) -> list[_PlannedCase]:
        load, plan = self.load, list[_PlannedCase]()
        for coalesce in self.coalesce:
            shown = "" if coalesce else ", each alone"
            if "add" in self.cases:
                plan.append(_PlannedCase(f"add{shown}", load.in_flight, 1, coalesce, True, make_add))
            if "cycle" in self.cases:
                plan.append(_PlannedCase(f"cycle{shown}", load.in_flight, 1, coalesce, False, make_cycle))
        if "batch" in self.cases:
            loops, size = load.batches_in_flight, load.batch
            plan.append(_PlannedCase(f"add by {size}", loops, size, True, True, partial(make_batch_add, batch=size)))
            cycle = partial(make_batch_cycle, batch=size)
            plan.append(_PlannedCase(f"cycle by {size}", loops, size, True, False, cycle))
        return plan

    async def _measure_queue(self, bench_queue: BenchQueue) -> None:
        load = self.load
        for planned in self._plan():
            if not self._continues:
                return
            await bench_queue.empty()
            connections = max(_CONNECTIONS_MIN, planned.loops)
            async with self.server.measuring(connections=connections, coalesce=planned.coalesce) as client:
                queue = self.server.queue(client, self._queue_name)
                measurement = Measurement()
                async with self._watching(planned.name, measurement):
                    await drive_seconds(
                        planned.work(lambda _, queue=queue: queue, "x" * load.size),  # type: ignore[misc]  # of this turn
                        measurement,
                        loops=planned.loops,
                        warm_up_s=load.warm_up_ms / 1_000,
                        seconds=load.seconds,
                        messages_max=load.messages_max if planned.keeps else math.inf,
                        stop=self.stop,
                    )
            bench_queue.added(measurement.begun * planned.batch)
            self._figures.append(case_figures(planned.name, measurement))
            self.failure = measurement.failure

    # ---- progress ----

    @contextlib.asynccontextmanager
    async def _watching(self, name: str, measurement: Measurement) -> AsyncIterator[None]:
        """Report the progress of a measurement while the block runs."""
        total_s = self.load.warm_up_ms / 1_000 + self.load.seconds

        async def report() -> None:
            elapsed_s = 0.0
            while True:
                self.progress(name, elapsed_s, total_s, measurement.messages_total)
                await asyncio.sleep(_REPORT_EVERY_S)
                elapsed_s += _REPORT_EVERY_S

        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
