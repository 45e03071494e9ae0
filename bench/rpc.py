"""Over Cap'n Proto: adds beside the same adds over HTTP, one server process, fsync on, 100-byte bodies, the client on the same two cores.

And what the listener costs HTTP where nobody uses it: the same adds over HTTP with it on and off, in turns.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from bench.processes import TOKEN, tenantq, tenantq_with_rpc
from bench.table import Table
from tenantq.client import AsyncClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

_BODY = b"x" * 100
_LOOPS = 64
_TURNS = 5
_QUEUE = "bench"

Rates = dict[tuple[str, str], list[float]]  # by transport and operation


async def run(directory: Path, *, quick: bool) -> None:
    from tenantq.rpc.kj_loop import kj_loop  # noqa: PLC0415  # needs pycapnp, which is an extra

    scale, turns = (10, 1) if quick else (1, _TURNS)
    rates: Rates = {}
    for turn in range(turns):
        with tenantq_with_rpc(directory / f"both-{turn}") as (url, port):
            async with kj_loop():
                await _rpc(port, rates, scale)
            async with AsyncClient(url, token=TOKEN, coalesce=False, connections=_LOOPS) as client:
                await _http(client, "HTTP", rates, scale)
        for name, rpc in (("HTTP, listener on", "127.0.0.1:0"), ("HTTP, listener off", "off")):
            with tenantq(directory / f"{rpc[-2:]}-{turn}", TENANTQ_RPC=rpc) as url:
                async with AsyncClient(url, token=TOKEN, coalesce=True, connections=_LOOPS) as client:
                    await _http(client, name, rates, scale)
    table = Table("over", "operation", "messages/s", "turns")
    for (over, operation), measured in rates.items():
        table.row(
            over, operation, f"{statistics.median(measured):,.0f}", ", ".join(f"{rate:,.0f}" for rate in measured)
        )
    table.show()
    print()
    for operation in ("adds, 64 in flight", "adds by 100"):
        _ratio(rates, operation, "Cap'n Proto", "HTTP")
        _ratio(rates, operation, "HTTP, listener on", "HTTP, listener off")


def _ratio(rates: Rates, operation: str, ours: str, theirs: str) -> None:
    ratios = [one / other for one, other in zip(rates[ours, operation], rates[theirs, operation], strict=True)]
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{operation}: {ours} has {statistics.median(ratios):.2f} of {theirs} (turns: {shown})")


async def _timed(
    rates: Rates, over: str, operation: str, batch: int, loops: int, times: int, work: Callable[[], Awaitable[Any]]
) -> None:
    async def loop(times: int) -> None:
        for _ in range(times):
            await work()

    await asyncio.gather(*(loop(1 + times // 10) for _ in range(loops)))
    started = time.perf_counter()
    await asyncio.gather(*(loop(times) for _ in range(loops)))
    rates.setdefault((over, operation), []).append(loops * times * batch / (time.perf_counter() - started))


async def _rpc(port: int, rates: Rates, scale: int) -> None:
    import capnp  # noqa: PLC0415  # as above

    from tenantq.rpc.schema import SCHEMA  # noqa: PLC0415  # as above

    stream = await capnp.AsyncIoStream.create_connection("127.0.0.1", port)
    client = capnp.TwoPartyClient(stream)
    session = (await client.bootstrap().cast_as(SCHEMA.Tenantq).login(token=TOKEN)).session
    ref, one, hundred = {"queue": _QUEUE}, [_BODY], [_BODY] * 100

    async def add() -> None:
        if (await session.add(ref=ref, bodies=one)).which() == "error":
            raise RuntimeError("an add was refused")

    async def add_by_100() -> None:
        if len((await session.add(ref=ref, bodies=hundred)).messages) != 100:
            raise RuntimeError("an add was refused")

    await _timed(rates, "Cap'n Proto", "adds, 64 in flight", 1, _LOOPS, 300 // scale, add)
    await _timed(rates, "Cap'n Proto", "adds by 100", 100, 4, 200 // scale, add_by_100)
    client.close()
    stream.close()


async def _http(client: AsyncClient, over: str, rates: Rates, scale: int) -> None:
    queue = client.queue(_QUEUE)
    body, hundred = _BODY.decode(), [_BODY.decode()] * 100
    await _timed(rates, over, "adds, 64 in flight", 1, _LOOPS, 300 // scale, lambda: queue.add(body))
    await _timed(rates, over, "adds by 100", 100, 4, 200 // scale, lambda: queue.add_many(hundred))
