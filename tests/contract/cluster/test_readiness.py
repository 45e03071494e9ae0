"""When a server of a cluster is ready, and what becomes of shards that cannot be opened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.cluster.host import ShardHost
from tenantq.domain.cluster_view import Member
from tenantq.errors import StoreFailed
from tenantq.store.redis.settings import RedisSettings
from tests.contract.cluster.hosts import SHARDS, client_of, hosting, registry_of, tenant_on
from tests.contract.cluster.test_members import until
from tests.redis_servers import RedisServer, eventually

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.contract.cluster.hosts import SharedStore

MESSAGE = {"messages": [{"body": "a"}]}


async def readiness(client: httpx.AsyncClient) -> tuple[int, dict[str, Any]]:
    """Return the status of the reply and what it says."""
    reply = await client.get("/readyz")
    return reply.status_code, reply.json()["details"]


async def until_ready(client: httpx.AsyncClient, *, ready: bool) -> dict[str, Any]:
    """Wait until the server is ready, or is not, and return what it says."""
    while True:
        status, details = await readiness(client)
        if (status == 200) is ready:
            return details
        await asyncio.sleep(0.02)


async def test_a_restarted_server_is_not_ready_because_of_rows_of_dead_ones(
    shared_store: SharedStore, tmp_path: Path
) -> None:
    """The rows of servers that were killed together still name owners. A server starts to listen when it serves their shards."""
    registry = registry_of(shared_store, "killed")
    cluster = await asyncio.to_thread(registry.create, SHARDS, ())
    dead = Member(id="dead", peer_address="127.0.0.1:1", owned=dict.fromkeys(range(cluster.shards), 1))
    await asyncio.to_thread(registry.heartbeat, dead, 1)
    registry.close()
    async with hosting(tmp_path, shared_store.url, "killed") as server, client_of(server) as client:
        assert server.host is not None
        assert server.host.owned().keys() == set(range(SHARDS))
        assert (await readiness(client))[0] == 200


async def test_a_server_that_can_open_no_shard_is_not_ready(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says why, logs it once for each shard although it tries again, and logs when a shard is open."""
    attempts = dict.fromkeys(range(SHARDS), 0)

    async def refuse(_: ShardHost, shard: int, __: object) -> None:
        attempts[shard] += 1
        raise StoreFailed(f"no space left (attempt {attempts[shard]})")

    async with hosting(tmp_path, shared_store.url, "unopened") as server, client_of(server) as client:
        caplog.set_level("INFO", "tenantq.cluster")
        with monkeypatch.context() as patch:
            patch.setattr(ShardHost, "acquire", refuse)
            assert server.host is not None
            await asyncio.gather(*map(server.host.release, range(SHARDS)))
            details = await until_ready(client, ready=False)
            await until(lambda: min(attempts.values()) >= 3)
            details = await until_ready(client, ready=False)
        assert details["reason"].startswith("no space left")
        assert {one["status"] for one in details["owned_shards"].values()} == {"failed"}
        assert caplog.text.count("cannot be opened here") == SHARDS
        await until_ready(client, ready=True)
        await until(lambda: caplog.text.count("is open now") == SHARDS)


async def test_shards_stay_closed_while_replicas_are_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They do not open and fail again and again, and serve when the replica is back."""
    fsync = ("appendonly yes", "appendfsync always")
    primary = RedisServer(tmp_path / "primary", "repl-diskless-sync-delay 0", *fsync)
    replica = RedisServer(tmp_path / "replica", f"replicaof 127.0.0.1 {primary.port}", *fsync)
    settings = {
        "redis": RedisSettings(name="replicated", lease_ms=3_000, replicas=1, patience_ms=1_000),
        "shard": {"durability": "fsync"},
    }
    try:
        eventually(lambda: replica.client().info("replication")["master_link_status"] == "up")
        async with (
            hosting(tmp_path / "server", primary.url, "replicated", **settings) as server,
            client_of(server) as client,
        ):
            tenant = await tenant_on(client, [2])
            await asyncio.to_thread(replica.kill)
            adding = asyncio.ensure_future(client.post(f"/v1/tenants/{tenant}/queues/work/messages", json=MESSAGE))
            membership, host = server.membership, server.host
            assert membership is not None
            assert host is not None
            await until(lambda: 2 in membership.refusals)
            assert "redis.replicas is 1" in membership.refusals[2]
            assert (await adding).status_code == 503
            _, details = await readiness(client)
            assert "redis.replicas is 1" in details["owned_shards"]["2"]["reason"]
            before, stopped = membership.takeovers, caplog.text.count("shard 2 has stopped")
            refused = await client.post(f"/v1/tenants/{tenant}/queues/work/messages", json=MESSAGE)  # held meanwhile
            assert refused.status_code == 503
            assert (membership.takeovers, caplog.text.count("shard 2 has stopped")) == (before, stopped)
            assert (stopped, caplog.text.count("shard 2 cannot be opened here")) == (1, 1)
            await asyncio.to_thread(replica.start)
            await until(lambda: 2 in host.owned())
            added = await client.post(f"/v1/tenants/{tenant}/queues/work/messages", json=MESSAGE)
            assert added.status_code == 200
    finally:
        for one in (replica, primary):
            one.kill()
