"""The stores side by side: the same engine on RocksDB, Redis and PostgreSQL, all on this disk, all synced."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bench.cycles import add, cycle
from bench.table import Table, percentile
from tests.postgres_servers import OnPostgres, PostgresServer
from tests.redis_servers import OnRedis, RedisServer
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    Work = Callable[[Shard, int, int, list[float]], Coroutine[None, None, None]]

_KINDS = ("rocksdb", "redis", "postgres")
_CASES = (("add", add, 64, 1, 6_000), ("add", add, 1, 100, 30_000), ("full cycle", cycle, 1, 100, 20_000), ("full cycle", cycle, 16, 100, 40_000))  # fmt: skip


async def _measured(shard: Shard, work: Work, callers: int, batch: int, times: int) -> tuple[float, list[float]]:
    waits: list[float] = []
    await work(shard, batch, max(1, times // 10), [])
    started = time.perf_counter()
    await asyncio.gather(*(work(shard, batch, times, waits) for _ in range(callers)))
    return time.perf_counter() - started, waits


async def run(directory: Path, *, quick: bool) -> None:
    table = Table(
        "operation", "callers", "batch", *(f"{kind} msgs/s" for kind in _KINDS), "redis ratio", "postgres ratio",
        *(f"{kind} p50 ms" for kind in _KINDS),
    )  # fmt: skip
    redis = RedisServer(directory / "redis", "appendonly yes", "appendfsync always")
    postgres = PostgresServer()
    try:
        for name, work, callers, batch, messages in _CASES:
            times = max(1, messages // (10 if quick else 1) // callers // batch)
            spent: list[float] = []
            middle: list[str] = []
            for kind in _KINDS:
                path = directory / f"{kind}-{name}-{callers}-{batch}"
                opener: OnRedis | OnPostgres | None = None
                if kind != "rocksdb":
                    opener = OnRedis(redis, path, "fsync") if kind == "redis" else OnPostgres(postgres, path, "fsync")
                async with Shard(path, open_store=opener) as shard:
                    seconds, waits = await _measured(shard, work, callers, batch, times)
                spent.append(seconds)
                middle.append(f"{percentile(waits, 50) * 1e3:.2f}")
            done = times * callers * batch
            rates = [f"{done / seconds:,.0f}" for seconds in spent]
            ratios = [f"{seconds / spent[0]:.2f}" for seconds in spent[1:]]
            table.row(name, callers, batch, *rates, *ratios, *middle)
        await _memory(redis, directory)
    finally:
        redis.kill()
        postgres.stop()
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
