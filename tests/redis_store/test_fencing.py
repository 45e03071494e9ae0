"""What an owner must not do once another may have taken over: write, confirm, read, clean up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import StoreFailed
from tenantq.store.keys import after, queue_prefix, tenant_prefix
from tenantq.store.redis.store import RedisStore
from tenantq.store.shard_lease import ShardHeld
from tests.redis_servers import OnRedis, RedisServer, ResettingProxy, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tenantq.store.redis.snapshot import RedisSnapshot

    Open = Callable[..., RedisStore]

STATE = "t:{fenced:0}:s"
LEASE_MS = 60_000


@pytest.fixture
def open_on(tmp_path: Path, redis_server: RedisServer) -> Iterator[Open]:
    """Open stores of one shard, each with its own directory."""
    opened: list[RedisStore] = []

    def open_one(directory: str, server: object = redis_server, **settings: object) -> RedisStore:
        path = tmp_path / directory
        opener = OnRedis(server, path, "os", **{"name": "fenced", "lease_ms": LEASE_MS, **settings})
        opened.append(RedisStore(path, opener.address, opener.settings, "0", durability="os"))
        return opened[-1]

    yield open_one
    for store in opened:
        if store._families:
            store.close()
    redis_server.client().flushall()


def put(store: RedisStore, name: bytes) -> None:
    """Write one row."""
    batch = store.new_batch()
    batch.put(b"row/" + name, b"value", store.meta.handle)
    store.write(batch)


def rows(store: RedisStore) -> list[bytes]:
    """Return the rows that ``put`` wrote."""
    return [key.removeprefix(b"row/") for key in store.scan(store.meta, b"row/", b"row0", 100)]


def test_owners_with_the_same_epoch_number_are_distinguished(open_on: Open, redis_server: RedisServer) -> None:
    """After a failover lost a claim, two owners have the same number. Only the one whose claim is stored can write."""
    open_on("one").close()
    replica = redis_server.client().dump(STATE)  # the state of a replica that receives no more updates
    second = open_on("two")
    put(second, b"second")
    redis_server.client().restore(STATE, 0, replica, replace=True)
    third = open_on("three")
    put(third, b"third")
    number = third._owner.epoch.partition(b":")[0]
    assert second._owner.epoch.partition(b":")[0] == number
    with pytest.raises(StoreFailed, match="owns this shard now"):
        put(second, b"never")
    with pytest.raises(StoreFailed, match="owns this shard now"):
        second._owner.hold()
    put(third, b"more")
    assert b"never" not in rows(third)


def test_commit_number_used_by_another_batch_is_not_confirmed(open_on: Open) -> None:
    """The outcome of the first batch is unknown, because its reply never arrived."""
    store = open_on("one")
    put(store, b"unsure")
    store._owner.commit -= 1  # as if the reply was lost for good
    with pytest.raises(StoreFailed, match="is not the one that was sent"):
        put(store, b"next")
    assert rows(store) == [b"unsure"]


def test_owner_releases_the_shard_when_a_failover_lost_its_commits(open_on: Open, redis_server: RedisServer) -> None:
    """The next owner does not wait for the minute that is left of the lease."""
    store = open_on("one")
    put(store, b"kept")
    put(store, b"lost")
    redis_server.client().hincrby(STATE, "commit", -1)
    with pytest.raises(StoreFailed, match="a failover has lost"):
        put(store, b"never")
    store.close()
    put(open_on("two"), b"next")


def test_prefetched_rows_are_discarded_after_the_first_write(open_on: Open) -> None:
    """An opening store reads many rows in one request. They show the store as of the claim."""
    store = open_on("one")
    put(store, b"a")
    put(store, b"b")
    store.close()
    again = open_on("two")
    meta = again.meta
    assert rows(again) == [b"a", b"b"]
    assert again.get_many(meta, [b"row/b", b"row/c"]) == [b"value", None]
    assert again.scan_items(meta, b"row/a", b"row/b", 9) == [(b"row/a", b"value")]
    assert again.scan(meta, b"row/", b"row0", 1) == [b"row/a"]
    put(again, b"c")
    assert rows(again) == [b"a", b"b", b"c"]
    assert again.get(meta, b"row/c") == b"value"


def put_message(store: RedisStore, queue: int) -> bytes:
    """Write one message row to a queue, and return its key."""
    batch, key = store.new_batch(), queue_prefix(1, queue) + bytes(16)
    batch.put(key, b"body", store.m.handle)
    store.write(batch)
    return key


def snapshot_of_cleared_queue(store: RedisStore, queue: int) -> RedisSnapshot:
    """Take a snapshot of a queue, and then clear the queue."""
    lower = queue_prefix(1, queue)
    put_message(store, queue)
    snapshot, batch = store.snapshot(lower, after(lower), "m"), store.new_batch()
    batch.delete_range(lower, after(lower), store.m.handle)
    store.write(batch)
    return snapshot


def expire_lease(store: RedisStore, redis_server: RedisServer) -> None:
    """End the lease of an owner as if its process was paused."""
    store._owner.lease._ended.set()
    store._owner.lease._sent -= LEASE_MS
    redis_server.client().hset(STATE, "until_ms", 0)


def test_paused_owner_releases_only_its_own_snapshots(open_on: Open, redis_server: RedisServer) -> None:
    """Closing its snapshot leaves the rows that the next owner keeps for its own snapshots."""
    first = open_on("one")
    snapshots = [snapshot_of_cleared_queue(first, 1)]
    expire_lease(first, redis_server)
    second = open_on("two")
    snapshots.append(snapshot_of_cleared_queue(second, 2))
    snapshots[0].close()
    lower = queue_prefix(1, 2)
    assert snapshots[1].keys("m", lower, 9) == [lower + bytes(16)]
    snapshots[1].close()
    assert redis_server.client().keys("*kept*") == []


def test_snapshot_of_a_paused_owner_cannot_be_read(open_on: Open, redis_server: RedisServer) -> None:
    """The next owner may have changed rows without keeping the old versions for it."""
    first = open_on("one")
    key = put_message(first, 1)
    snapshot = first.snapshot(key[:8], after(key[:8]), "m")
    assert snapshot.get("m", key) == b"body"
    expire_lease(first, redis_server)
    second = open_on("two")
    batch = second.new_batch()
    batch.put(key, b"changed", second.m.handle)
    second.write(batch)
    with pytest.raises(StoreFailed, match="owns this shard now"):
        snapshot.get("m", key)


def test_read_fails_if_the_lease_ends_during_it(
    open_on: Open, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that is valid before the request proves nothing about the reply."""
    first = open_on("one")
    key = put_message(first, 1)
    real = first._reader.get_many

    def paused(family: str, keys: list[bytes]) -> list[bytes | None]:
        expire_lease(first, redis_server)
        open_on("two")
        return real(family, keys)

    monkeypatch.setattr(first._reader, "get_many", paused)
    with pytest.raises(StoreFailed, match="owns this shard now"):
        first.get(first.m, key)


def fill(store: RedisStore, queue: bytes) -> None:
    """Put five messages into a queue."""
    batch = store.new_batch()
    for number in range(5):
        batch.put(queue + bytes([number]) * 16, b"body", store.m.handle)
    store.write(batch)


def clear(store: RedisStore, queue: bytes) -> None:
    """Delete a queue's messages."""
    batch = store.new_batch()
    batch.delete_range(queue, after(queue), store.m.handle)
    store.write(batch)


def expire_stored_lease(redis_server: RedisServer) -> None:
    """End the stored lease of the current owner, which does not notice."""
    redis_server.client().hset(STATE, "until_ms", "1")


def test_snapshot_of_a_former_owner_fails_and_deletes_nothing(open_on: Open, redis_server: RedisServer) -> None:
    """It returns no partial rows, and closing it leaves what the new owner keeps for its own snapshots."""
    one, other = queue_prefix(1, 1), queue_prefix(1, 2)
    first = open_on("one")
    fill(first, one)
    fill(first, other)
    old = first.snapshot(one, after(one), "m")
    clear(first, one)
    assert len(list(old.walk("m", one))) == 5
    expire_stored_lease(redis_server)
    second = open_on("two")
    new = second.snapshot(other, after(other), "m")
    clear(second, other)
    with pytest.raises(StoreFailed, match="owns this shard now"):
        list(old.walk("m", one))
    old.close()
    assert len(list(new.walk("m", other))) == 5
    new.close()
    assert redis_server.client().keys("*kept*") == []


def test_reading_an_emptied_store_is_an_error(open_on: Open, redis_server: RedisServer) -> None:
    """A caller must not be told that its message does not exist."""
    store = open_on("one")
    put(store, b"row")
    told: list[StoreFailed] = []
    store.ownership.watch(told.append)
    redis_server.client().flushall()
    with pytest.raises(StoreFailed, match="the store was emptied"):
        store.get(store.meta, b"row/row")
    with pytest.raises(StoreFailed, match="the store was emptied"):
        rows(store)
    assert told


def test_late_watchers_learn_of_an_earlier_failure(open_on: Open, redis_server: RedisServer) -> None:
    """A failure found before the first ``watch`` is reported to it."""
    store = open_on("one")
    redis_server.client().flushall()
    with pytest.raises(StoreFailed):
        store.get(store.m, bytes(24))  # rows of the meta family are prefetched
    told: list[StoreFailed] = []
    store.ownership.watch(told.append)
    assert told


def test_lease_written_by_a_fast_clock_ends_in_time(open_on: Open, redis_server: RedisServer) -> None:
    """Others wait for at most one lease after they first ask."""
    open_on("one")
    redis_server.client().hincrby(STATE, "until_ms", 3_600_000)
    for _ in range(2):
        with pytest.raises(ShardHeld) as held:
            open_on("two")
        assert held.value.left_ms <= LEASE_MS


def test_owner_survives_dead_connections(open_on: Open, redis_server: RedisServer) -> None:
    """It notices in time and renews its lease on new connections."""
    proxy = ResettingProxy(redis_server.port, 0.0, seed=1)
    try:
        store = open_on("one", proxy, lease_ms=900)
        put(store, b"row")
        owner = store._owner
        proxy.stall()
        last = owner.lease._sent

        def renewed() -> bool:
            with pytest.raises(ShardHeld):
                open_on("two")
            return owner.lease._sent > last

        eventually(renewed)
        store.close()
    finally:
        proxy.close()


def test_all_connections_follow_a_failover(open_on: Open, redis_server: RedisServer, tmp_path: Path) -> None:
    """Connections that only read follow too, although the old primary still answers them."""
    queue = queue_prefix(1, 1)
    follower = f"replicaof 127.0.0.1 {redis_server.port}"
    redis_server.client().config_set("repl-diskless-sync-delay", 0)
    replica = RedisServer(tmp_path / "replica", follower)
    proxy = ResettingProxy(redis_server.port, 0.0, seed=1)
    try:
        store = open_on("one", proxy)
        assert list(store.snapshot(queue, after(queue), "m").walk("m", queue)) == []
        offset = redis_server.client().info("replication")["master_repl_offset"]
        eventually(lambda: replica.client().info("replication")["slave_repl_offset"] >= offset)
        proxy.redirect(replica.port)
        replica.client().replicaof("NO", "ONE")
        redis_server.client().replicaof("127.0.0.1", 1)
        fill(store, queue)
        assert len(list(store.snapshot(queue, after(queue), "m").walk("m", queue))) == 5
        store.close()
    finally:
        redis_server.client().replicaof("NO", "ONE")
        proxy.close()
        replica.kill()


def test_deleting_a_tenant_removes_all_its_queue_prefixes(open_on: Open, redis_server: RedisServer) -> None:
    """One batch deletes the prefixes of all its queues, and no others."""
    store = open_on("one")
    for tenant, queue in ((1, 1), (1, 2), (2, 1)):
        fill(store, queue_prefix(tenant, queue))
    batch, gone = store.new_batch(), tenant_prefix(1)
    for family in ("m", "vi", "le", "li", "gr", "ik", "re", "ex"):
        batch.delete_range(gone, after(gone), store.family(family).handle)
    store.write(batch)
    assert redis_server.client().zrange("t:{fenced:0}:p", 0, -1) == [queue_prefix(2, 1) + b"::2.1"]


def test_unknown_redis_database_is_a_store_failure(open_on: Open, redis_server: RedisServer) -> None:
    """The error repeats what Redis says."""

    class At:
        url = f"{redis_server.url}/77"

    with pytest.raises(StoreFailed, match="DB index is out of range"):
        open_on("one", At())
