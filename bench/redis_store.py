"""The two stores compared: the same engine on RocksDB and on its own Redis, both on this disk and both synced."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bench.cycles import add, cycle
from bench.table import Table, percentile
from tests.redis_servers import OnRedis, RedisServer
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    Work = Callable[[Shard, int, int, list[float]], Coroutine[None, None, None]]

_CASES = (("add", add, 64, 1, 6_000), ("add", add, 1, 100, 30_000), ("full cycle", cycle, 1, 100, 20_000), ("full cycle", cycle, 16, 100, 40_000))  # fmt: skip


async def _measured(shard: Shard, work: Work, callers: int, batch: int, times: int) -> tuple[float, list[float]]:
    waits: list[float] = []
    await work(shard, batch, max(1, times // 10), [])
    started = time.perf_counter()
    await asyncio.gather(*(work(shard, batch, times, waits) for _ in range(callers)))
    return time.perf_counter() - started, waits


async def run(directory: Path, *, quick: bool) -> None:
    table = Table(
        "operation", "callers", "batch", "rocksdb msgs/s", "redis msgs/s", "ratio", "rocksdb p50 ms", "redis p50 ms"
    )
    server = RedisServer(directory / "redis", "appendonly yes", "appendfsync always")
    try:
        for name, work, callers, batch, messages in _CASES:
            times = max(1, messages // (10 if quick else 1) // callers // batch)
            spent: list[float] = []
            middle: list[str] = []
            for kind in ("rocksdb", "redis"):
                path = directory / f"{kind}-{name}-{callers}-{batch}"
                opener = OnRedis(server, path, "fsync") if kind == "redis" else None
                async with Shard(path, open_store=opener) as shard:
                    seconds, waits = await _measured(shard, work, callers, batch, times)
                spent.append(seconds)
                middle.append(f"{percentile(waits, 50) * 1e3:.2f}")
            done = times * callers * batch
            table.row(
                name, callers, batch, f"{done / spent[0]:,.0f}", f"{done / spent[1]:,.0f}", f"{spent[1] / spent[0]:.2f}", *middle
            )  # fmt: skip
        await _memory(server, directory)
    finally:
        server.kill()
    table.show()


async def _memory(server: RedisServer, directory: Path) -> None:
    """Print how much memory a message takes in Redis in addition to its body."""
    server.client().flushall()
    async with Shard(directory / "memory", open_store=OnRedis(server, directory / "memory", "fsync")) as shard:
        await add(shard, 100, 10, [])
        before = server.client().info("memory")["used_memory"]
        await add(shard, 100, 200, [])
        waiting = (server.client().info("memory")["used_memory"] - before) / 20_000 - 100
        await shard.poll("default", "bench", max=1_000)
        before = server.client().info("memory")["used_memory"]
        for _ in range(10):
            await shard.poll("default", "bench", max=1_000)
        leased = (server.client().info("memory")["used_memory"] - before) / 10_000
    print(
        f"a waiting message takes {waiting:.0f} bytes in addition to its body, including its part of the journal; a lease adds {leased:+.0f}"
    )
