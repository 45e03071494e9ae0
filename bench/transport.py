"""Over HTTP: one server process, fsync on, 100-byte bodies, the client on the same two cores, beside Redis Streams.

The same work is asked of both in one run: adds with 64 in flight, adds by 100, full cycles in 64 loops of one message, and by 100.
They take turns, each alone with the client, after the same warming up: the machine changes its pace from minute to minute.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import statistics
import subprocess
import time
from typing import TYPE_CHECKING, Any

from bench.processes import TOKEN, redis, tenantq
from bench.table import Table, percentile
from tenantq.client import AsyncClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

_BODY = "x" * 100
_LOOPS = 64
_TURNS = 7
_QUEUE = "bench"

_WRK = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {token}"
wrk.body = '{{"messages":[{{"body":"{body}"}}]}}'
"""


class Measured:
    """The rates of one operation by one client, a turn each, and what every call of it took."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.rates: list[float] = []
        self.waits: list[float] = []


Figures = dict[tuple[str, str], Measured]  # by client and operation


async def run(directory: Path, *, quick: bool) -> None:
    table = Table("who", "operation", "batch", "messages/s", "p50 ms", "p99 ms")
    scale = 10 if quick else 1
    figures: Figures = {}
    with tenantq(directory / "wrk") as url:
        _wrk(directory, url, table, seconds=2 if quick else 10)
    with tenantq(directory / "unary") as url:
        async with AsyncClient(url, token=TOKEN, coalesce=False, connections=_LOOPS) as client:
            await _sdk(client, "SDK unary", figures, scale)
    for turn in range(1 if quick else _TURNS):
        with tenantq(directory / f"coalesced-{turn}") as url:
            async with AsyncClient(url, token=TOKEN, coalesce=True, connections=_LOOPS) as client:
                await _sdk(client, "SDK coalesced", figures, scale)
        with redis(directory / f"redis-{turn}") as port:
            await _redis(port, figures, scale)
    for (who, operation), measured in figures.items():
        table.row(
            who,
            operation,
            measured.batch,
            f"{statistics.median(measured.rates):,.0f}",
            f"{percentile(measured.waits, 50) * 1e3:.2f}",
            f"{percentile(measured.waits, 99) * 1e3:.2f}",
        )
    table.show()
    print()
    for operation, least in (("adds", 3.0), ("cycles", 3.0), ("cycles by 100", 1.0)):
        pairs = zip(figures["SDK coalesced", operation].rates, figures["Redis Streams", operation].rates, strict=True)
        ratios = [ours / theirs for ours, theirs in pairs]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"{operation}: {statistics.median(ratios):.2f} times as many as Redis Streams (turns: {shown}; wanted {least:g})"
        )


async def _timed(
    figures: Figures, who: str, operation: str, batch: int, loops: int, times: int,
    work: Callable[[int], Awaitable[None]],
) -> None:  # fmt: skip
    """Run ``work`` in so many loops at once, so many times each, and note the rate of messages."""
    measured = figures.setdefault((who, operation), Measured(batch))

    async def loop(number: int, times: int, waits: list[float]) -> None:
        for _ in range(times):
            started = time.perf_counter()
            await work(number)
            waits.append(time.perf_counter() - started)

    await asyncio.gather(*(loop(number, 1 + times // 10, []) for number in range(loops)))  # connections, queues, caches
    started = time.perf_counter()
    await asyncio.gather(*(loop(number, times, measured.waits) for number in range(loops)))
    measured.rates.append(loops * times * batch / (time.perf_counter() - started))


# ---- tenantq ----


def _wrk(directory: Path, url: str, table: Table, *, seconds: int) -> None:
    if shutil.which("wrk") is None:
        print("wrk is not installed: the load from native code is left out")
        return
    script = directory / "add.lua"
    script.write_text(_WRK.format(token=TOKEN, body=_BODY))
    command = ["wrk", "-t1", f"-c{_LOOPS}", f"-d{seconds}s", "--latency", "-s", str(script)]
    said = subprocess.run(
        [*command, f"{url}/v1/queues/{_QUEUE}/messages"], check=True, capture_output=True, text=True
    ).stdout
    if "Non-2xx" in said:
        raise RuntimeError(said)
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])  # type: ignore[index]  # wrk always says so
    times = dict(re.findall(r"(50|99)%\s+([\d.]+\w+)", said))
    table.row("wrk", "adds", 1, f"{rate:,.0f}", times["50"], times["99"])


async def _sdk(client: AsyncClient, who: str, figures: Figures, scale: int) -> None:
    queue = client.queue(_QUEUE)
    hundred = [_BODY] * 100

    async def add(_: int) -> None:
        await queue.add(_BODY)

    async def add_by_100(_: int) -> None:
        await queue.add_many(hundred)

    async def cycle(number: int) -> None:
        mine = client.queue(f"cycle-{number % 4}")
        await mine.add(_BODY)
        for message in await mine.poll(1, wait_ms=5_000):
            await message.ack()

    async def cycle_by_100(number: int) -> None:
        mine = client.queue(f"batch-{number}")
        await mine.add_many(hundred)
        left = 100
        while left:
            messages = await mine.poll(left, wait_ms=5_000)
            await mine.ack_many(messages)
            left -= len(messages)

    await _timed(figures, who, "adds", 1, _LOOPS, 1_000 // scale, add)
    await _timed(figures, who, "adds by 100", 100, 4, 200 // scale, add_by_100)
    await _timed(figures, who, "cycles", 1, _LOOPS, 300 // scale, cycle)
    await _timed(figures, who, "cycles by 100", 100, 4, 100 // scale, cycle_by_100)


# ---- Redis Streams ----


async def _redis(port: int, figures: Figures, scale: int) -> None:
    from redis.asyncio import Redis  # noqa: PLC0415  # only for the comparison

    client: Any = Redis(port=port, max_connections=_LOOPS * 2)
    for number in range(_LOOPS):
        await client.xgroup_create(f"batch-{number}", "g", id="0", mkstream=True)
    for number in range(4):
        await client.xgroup_create(f"cycle-{number}", "g", id="0", mkstream=True)

    async def add(_: int) -> None:
        await client.xadd(_QUEUE, {"b": _BODY})

    async def add_by_100(_: int) -> None:
        pipe = client.pipeline(transaction=False)
        for _ in range(100):
            pipe.xadd(_QUEUE, {"b": _BODY})
        await pipe.execute()

    async def cycle(number: int) -> None:
        stream = f"cycle-{number % 4}"
        await client.xadd(stream, {"b": _BODY})
        for _, entries in await client.xreadgroup("g", f"c{number}", {stream: ">"}, count=1, block=5_000):
            for id, _ in entries:
                pipe = client.pipeline(transaction=False)
                pipe.xack(stream, "g", id)
                pipe.xdel(stream, id)
                await pipe.execute()

    async def cycle_by_100(number: int) -> None:
        stream = f"batch-{number}"
        pipe = client.pipeline(transaction=False)
        for _ in range(100):
            pipe.xadd(stream, {"b": _BODY})
        await pipe.execute()
        for _, entries in await client.xreadgroup("g", "c", {stream: ">"}, count=100, block=5_000):
            ids = [id for id, _ in entries]
            pipe = client.pipeline(transaction=False)
            pipe.xack(stream, "g", *ids)
            pipe.xdel(stream, *ids)
            await pipe.execute()

    who = "Redis Streams"
    await _timed(figures, who, "adds", 1, _LOOPS, 400 // scale, add)
    await _timed(figures, who, "adds by 100", 100, 4, 100 // scale, add_by_100)
    await _timed(figures, who, "cycles", 1, _LOOPS, 100 // scale, cycle)
    await _timed(figures, who, "cycles by 100", 100, 4, 100 // scale, cycle_by_100)
    await client.aclose()
