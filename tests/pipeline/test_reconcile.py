"""Reconciliation compares a real shard's counters with the lake built from its journal."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tenantq.cli.command_line import run as command_line
from tenantq.cli.offline_store import free_shards
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.exporter import Exporter
from tenantq.pipeline.reconciliation import reconcile
from tests.administration import delete_queue, purge, put_queue
from tests.contract.cluster.hosts import client_of, hosting, tenant_on
from tests.contract.cluster.test_tenant_moves import pin, wait_until_placed
from tests.shards import Q, T, message, pass_time

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tenantq.journal.export_target import DirectoryTarget
    from tenantq.journal.signing import SigningKey
    from tenantq.pipeline.lake.lake import Lake
    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard
    from tests.pipeline.conftest import RunPipeline
    from tests.redis_servers import RedisServer


async def test_totals_equal_the_queue_counters_exactly(
    open_shard: OpenShard,
    clock: ManualClock,
    journal: DirectoryTarget,
    key: SigningKey,
    spark: SparkSession,
    lake: Lake,
    pipeline: RunPipeline,
    tmp_path: Path,
) -> None:
    """After adds, failures, dead letters, expiry, removal, purge and a recreated queue there is no drift."""
    shard = await open_shard()
    await put_queue(shard, T, Q, max_attempts=2, backoff_base_ms=0, backoff_max_ms=0)
    added = await shard.add(T, Q, [message("x" * number, priority=number % 3) for number in range(1, 13)])
    await shard.add(T, Q, [message("short", ttl_ms=500)])
    for one in await shard.poll(T, Q, max=4):
        await shard.ack(T, Q, [one.receipt])
    for _ in range(2):
        got = await shard.poll(T, Q, max=3)
        await shard.nack(T, Q, [one.receipt for one in got], delay_ms=0, reason="no")
    await shard.poll(T, Q, max=2, lease_ms=1_000)
    await shard.remove(T, Q, [added[-1].raw_id])
    await pass_time(shard, clock, 2_000)
    await shard.add(T, "gone", [message("a"), message("b")])
    await purge(shard, T, "gone", reason="a test of purging")
    await shard.add(T, "gone", [message("c")])
    await delete_queue(shard, T, "gone", reason="a test of deleting", force=True)
    await pass_time(shard, clock, 1_000)
    await shard.add(T, "gone", [message("d")])
    exporter = Exporter(shard.journal, journal, key, clock, ExportSettings(keep_records=0))
    await exporter.start()
    await exporter.close()
    await shard.close()

    report = pipeline(public_key=tmp_path / "audit_key.pub", now_ms=clock.wall_ms())
    assert not report.quarantined
    found = reconcile(spark, lake, [tmp_path / "data"])
    assert found.drifts == []
    assert found.queues >= 3
    assert lake.read(spark, "segments").where("signed and reason = ''").count() == report.accepted

    places = (
        "--journal",
        journal.path,
        "--lake",
        lake.path,
        "--data-dir",
        tmp_path / "data",
        "--out",
        tmp_path / "pages",
    )
    assert command_line(["pipeline", "all", *map(str, places)]) == 0
    assert (tmp_path / "pages" / "index.html").exists()

    shard = await open_shard()
    await shard.add(T, Q, [message("not exported")])
    await shard.close()
    drifts = reconcile(spark, lake, [tmp_path / "data"]).drifts
    assert {(one.queue, one.figure, one.store - one.lake) for one in drifts} == {
        (Q, "added", 1), (Q, "added_bytes", 12), (Q, "messages", 1), (Q, "bytes", 12),
    }  # fmt: skip


async def test_a_tenant_that_has_moved_is_counted_on_all_its_shards(
    redis_server: RedisServer, journal: DirectoryTarget, spark: SparkSession, lake: Lake, pipeline: RunPipeline, tmp_path: Path
) -> None:  # fmt: skip
    """Moved there and back, with a queue recreated on the other shard and a tenant deleted there."""
    url, name = f"redis://127.0.0.1:{redis_server.port}", "reconciled"
    exports = {"export": {"target": str(journal.path)}}
    async with hosting(tmp_path / "data", url, name, **exports) as server, client_of(server) as client:
        tenants = [await tenant_on(client, [1], prefix) for prefix in ("moved", "deleted")]

        async def use(tenant: str, target: int) -> None:
            queue = f"/v1/tenants/{tenant}/queues/work"
            await client.post(f"{queue}/messages", json={"messages": [{"body": str(n)} for n in range(10)]})
            polled = (await client.post(f"{queue}/poll", json={"max": 4})).json()["messages"]
            await client.post(f"{queue}/ack", json={"receipts": [one["receipt"] for one in polled]})
            await pin(client, tenant, target)
            assert await wait_until_placed(client, tenant) == target

        for tenant in tenants:
            await use(tenant, 2)
            await use(tenant, 1)
            await use(tenant, 3)
        confirm = {"confirm": "work", "reason": "a test of moving", "force": True}
        again = f"/v1/tenants/{tenants[0]}/queues/work"
        assert (await client.request("DELETE", again, json=confirm)).is_success
        async with asyncio.timeout(30):
            while not (await client.put(again, json={})).is_success:  # noqa: ASYNC110  # the server deletes rows first
                await asyncio.sleep(0.05)
        await use(tenants[0], 2)
        await use(tenants[0], 4)
        gone = {"confirm": tenants[1], "reason": "a test of moving"}
        assert (await client.request("DELETE", f"/v1/tenants/{tenants[1]}", json=gone)).is_success
    pipeline(now_ms=int(time.time() * 1_000))
    found = reconcile(spark, lake, [], free_shards(url, name, tmp_path / "data"))
    assert found.drifts == []
    assert found.queues >= 1
