"""Over HTTP: one server process, fsync on, 100-byte bodies, the client on the same two cores, compared with Redis Streams.

The same work is asked of both in one run: adds with 64 in flight, adds by 100, full cycles in 64 loops of one message, and by 100.
They take turns, each alone with the client, after the same warming up: the machine changes its pace from minute to minute.
Redis takes two turns where hiredis is installed: by redis-py as it comes, and with that parser in C, which `redis[hiredis]` adds.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.counted_loops import drive_times
from bench.processes import TOKEN, redis, tenantq
from bench.table import Table
from tenantq.client import AsyncClient
from tenantq.load.cases import make_add, make_batch_add, make_batch_cycle, make_cycle
from tenantq.load.latencies import Latencies

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.client import AsyncQueue
    from tenantq.load.closed_loop import LoadCall

_BODY = "x" * 100
_LOOPS = 64
_TURNS = 7
_QUEUE = "bench"
_PLAIN = "Redis Streams"
_HIREDIS = "Redis Streams, hiredis"

_WRK = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {token}"
wrk.body = '{{"messages":[{{"body":"{body}"}}]}}'
"""


class Measured:
    """The rates of one operation by one client, by turn, and the duration of every call."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.rates: list[float] = []
        self.latencies = Latencies()


Figures = dict[tuple[str, str], Measured]  # by client and operation


async def run(directory: Path, *, quick: bool) -> None:
    table = Table("client", "operation", "batch", "messages/s", "p50 ms", "p99 ms")
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
            await _redis(port, _PLAIN, figures, scale)
        if find_spec("hiredis"):
            with redis(directory / f"hiredis-{turn}") as port:
                await _redis(port, _HIREDIS, figures, scale)
    for (who, operation), measured in figures.items():
        p50_s, p99_s = measured.latencies.percentiles(50, 99)
        assert p50_s is not None
        assert p99_s is not None
        table.row(
            who,
            operation,
            measured.batch,
            f"{statistics.median(measured.rates):,.0f}",
            f"{p50_s * 1e3:.2f}",
            f"{p99_s * 1e3:.2f}",
        )
    table.show()
    print()
    for operation, least in (("adds", 3.0), ("cycles", 3.0), ("cycles by 100", 1.0)):
        for peer in (_PLAIN, _HIREDIS):
            if (peer, operation) in figures:
                _compare(figures, peer, operation, f"; target {least:g}" if peer == _PLAIN else "")


def _compare(figures: Figures, peer: str, operation: str, wanted: str) -> None:
    pairs = zip(figures["SDK coalesced", operation].rates, figures[peer, operation].rates, strict=True)
    ratios = [ours / theirs for ours, theirs in pairs]
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{operation}: {statistics.median(ratios):.2f} times as many as {peer} (turns: {shown}{wanted})")


async def _timed(
    figures: Figures, who: str, operation: str, batch: int, loops: int, times: int, work: LoadCall
) -> None:  # fmt: skip
    """Run ``work`` in a number of concurrent loops, a number of times each, and record the message rate."""
    measured = figures.setdefault((who, operation), Measured(batch))
    await drive_times(work, loops=loops, times=1 + times // 10)  # connections, queues, caches
    tally = await drive_times(work, loops=loops, times=times, latencies=measured.latencies)
    assert tally.messages == loops * times * batch
    assert tally.per_second is not None
    measured.rates.append(tally.per_second)


# ---- tenantq ----


def _wrk(directory: Path, url: str, table: Table, *, seconds: int) -> None:
    if shutil.which("wrk") is None:
        print("wrk is not installed: skipping the native load")
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
    def cycled(number: int) -> AsyncQueue:
        return client.queue(f"cycle-{number % 4}")

    def batched(number: int) -> AsyncQueue:
        return client.queue(f"batch-{number}")

    queue = client.queue(_QUEUE)
    await _timed(figures, who, "adds", 1, _LOOPS, 1_000 // scale, make_add(lambda _: queue, _BODY))
    await _timed(figures, who, "adds by 100", 100, 4, 200 // scale, make_batch_add(lambda _: queue, _BODY, 100))
    await _timed(figures, who, "cycles", 1, _LOOPS, 300 // scale, make_cycle(cycled, _BODY))
    await _timed(figures, who, "cycles by 100", 100, 4, 100 // scale, make_batch_cycle(batched, _BODY, 100))


# ---- Redis Streams ----


async def _redis(port: int, who: str, figures: Figures, scale: int) -> None:
    from redis import _parsers as parsers  # noqa: PLC0415  # only for the comparison
    from redis.asyncio import ConnectionPool, Redis  # noqa: PLC0415  # only for the comparison

    parser = parsers._AsyncHiredisParser if who == _HIREDIS else parsers._AsyncRESP3Parser
    pool: Any = ConnectionPool(host="127.0.0.1", port=port, max_connections=_LOOPS * 2, parser_class=parser)
    client: Any = Redis(connection_pool=pool)
    for number in range(_LOOPS):
        await client.xgroup_create(f"batch-{number}", "g", id="0", mkstream=True)
    for number in range(4):
        await client.xgroup_create(f"cycle-{number}", "g", id="0", mkstream=True)

    async def add(_: int) -> int:
        await client.xadd(_QUEUE, {"b": _BODY})
        return 1

    async def add_by_100(_: int) -> int:
        pipe = client.pipeline(transaction=False)
        for _ in range(100):
            pipe.xadd(_QUEUE, {"b": _BODY})
        await pipe.execute()
        return 100

    async def cycle(number: int) -> int:
        stream = f"cycle-{number % 4}"
        await client.xadd(stream, {"b": _BODY})
        for _, entries in await client.xreadgroup("g", f"c{number}", {stream: ">"}, count=1, block=5_000):
            for id, _ in entries:
                pipe = client.pipeline(transaction=False)
                pipe.xack(stream, "g", id)
                pipe.xdel(stream, id)
                await pipe.execute()
        return 1

    async def cycle_by_100(number: int) -> int:
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
        return 100

    await _timed(figures, who, "adds", 1, _LOOPS, 400 // scale, add)
    await _timed(figures, who, "adds by 100", 100, 4, 100 // scale, add_by_100)
    await _timed(figures, who, "cycles", 1, _LOOPS, 100 // scale, cycle)
    await _timed(figures, who, "cycles by 100", 100, 4, 100 // scale, cycle_by_100)
    await client.aclose()
    await pool.aclose()
