"""One run of ``tenantq bench``: all cases in turn, and the clean-up, also after an interrupt."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import platform
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tenantq.client import AsyncClient, AsyncQueue
from tenantq.errors import TenantqError
from tenantq.load.bench_queue import BenchQueue
from tenantq.load.cases import make_add, make_batch_add, make_batch_cycle, make_cycle
from tenantq.load.closed_loop import drive_seconds
from tenantq.load.loaded_server import LoadedServer
from tenantq.load.measurement import Measurement
from tenantq.load.neighbour import NeighbourTenants, measure
from tenantq.load.report import BenchEnvironment, BenchReport, CaseFigures, LoadSettings, NeighbourRatios, case_figures
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from tenantq.load.closed_loop import LoadCall

    Progress = Callable[[str, float, float, int], None]
    """Called periodically with the case, seconds so far, seconds in total, and messages so far."""

Case = Literal["add", "cycle", "batch", "neighbour"]
CASES: Final[tuple[Case, ...]] = ("add", "cycle", "batch", "neighbour")
DEFAULT_CASES: Final[tuple[Case, ...]] = ("add", "cycle", "batch")
_TELL_EVERY_S: Final = 0.5
_CONNECTIONS_MIN: Final = 4


class _PlannedCase(NamedTuple):
    """A planned measurement on the queue."""

    name: str
    loops: int
    batch: int
    coalesce: bool
    keeps: bool  # it only adds
    work: Callable[[Callable[[int], AsyncQueue], str], LoadCall]


class BenchRun:
    """Measures, and keeps the figures so far."""

    def __init__(
        self,
        server: LoadedServer,
        load: LoadSettings,
        cases: Collection[Case],
        *,
        coalesce: Sequence[bool] = (True,),
        queue: str | None = None,
        reuse: bool = False,
        stop: asyncio.Event,
        progress: Progress,
        file_system: str | None = None,
    ) -> None:
        """Without ``queue``, the run creates its own. ``coalesce`` lists the modes to measure."""
        self._server = server
        self._load = load
        self._cases = cases
        self._coalesce = coalesce
        self._suffix = secrets.token_hex(4)
        self._queue_name = queue or f"bench-{self._suffix}"
        self._reuse = reuse
        self._stop = stop
        self._progress = progress
        self._file_system = file_system
        self._figures: list[CaseFigures] = []
        self._neighbour: NeighbourRatios | None = None
        self.failure: TenantqError | None = None  # why a measurement is missing

    async def run(self) -> BenchReport:
        """Measure all cases and clean up. Raises an error only if nothing was measured."""
        async with self._server.patient() as admin:
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
            load=self._load,
            cases=self._figures,
            neighbour=self._neighbour,
            interrupted=self._stop.is_set(),
            left_behind=left_behind,
        )

    def _environment(self, health: dict[str, Any]) -> BenchEnvironment:
        return BenchEnvironment(
            url=self._server.url,
            server_version=health.get("version"),
            durability=health.get("durability"),
            client_version=version("tenantq"),
            python=platform.python_version(),
            cores=os.cpu_count() or 1,
            file_system=self._file_system,
        )

    async def _measure(self, admin: AsyncClient, left_behind: list[str]) -> None:
        tenants = NeighbourTenants(admin, self._suffix)
        try:
            if "neighbour" in self._cases:
                await tenants.open()  # first, because it may be refused
            if set(self._cases) - {"neighbour"}:
                queue = BenchQueue(self._server.queue(admin, self._queue_name), reuse=self._reuse)
                await queue.open()
                try:
                    await self._measure_queue(queue)
                finally:
                    left_behind += await queue.close()
            if "neighbour" in self._cases and self._continues:
                await self._measure_neighbour(tenants)
        finally:
            left_behind += await tenants.close()

    @property
    def _continues(self) -> bool:
        return not self._stop.is_set() and self.failure is None

    # ---- cases on one queue ----

    def _plan(self) -> list[_PlannedCase]:
        load, plan = self._load, list[_PlannedCase]()
        for coalesce in self._coalesce:
            shown = "" if coalesce else ", each alone"
            if "add" in self._cases:
                plan.append(_PlannedCase(f"add{shown}", load.in_flight, 1, coalesce, True, make_add))
            if "cycle" in self._cases:
                plan.append(_PlannedCase(f"cycle{shown}", load.in_flight, 1, coalesce, False, make_cycle))
        if "batch" in self._cases:
            plan += [
                _PlannedCase(f"add by {load.batch}", load.batches_in_flight, load.batch, True, True,
                         lambda queue_of, body: make_batch_add(queue_of, body, load.batch)),
                _PlannedCase(f"cycle by {load.batch}", load.batches_in_flight, load.batch, True, False,
                         lambda queue_of, body: make_batch_cycle(queue_of, body, load.batch)),
            ]  # fmt: skip
        return plan

    async def _measure_queue(self, bench_queue: BenchQueue) -> None:
        load = self._load
        for planned in self._plan():
            if not self._continues:
                return
            await bench_queue.empty()
            connections = max(_CONNECTIONS_MIN, planned.loops)
            async with self._server.measuring(connections=connections, coalesce=planned.coalesce) as client:
                queue = self._server.queue(client, self._queue_name)
                measurement = Measurement()
                async with self._watching(planned.name, measurement):
                    await drive_seconds(
                        planned.work(lambda _, queue=queue: queue, "x" * load.size),  # type: ignore[misc]  # of this turn
                        measurement,
                        loops=planned.loops,
                        warm_up_s=load.warm_up_ms / 1_000,
                        seconds=load.seconds,
                        messages_max=load.messages_max if planned.keeps else math.inf,
                        stop=self._stop,
                    )
            bench_queue.added(measurement.begun * planned.batch)
            self._figures.append(case_figures(planned.name, measurement))
            self.failure = measurement.failure

    # ---- the neighbour ----

    async def _measure_neighbour(self, tenants: NeighbourTenants) -> None:
        async for figures in measure(self._server, tenants, self._load, self._stop, self._watching):
            if isinstance(figures, NeighbourRatios):
                self._neighbour = figures
            else:
                self._figures.append(figures)

    # ---- progress ----

    @contextlib.asynccontextmanager
    async def _watching(self, name: str, measurement: Measurement) -> AsyncIterator[None]:
        """Report the progress of a measurement while the block runs."""
        total_s = self._load.warm_up_ms / 1_000 + self._load.seconds

        async def tell() -> None:
            told_s = 0.0
            while True:
                self._progress(name, told_s, total_s, measurement.messages_total)
                await asyncio.sleep(_TELL_EVERY_S)
                told_s += _TELL_EVERY_S

        telling = asyncio.create_task(tell())
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
