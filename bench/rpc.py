"""Over Cap'n Proto: adds compared with the same adds over HTTP, one server process, fsync on, 100-byte bodies, the client on the same two cores.

Also what the listener costs HTTP while it is unused: the same adds over HTTP with it on and off, in turns.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from bench.processes import TOKEN, serving
from bench.table import Table
from tenantq.client import AsyncClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from bench.processes import RunningServer

_BODY = b"x" * 100
_LOOPS = 64
_TURNS = 5
_QUEUE = "bench"


class Measured:
    """Messages per second and the CPU time of the server for each message, by turn."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.costs_us: list[float] = []


Figures = dict[tuple[str, str], Measured]  # by transport and operation


async def run(directory: Path, *, quick: bool) -> None:
    from tenantq.rpc.kj_loop import kj_loop  # noqa: PLC0415  # needs pycapnp, which is an extra

    scale, turns = (10, 1) if quick else (1, _TURNS)
    figures: Figures = {}
    for turn in range(turns):
        with serving(directory / f"both-{turn}", TENANTQ_RPC="127.0.0.1:0") as server:
            async with kj_loop():
                await _rpc(server, figures, scale)
            async with AsyncClient(server.url, token=TOKEN, coalesce=False, connections=_LOOPS) as client:
                await _http(server, client, "HTTP", figures, scale)
        for name, rpc in (("HTTP, listener on", "127.0.0.1:0"), ("HTTP, listener off", "off")):
            with serving(directory / f"{rpc[-2:]}-{turn}", TENANTQ_RPC=rpc) as server:
                async with AsyncClient(server.url, token=TOKEN, coalesce=True, connections=_LOOPS) as client:
                    await _http(server, client, name, figures, scale)
    table = Table("over", "operation", "messages/s", "server us per message", "turns, messages/s")
    for (over, operation), one in figures.items():
        rate, cost = statistics.median(one.rates), statistics.median(one.costs_us)
        table.row(over, operation, f"{rate:,.0f}", f"{cost:.1f}", ", ".join(f"{rate:,.0f}" for rate in one.rates))
    table.show()
    print()
    for operation in ("adds, 64 in flight", "adds by 100"):
        _compare(figures, operation, "Cap'n Proto", "HTTP")
        _compare(figures, operation, "HTTP, listener on", "HTTP, listener off")


def _compare(figures: Figures, operation: str, ours: str, theirs: str) -> None:
    one, other = figures[ours, operation], figures[theirs, operation]
    rate = _ratios(one.rates, other.rates)
    cost = _ratios(one.costs_us, other.costs_us)
    print(f"{operation}: {ours} has {rate} of the rate of {theirs}, and costs the server {cost} of its time")


def _ratios(ours: list[float], theirs: list[float]) -> str:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} (turns: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"


async def _timed(
    server: RunningServer, measured: Measured, batch: int, loops: int, times: int, work: Callable[[], Awaitable[Any]]
) -> None:
    async def loop(times: int) -> None:
        for _ in range(times):
            await work()

    await asyncio.gather(*(loop(1 + times // 10) for _ in range(loops)))
    used, started = server.cpu_s(), time.perf_counter()
    await asyncio.gather(*(loop(times) for _ in range(loops)))
    messages = loops * times * batch
    measured.rates.append(messages / (time.perf_counter() - started))
    measured.costs_us.append((server.cpu_s() - used) / messages * 1e6)


async def _rpc(server: RunningServer, figures: Figures, scale: int) -> None:
    import capnp  # noqa: PLC0415  # as above

    from tenantq.rpc.schema import SCHEMA  # noqa: PLC0415  # as above

    stream = await capnp.AsyncIoStream.create_connection("127.0.0.1", server.rpc_port)
    client = capnp.TwoPartyClient(stream)
    session = (await client.bootstrap().cast_as(SCHEMA.Tenantq).login(token=TOKEN)).session
    ref, one, hundred = {"queue": _QUEUE}, [_BODY], [_BODY] * 100

    async def add() -> None:
        if (await session.add(ref=ref, bodies=one)).which() == "error":
            raise RuntimeError("an add was refused")

    async def add_by_100() -> None:
        if len((await session.add(ref=ref, bodies=hundred)).messages) != 100:
            raise RuntimeError("an add was refused")

    unary, batches = _of(figures, "Cap'n Proto")
    await _timed(server, unary, 1, _LOOPS, 300 // scale, add)
    await _timed(server, batches, 100, 4, 200 // scale, add_by_100)
    client.close()
    stream.close()


async def _http(server: RunningServer, client: AsyncClient, over: str, figures: Figures, scale: int) -> None:
    queue = client.queue(_QUEUE)
    body, hundred = _BODY.decode(), [_BODY.decode()] * 100
    unary, batches = _of(figures, over)
    await _timed(server, unary, 1, _LOOPS, 300 // scale, lambda: queue.add(body))
    await _timed(server, batches, 100, 4, 200 // scale, lambda: queue.add_many(hundred))


def _of(figures: Figures, over: str) -> tuple[Measured, Measured]:
    operations = ("adds, 64 in flight", "adds by 100")
    unary, batches = (figures.setdefault((over, operation), Measured()) for operation in operations)
    return unary, batches
