"""One run of ``tenantq bench``: the cases one after the other, and everything put back in its place, also when it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import platform
import secrets
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tenantq.errors import TenantqError
from tenantq.load.bench_queue import BenchQueue
from tenantq.load.cases import adding, adding_many, cycling, cycling_many
from tenantq.load.drive import drive_seconds
from tenantq.load.neighbour import TwoTenants, measure
from tenantq.load.report import CaseFigures, Environment, Load, Neighbour, Report, case_figures
from tenantq.load.tally import Tally
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from tenantq.client import AsyncClient, AsyncQueue
    from tenantq.load.drive import Work
    from tenantq.load.loaded_server import LoadedServer

    Progress = Callable[[str, float, float, int], None]
    """Is told now and then: the case, the seconds since it began, of how many, and the messages so far."""

Case = Literal["add", "cycle", "batch", "neighbour"]
CASES: Final[tuple[Case, ...]] = ("add", "cycle", "batch", "neighbour")
DEFAULT_CASES: Final[tuple[Case, ...]] = ("add", "cycle", "batch")
_TELL_EVERY_S: Final = 0.5
_CONNECTIONS_MIN: Final = 4


class _Planned(NamedTuple):
    """A measurement on the queue."""

    name: str
    loops: int
    batch: int
    coalesce: bool
    keeps: bool  # what it adds stays
    work: Callable[[Callable[[int], AsyncQueue], str], Work]


class Run:
    """Measures, and keeps what was measured so far."""

    def __init__(
        self,
        server: LoadedServer,
        load: Load,
        cases: Collection[Case],
        *,
        coalesce: Sequence[bool] = (True,),
        queue: str | None = None,
        reuse: bool = False,
        stop: asyncio.Event,
        progress: Progress,
        file_system: str | None = None,
    ) -> None:
        """Prepare. ``queue`` None: one of its own; ``coalesce``: with it, without it, or both."""
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
        self._neighbour: Neighbour | None = None
        self.failure: TenantqError | None = None  # why not everything could be measured

    async def run(self) -> Report:
        """Measure all cases and clean up. Raises what stands in the way before anything is measured."""
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
        return Report(
            measured_at=measured_at,
            environment=environment,
            load=self._load,
            cases=self._figures,
            neighbour=self._neighbour,
            interrupted=self._stop.is_set(),
            left_behind=left_behind,
        )

    def _environment(self, health: dict[str, Any]) -> Environment:
        return Environment(
            url=self._server.url,
            server_version=health.get("version"),
            durability=health.get("durability"),
            client_version=version("tenantq"),
            python=platform.python_version(),
            cores=os.cpu_count() or 1,
            file_system=self._file_system,
        )

    async def _measure(self, admin: AsyncClient, left_behind: list[str]) -> None:
        tenants = TwoTenants(admin, self._suffix)
        try:
            if "neighbour" in self._cases:
                await tenants.open()  # first, for it may be refused
            if set(self._cases) - {"neighbour"}:
                queue = BenchQueue(self._server.queue(admin, self._queue_name), reuse=self._reuse)
                await queue.open()
                try:
                    await self._on(queue)
                finally:
                    left_behind += await queue.close()
            if "neighbour" in self._cases and self._goes_on:
                await self._beside(tenants)
        finally:
            left_behind += await tenants.close()

    @property
    def _goes_on(self) -> bool:
        return not self._stop.is_set() and self.failure is None

    # ---- cases on one queue ----

    def _plan(self) -> list[_Planned]:
        load, plan = self._load, list[_Planned]()
        for coalesce in self._coalesce:
            shown = "" if coalesce else ", each alone"
            if "add" in self._cases:
                plan.append(_Planned(f"add{shown}", load.in_flight, 1, coalesce, True, adding))
            if "cycle" in self._cases:
                plan.append(_Planned(f"cycle{shown}", load.in_flight, 1, coalesce, False, cycling))
        if "batch" in self._cases:
            plan += [
                _Planned(f"add by {load.batch}", load.batches_in_flight, load.batch, True, True,
                         lambda queue_of, body: adding_many(queue_of, body, load.batch)),
                _Planned(f"cycle by {load.batch}", load.batches_in_flight, load.batch, True, False,
                         lambda queue_of, body: cycling_many(queue_of, body, load.batch)),
            ]  # fmt: skip
        return plan

    async def _on(self, bench_queue: BenchQueue) -> None:
        load = self._load
        for planned in self._plan():
            if not self._goes_on:
                return
            await bench_queue.empty()
            connections = max(_CONNECTIONS_MIN, planned.loops)
            async with self._server.measuring(connections=connections, coalesce=planned.coalesce) as client:
                queue = self._server.queue(client, self._queue_name)
                tally = Tally()
                async with self._watching(planned.name, tally):
                    await drive_seconds(
                        planned.work(lambda _, queue=queue: queue, "x" * load.size),  # type: ignore[misc]  # of this turn
                        tally,
                        loops=planned.loops,
                        warm_up_s=load.warm_up_ms / 1_000,
                        seconds=load.seconds,
                        messages_max=load.messages_max if planned.keeps else math.inf,
                        stop=self._stop,
                    )
            bench_queue.added(tally.begun * planned.batch)
            self._figures.append(case_figures(planned.name, tally))
            self.failure = tally.failure

    # ---- the neighbour ----

    async def _beside(self, tenants: TwoTenants) -> None:
        async for figures in measure(self._server, tenants, self._load, self._stop, self._watching):
            if isinstance(figures, Neighbour):
                self._neighbour = figures
            else:
                self._figures.append(figures)

    # ---- progress ----

    @contextlib.asynccontextmanager
    async def _watching(self, name: str, tally: Tally) -> AsyncIterator[None]:
        """Tell how a measurement goes while the block runs."""
        total_s = self._load.warm_up_ms / 1_000 + self._load.seconds

        async def tell() -> None:
            told_s = 0.0
            while True:
                self._progress(name, told_s, total_s, tally.messages_total)
                await asyncio.sleep(_TELL_EVERY_S)
                told_s += _TELL_EVERY_S

        telling = asyncio.create_task(tell())
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
