"""Behaviour 67: a shard on a real Redis Cluster: one slot, all operations, failover, a slot that moves under load."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from redis.crc import key_slot
from redis.exceptions import RedisError

from tenantq.domain.message import Result
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.engine.settings import ShardSettings
from tenantq.errors import StoreFailed
from tenantq.store.keys import queue_prefix
from tenantq.store.redis.layout import Layout
from tests.administration import delete_queue, finished, purge, put_queue, put_tenant
from tests.redis_servers import OnRedis, RedisNodes, RedisServer, eventually
from tests.redis_store.test_failures import drain, work, work_named
from tests.shards import Q, examined, message
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STATE = b"t:{fleet:0}:s"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisNodes]:
    """Run a cluster with a shard named ``fleet``."""
    wanted = ("appendonly yes", "appendfsync always", "repl-diskless-sync-delay 0")
    nodes = RedisNodes(tmp_path_factory.mktemp("cluster"), STATE, *wanted)
    yield nodes
    nodes.stop()


def shard_on(cluster: RedisNodes, path: Path, **settings: object) -> Shard:
    """Return a shard on the cluster, not opened yet."""
    opener = OnRedis(cluster, path, "fsync", **{"name": "fleet", "patience_ms": 30_000, "lease_ms": 1_000, **settings})
    return Shard(path, open_store=opener, settings=ShardSettings(disk_reserve_bytes=0))


def all_keys(cluster: RedisNodes) -> dict[bytes, int]:
    """Return every key of every primary, with its slot."""
    found: dict[bytes, int] = {}
    for node in cluster.nodes:
        client = node.client()
        if client.info("replication")["role"] == "master":
            found.update({key: key_slot(key) for key in client.keys("*")})
    return found


def clear(cluster: RedisNodes) -> None:
    """Delete everything."""
    cluster.owner().client().flushall()


async def test_67_every_operation_works_on_a_cluster_and_all_keys_are_in_one_slot(
    cluster: RedisNodes, tmp_path: Path
) -> None:
    """No function ever names keys of two slots."""
    async with shard_on(cluster, tmp_path) as shard:
        await put_tenant(shard, "acme", quotas={"backlog": 100})
        await put_queue(shard, "acme", Q, max_attempts=1, backoff_base_ms=0)
        sent = [
            message("a", key="k", ttl_ms=60_000),
            message("b", group="g"),
            message("c", group="g"),
            message("d", priority=9),
        ]
        added = await shard.add("acme", Q, sent, batch_key="whole")
        await shard.add("acme", "line.fifo", [message("f", delay_ms=1)])
        await shard.fleet_poll(Q, max=1)
        first, second = await shard.poll("acme", Q, max=2)
        await shard.extend("acme", Q, [first.receipt], lease_ms=5_000)
        await shard.ack("acme", Q, [first.receipt], results=[Result("completed", b"r")])
        assert (await shard.reads.result("acme", Q, first.id)).value == b"r"
        await shard.nack("acme", Q, [second.receipt], reason="no luck at all")
        (third,) = await shard.poll("acme", Q)
        await shard.release("acme", Q, [third.receipt])
        facts = await shard.snapshots.open("acme", Q, part_messages=1)
        await shard.reads.peek("acme", Q)
        await shard.reads.trace("acme", Q, added[0].id)
        task = await shard.redrive("acme", Q, filter=RedriveFilter())
        await finished(shard, task)
        keys = all_keys(cluster)
        await purge(shard, "acme", Q, reason="a test of the cluster")
        assert (await shard.snapshots.read("acme", Q, facts.id, limit=10)).messages  # the snapshot keeps them
        shard.snapshots.close("acme", Q, facts.id)
        await shard.journal.trim(3)
        keys |= all_keys(cluster)
        assert len(keys) > 15
        assert set(keys.values()) == {cluster.slot}
        await delete_queue(shard, "acme", Q, force=True)
        await shard.erasure.delete_tenant("acme", reason="a test of the cluster")
        assert shard.failure is None
    assert examined(shard).findings == []
    clear(cluster)


async def test_67_moving_a_slot_under_load_loses_nothing(cluster: RedisNodes, tmp_path: Path) -> None:
    """Commits wait while keys are on both nodes, and resume on the new node."""
    async with shard_on(cluster, tmp_path) as shard:
        added, acked = await work(shard, 5)
        source = cluster.owner()
        target = next(
            node
            for node in cluster.nodes[:3]
            if node is not source and node.client().info("replication")["role"] == "master"
        )
        moving = threading.Thread(target=move_slot, args=(cluster, source, target))
        moving.start()
        number = 0
        while moving.is_alive() or number < 3:
            more, finished = await work_named(shard, f"moving{number}")
            added |= more
            acked |= finished
            number += 1
        moving.join()
        assert cluster.owner() is target
        assert sorted(await drain(shard)) == sorted(added - acked)
        assert shard.failure is None
    assert examined(shard).findings == []
    move_slot(cluster, target, source)  # the next test needs its replica
    clear(cluster)


def move_slot(cluster: RedisNodes, source: RedisServer, target: RedisServer) -> None:
    """Move the shard's slot key by key, as redis-cli does."""
    here, there, slot = source.client(), target.client(), cluster.slot
    there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
        here.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
        time.sleep(0.03)  # let the workers run in between
    for client in (there, here, *(node.client() for node in cluster.nodes[:3])):
        try:
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(target))
        except RedisError:
            continue  # it may be a replica by now


async def test_67_reads_during_a_slot_move_find_rows_on_both_nodes(cluster: RedisNodes, tmp_path: Path) -> None:
    """Each row is read where it is. A node that may lose confirmed writes is not used during the move."""
    store = await OnRedis(cluster, tmp_path, "fsync", name="fleet")("0")
    queues = [queue_prefix(1, 1), queue_prefix(1, 2)]
    keys = [queue + b"i" * 16 for queue in queues]
    batch = store.new_batch()
    for key in keys:
        batch.put(key, b"body", store.m.handle)
    store.write(batch)
    source, slot = cluster.owner(), cluster.slot
    target = next(
        node
        for node in cluster.nodes[:3]
        if node is not source and node.client().info("replication")["role"] == "master"
    )
    here, there = source.client(), target.client()
    there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    here.execute_command(
        "MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", Layout("fleet", "0").rows("m", queues[0])
    )
    assert store.get_many(store.m, keys) == [b"body", b"body"]
    there.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreFailed, match="Set noeviction"):
        store.get_many(store.m, keys)
    there.config_set("maxmemory-policy", "noeviction")
    for client in (here, there):
        client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        client.flushall()
    store.close()


async def test_66_failover_of_a_killed_primary_loses_nothing_confirmed(cluster: RedisNodes, tmp_path: Path) -> None:
    """With one replica waited for, the shard continues on the new primary."""
    async with shard_on(cluster, tmp_path, replicas=1) as shard:
        added, acked = await work(shard, 10)
        gone = cluster.owner()
        gone.kill()
        taking = threading.Thread(target=come_back, args=(cluster, gone))
        taking.start()
        more, finished = await work_named(shard, "after")
        taking.join()
        assert cluster.owner() is not gone
        assert sorted(await drain(shard)) == sorted((added | more) - acked - finished)
        assert shard.failure is None
    assert examined(shard).findings == []


def come_back(cluster: RedisNodes, gone: RedisServer) -> None:
    """Restart a killed node after failover; it becomes the replica that commits wait for."""
    eventually(lambda: any(node is not gone and is_owner(cluster, node) for node in cluster.nodes), 30)
    gone.start()


def is_owner(cluster: RedisNodes, node: RedisServer) -> bool:
    """Return whether a node claims the slot."""
    return node.client().info("replication")["role"] == "master" and cluster.holds(node, cluster.slot)


async def test_a_node_that_hangs_is_asked_once_for_the_owners_of_slots(cluster: RedisNodes, tmp_path: Path) -> None:
    """Not again by every connection of every shard: each would wait for it before it asks another node."""
    asked: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as hanging:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    asked.append(hanging.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        rest = cluster.url.removeprefix("redis+cluster://")
        url = f"redis+cluster://127.0.0.1:{hanging.getsockname()[1]},{rest}"
        for number in range(2):
            open_store = OnRedis(SimpleNamespace(url=url), tmp_path / str(number), name=f"hanging-{number}")
            store = await open_store("0")
            store.close()
        hanging.shutdown(socket.SHUT_RDWR)
    assert len(asked) == 1
    for one in asked:
        one.close()
    clear(cluster)


async def test_cluster_url_of_a_standalone_server_is_refused(durable_server: RedisServer, tmp_path: Path) -> None:
    """The error says which URL scheme to use instead."""

    class Named:
        url = f"redis+cluster://127.0.0.1:{durable_server.port}"

    opener = OnRedis(Named(), tmp_path, "fsync")
    with pytest.raises(StoreFailed, match="Use redis://"):
        await asyncio.wait_for(Shard(tmp_path, open_store=opener).open(), 20)
