"""A server killed while it moves a tenant: another one completes the move, and every message is delivered and acked."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import httpx

from tenantq.client.async_client import AsyncClient
from tenantq.client.settings import Retries
from tests.crash.cluster_load import Load
from tests.crash.cluster_servers import TOKEN, Server
from tests.crash.killed_mover import STEPS
from tests.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHARDS = 4
SETTINGS = {"TENANTQ_REDIS__REPLICAS": "0", "TENANTQ_REDIS__LEASE_MS": "1000"}


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition that depends on other processes holds."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  # other processes
            await asyncio.sleep(0.05)


async def shard_of(servers: list[Server], *, target: int | None = None) -> int:
    """Return the shard of the tenant once it is not moving; with ``target``, request a move first."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client, asyncio.timeout(60):
        while True:
            for server in servers:
                try:
                    if target is not None:
                        moved = await client.put(f"{server.url}/v1/cluster/tenants/mover", json={"shard": target})
                        if moved.status_code == 200:
                            return target
                    else:
                        found: dict[str, Any] = (await client.get(f"{server.url}/v1/cluster/tenants/mover")).json()
                        if found.get("moves") == []:
                            return int(found["shard"])
                except httpx.HTTPError:
                    continue
            await asyncio.sleep(0.1)


async def test_server_killed_during_a_move_loses_nothing(tmp_path: Path) -> None:
    """It is killed after the fence, after the last rows and after the switch; a second server takes over each time."""
    redis = RedisServer(tmp_path / "redis", "appendonly yes", "appendfsync always")
    step_file = tmp_path / "step"
    module = ("tests.crash.killed_mover", str(step_file))
    servers = [
        Server(number, tmp_path, f"redis://127.0.0.1:{redis.port}", SHARDS, None, module, **SETTINGS)
        for number in range(2)
    ]
    retries = Retries(count=30, base_ms=50, max_ms=1_000)
    client = AsyncClient([server.url for server in servers], TOKEN, timeout_ms=5_000, retries=retries)
    try:
        for server in servers:
            server.start()
        await until(lambda: all(b"ready on" in server.log.read_bytes() for server in servers))
        await client.tenant("mover").configure()
        queue = client.tenant("mover").queue("work")
        await queue.configure(max_attempts=1_000)
        load = Load("mover", queue, random.Random(1))
        producer, consumer = (asyncio.create_task(one) for one in (load.produce(), load.consume()))
        for step in STEPS:
            source = await shard_of(servers)
            step_file.write_text(step)
            target = await shard_of(servers, target=(source + 1) % SHARDS)
            await until(lambda: any(server.is_gone for server in servers))
            assert await shard_of([one for one in servers if not one.is_gone]) == target, step
            for server in servers:
                if server.is_gone:
                    server.start()
            count = len(load.checker.acked)
            await until(lambda: len(load.checker.acked) > count + 5)  # noqa: B023  # awaited in this turn
        load.producing = False
        await producer  # its last message may not be confirmed yet
        await until(lambda: not (load.checker.added.keys() - load.checker.acked - load.checker.uncertain.keys()))
        load.consuming = False
        await consumer
        load.checker.judge()
        await load.finish_uncertain()
        assert load.checker.wrongs == []
    finally:
        await client.close()
        for server in servers:
            if not server.is_gone:
                server.end()
        redis.kill()
