"""The noisy-neighbour case: a victim adds at a constant rate, alone and then during another tenant's flood."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from tenantq.client import AsyncClient
from tenantq.domain.validation import projected
from tenantq.errors import Forbidden, NotFound, TenantqError, Unavailable
from tenantq.load.flood import Flood, FloodFigures, FloodSettings
from tenantq.load.loaded_server import LoadedServer
from tenantq.load.measurement import Measurement
from tenantq.load.open_loop import send_steadily
from tenantq.load.report import CaseFigures, LoadSettings, NeighbourRatios, case_figures, ratio

Watching = Callable[[str, Measurement], contextlib.AbstractAsyncContextManager[None]]
"""Shows the progress of a measurement while a block runs."""

ALONE: Final = "victim alone"
SHARED: Final = "victim next to the flood"
FLOOD: Final = "flood"
_QUEUE: Final = "bench"
_REASON: Final = "end of a tenantq bench"
_VICTIM_CONNECTIONS: Final = 32


class NeighbourTenants:
    """The victim and the flooding tenant, created for a measurement."""

    def __init__(self, admin: AsyncClient, suffix: str) -> None:
        self._admin = admin
        self._names = (f"bench-victim-{suffix}", f"bench-flood-{suffix}")
        self._made: list[str] = []
        self.tokens: list[str] = []

    async def open(self) -> None:
        """Create them, with a key each. Raises Forbidden if the credential is not a platform administrator's."""
        for name in self._names:
            tenant = self._admin.tenant(name)
            try:
                await tenant.configure()
            except (Forbidden, NotFound) as error:  # a forbidden tenant looks like a missing one
                text = "the case 'neighbour' creates two tenants, which requires a platform administrator's token"
                raise Forbidden(text) from error
            self._made.append(name)
            self.tokens.append((await tenant.create_key("tenantq bench", role="producer")).token)

    async def close(self) -> list[str]:
        """Delete them. Returns what could not be deleted, and why."""
        left = []
        while self._made:
            name = self._made.pop()
            try:
                await self._admin.tenant(name).delete(confirm=name, reason=_REASON)
            except NotFound:
                continue
            except TenantqError as error:
                left.append(f"the tenant {name}: {error.message}")
        return left


async def measure(
    server: LoadedServer, tenants: NeighbourTenants, load: LoadSettings, stop: asyncio.Event, watching: Watching
) -> AsyncIterator[CaseFigures | NeighbourRatios]:
    """Yield the figures of the victim alone, of the victim during the flood, and of the flood, then their ratios."""
    victim_token, flood_token = tenants.tokens
    async with server.measuring(connections=_VICTIM_CONNECTIONS, coalesce=False, token=victim_token) as client:
        alone = Measurement()
        async with watching(ALONE, alone):
            await _victim(client, alone, load, stop)
        yield case_figures(ALONE, alone)
        if alone.failure is not None:
            raise alone.failure
        if stop.is_set():
            return
        settings = FloodSettings(
            server=msgspec.structs.replace(server, token=flood_token),
            queue=_QUEUE,
            connections=load.flood_connections,
            size=load.size,
            messages_max=load.messages_max,
        )
        shared = Measurement()
        async with Flood(settings) as flood:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), load.warm_up_ms / 1_000)  # the flood has to warm up too
            before = await flood.figures()
            async with watching(SHARED, shared):
                await _victim(client, shared, load, stop)
            after = await flood.figures()
    yield case_figures(SHARED, shared)
    flooded = _flood_figures(before, after)
    yield flooded
    yield _neighbour(alone, shared, flooded)
    if shared.failure is not None:
        raise shared.failure
    if after.failure is not None:
        raise Unavailable(f"the flood ended early: {after.failure}")


async def _victim(client: AsyncClient, measurement: Measurement, load: LoadSettings, stop: asyncio.Event) -> None:
    queue = client.queue(_QUEUE)
    body = "x" * load.size
    await send_steadily(
        lambda: queue.add(body),
        measurement,
        per_second=load.victim_per_second,
        warm_up_s=load.warm_up_ms / 1_000,
        seconds=load.seconds,
        stop=stop,
    )


def _flood_figures(before: FloodFigures, after: FloodFigures) -> CaseFigures:
    """Return the figures of a flood between two readings, including the victim's warm-up."""
    seconds, messages = after.at_s - before.at_s, after.messages_total - before.messages_total
    rate = round(messages / seconds, 1) if messages and seconds > 0 else None
    figures = {"seconds": round(seconds, 3), "calls": messages, "messages": messages, "messages_per_second": rate}
    return projected(CaseFigures, after, case=FLOOD, **figures)


def _neighbour(alone: Measurement, shared: Measurement, flooded: CaseFigures) -> NeighbourRatios:
    percents = (50, 99, 100)
    times = zip(shared.latencies.percentiles(*percents), alone.latencies.percentiles(*percents), strict=True)
    p50, p99, most = (ratio(shared, free) for shared, free in times)
    return NeighbourRatios(p50_ratio=p50, p99_ratio=p99, max_ratio=most, flood_per_second=flooded.messages_per_second)
