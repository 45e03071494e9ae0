"""Over HTTP: one server process, fsync on, 100-byte bodies, the client on the same two cores, beside Redis Streams.

The same work is asked of both in one run: adds with 64 in flight, adds by 100, full cycles in 64 loops of one message, and by 100.
"""

from __future__ import annotations

import asyncio
import re
import shutil
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
_QUEUE = "bench"

_WRK = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {token}"
wrk.body = '{{"messages":[{{"body":"{body}"}}]}}'
"""


async def run(directory: Path, *, quick: bool) -> None:
    table = Table("who", "operation", "batch", "messages/s", "p50 ms", "p99 ms")
    scale = 10 if quick else 1
    rates: dict[str, float] = {}
    with tenantq(directory / "wrk") as url:
        _wrk(directory, url, table, seconds=2 if quick else 10)
    for name, coalesce in (("SDK unary", False), ("SDK coalesced", True)):
        with tenantq(directory / name.replace(" ", "-")) as url:
            async with AsyncClient(url, token=TOKEN, coalesce=coalesce, connections=_LOOPS) as client:
                await _sdk(client, name, table, rates, scale)
    with redis(directory / "redis") as port:
        await _redis(port, table, rates, scale)
    table.show()
    print()
    for operation, least in (("adds", 3.0), ("cycles", 3.0), ("cycles by 100", 1.0)):
        ours, theirs = rates[f"SDK coalesced {operation}"], rates[f"Redis Streams {operation}"]
        print(
            f"{operation}: {ours:,.0f} against {theirs:,.0f} of Redis Streams: {ours / theirs:.2f} times (wanted {least:g})"
        )


async def _timed(
    table: Table, rates: dict[str, float], who: str, operation: str, batch: int, loops: int, times: int,
    work: Callable[[int], Awaitable[None]],
) -> None:  # fmt: skip
    """Run ``work`` in so many loops at once, so many times each, and note the rate of messages."""
    waits: list[float] = []

    async def loop(number: int) -> None:
        for _ in range(times):
            started = time.perf_counter()
            await work(number)
            waits.append(time.perf_counter() - started)

    await work(0)  # connections are open and queues are there
    started = time.perf_counter()
    await asyncio.gather(*(loop(number) for number in range(loops)))
    rate = loops * times * batch / (time.perf_counter() - started)
    rates[f"{who} {operation}"] = rate
    table.row(
        who,
        operation,
        batch,
        f"{rate:,.0f}",
        f"{percentile(waits, 50) * 1e3:.2f}",
        f"{percentile(waits, 99) * 1e3:.2f}",
    )


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


async def _sdk(client: AsyncClient, who: str, table: Table, rates: dict[str, float], scale: int) -> None:
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

    await _timed(table, rates, who, "adds", 1, _LOOPS, 1_000 // scale, add)
    await _timed(table, rates, who, "adds by 100", 100, 4, 200 // scale, add_by_100)
    await _timed(table, rates, who, "cycles", 1, _LOOPS, 300 // scale, cycle)
    await _timed(table, rates, who, "cycles by 100", 100, 4, 100 // scale, cycle_by_100)


# ---- Redis Streams ----


async def _redis(port: int, table: Table, rates: dict[str, float], scale: int) -> None:
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
    await _timed(table, rates, who, "adds", 1, _LOOPS, 400 // scale, add)
    await _timed(table, rates, who, "adds by 100", 100, 4, 100 // scale, add_by_100)
    await _timed(table, rates, who, "cycles", 1, _LOOPS, 100 // scale, cycle)
    await _timed(table, rates, who, "cycles by 100", 100, 4, 100 // scale, cycle_by_100)
    await client.aclose()
