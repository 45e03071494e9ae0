"""What an owner may do no more once another may have taken its place: write, confirm, read, tidy up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import StoreFailed
from tenantq.store.keys import after, queue_prefix, tenant_prefix
from tenantq.store.redis.ownership import ShardHeld
from tenantq.store.redis.store import RedisStore
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
    """Open stores of one shard, each with a directory of its own."""
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
    """Return the rows that were written so."""
    return [key.removeprefix(b"row/") for key in store.scan(store.meta, b"row/", b"row0", 100)]


def test_two_owners_are_told_apart_though_a_failover_lost_the_claim_of_one(
    open_on: Open, redis_server: RedisServer
) -> None:
    """Both were given the same number, by two servers: only the one whose claim is stored goes on."""
    open_on("one").close()
    replica = redis_server.client().dump(STATE)  # what a replica has that hears nothing from now on
    second = open_on("two")
    put(second, b"second")
    redis_server.client().restore(STATE, 0, replica, replace=True)
    third = open_on("three")
    put(third, b"third")
    number = third._own().epoch.partition(b":")[0]
    assert second._own().epoch.partition(b":")[0] == number
    with pytest.raises(StoreFailed, match="owns this shard now"):
        put(second, b"never")
    with pytest.raises(StoreFailed, match="owns this shard now"):
        second._own().hold()
    put(third, b"more")
    assert b"never" not in rows(third)


def test_a_commit_whose_number_another_batch_has_is_not_confirmed(open_on: Open) -> None:
    """What became of the other was never learnt: it was sent, and no answer came while there was patience."""
    store = open_on("one")
    put(store, b"unsure")
    store._own().commit -= 1  # as where the answer was lost for good
    with pytest.raises(StoreFailed, match="is not the one that was sent"):
        put(store, b"next")
    assert rows(store) == [b"unsure"]


def test_an_owner_whose_commits_a_failover_lost_gives_the_shard_up_at_once(
    open_on: Open, redis_server: RedisServer
) -> None:
    """Its lease has a minute left, and the next owner does not wait for it."""
    store = open_on("one")
    put(store, b"kept")
    put(store, b"lost")
    redis_server.client().hincrby(STATE, "commit", -1)
    with pytest.raises(StoreFailed, match="a failover has lost"):
        put(store, b"never")
    store.close()
    put(open_on("two"), b"next")


def test_rows_that_were_read_ahead_are_read_again_after_the_first_change(open_on: Open) -> None:
    """An opening store reads many rows in one request. They are as of the claim."""
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


def row_of(store: RedisStore, queue: int) -> bytes:
    """Write one message's row into a queue, and return its key."""
    batch, key = store.new_batch(), queue_prefix(1, queue) + bytes(16)
    batch.put(key, b"body", store.m.handle)
    store.write(batch)
    return key


def cleared_moment(store: RedisStore, queue: int) -> RedisSnapshot:
    """Take a moment of a queue, and delete the queue."""
    lower = queue_prefix(1, queue)
    row_of(store, queue)
    snapshot, batch = store.snapshot(lower, after(lower), "m"), store.new_batch()
    batch.delete_range(lower, after(lower), store.m.handle)
    store.write(batch)
    return snapshot


def fall_silent(store: RedisStore, redis_server: RedisServer) -> None:
    """Let a lease end, as that of a process that is paused."""
    store._own()._ended.set()
    store._own()._sent -= LEASE_MS
    redis_server.client().hset(STATE, "until_ms", 0)


def test_what_an_owner_that_was_paused_lets_go_is_its_own(open_on: Open, redis_server: RedisServer) -> None:
    """Its snapshots end, and what the next owner keeps for its own stays."""
    first = open_on("one")
    snapshots = [cleared_moment(first, 1)]
    fall_silent(first, redis_server)
    second = open_on("two")
    snapshots.append(cleared_moment(second, 2))
    snapshots[0].close()
    lower = queue_prefix(1, 2)
    assert snapshots[1].keys("m", lower, 9) == [lower + bytes(16)]
    snapshots[1].close()
    assert redis_server.client().keys("*kept*") == []


def test_a_snapshot_of_an_owner_that_was_paused_is_read_no_more(open_on: Open, redis_server: RedisServer) -> None:
    """What it shows may be what the next owner has changed, of which nothing was kept for it."""
    first = open_on("one")
    key = row_of(first, 1)
    snapshot = first.snapshot(key[:8], after(key[:8]), "m")
    assert snapshot.get("m", key) == b"body"
    fall_silent(first, redis_server)
    second = open_on("two")
    batch = second.new_batch()
    batch.put(key, b"changed", second.m.handle)
    second.write(batch)
    with pytest.raises(StoreFailed, match="owns this shard now"):
        snapshot.get("m", key)


def test_a_read_during_which_the_lease_ended_does_not_count(
    open_on: Open, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However sure it was before it asked."""
    first = open_on("one")
    key = row_of(first, 1)
    real = first._reader.get_many

    def paused(family: str, keys: list[bytes]) -> list[bytes | None]:
        fall_silent(first, redis_server)
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


def let_go_of_the_shard(redis_server: RedisServer) -> None:
    """End the lease of whoever has it, as if it had been silent for long."""
    redis_server.client().hset(STATE, "until_ms", "1")


def test_a_moment_of_an_owner_that_was_taken_over_shows_nothing_and_deletes_nothing(
    open_on: Open, redis_server: RedisServer
) -> None:
    """Not fewer rows than there were, and nothing of what the new owner keeps for its own readers."""
    one, other = queue_prefix(1, 1), queue_prefix(1, 2)
    first = open_on("one")
    fill(first, one)
    fill(first, other)
    old = first.snapshot(one, after(one), "m")
    clear(first, one)
    assert len(list(old.walk("m", one))) == 5
    let_go_of_the_shard(redis_server)
    second = open_on("two")
    new = second.snapshot(other, after(other), "m")
    clear(second, other)
    with pytest.raises(StoreFailed, match="owns this shard now"):
        list(old.walk("m", one))
    old.close()
    assert len(list(new.walk("m", other))) == 5
    new.close()
    assert redis_server.client().keys("*kept*") == []


def test_what_is_read_of_a_store_that_was_emptied_is_not_nothing(open_on: Open, redis_server: RedisServer) -> None:
    """A caller is not told that its message does not exist."""
    store = open_on("one")
    put(store, b"row")
    told: list[StoreFailed] = []
    store.watch(told.append)
    redis_server.client().flushall()
    with pytest.raises(StoreFailed, match="the store was emptied"):
        store.get(store.meta, b"row/row")
    with pytest.raises(StoreFailed, match="the store was emptied"):
        rows(store)
    assert told


def test_a_loss_that_was_noticed_before_anybody_watched_is_told(open_on: Open, redis_server: RedisServer) -> None:
    """However early it was."""
    store = open_on("one")
    redis_server.client().flushall()
    with pytest.raises(StoreFailed):
        store.get(store.m, bytes(24))  # rows of the meta family were read ahead
    told: list[StoreFailed] = []
    store.watch(told.append)
    assert told


def test_a_lease_that_was_written_by_a_clock_ahead_ends_all_the_same(open_on: Open, redis_server: RedisServer) -> None:
    """At the latest one lease after somebody has asked."""
    open_on("one")
    redis_server.client().hincrby(STATE, "until_ms", 3_600_000)
    for _ in range(2):
        with pytest.raises(ShardHeld) as held:
            open_on("two")
        assert held.value.left_ms <= LEASE_MS


def test_connections_that_are_dead_do_not_cost_the_shard(open_on: Open, redis_server: RedisServer) -> None:
    """The owner notices in time, and new connections renew its lease."""
    proxy = ResettingProxy(redis_server.port, 0.0, seed=1)
    try:
        store = open_on("one", proxy, lease_ms=900)
        put(store, b"row")
        owner = store._own()
        proxy.fall_silent()
        last = owner._sent

        def renewed() -> bool:
            with pytest.raises(ShardHeld):
                open_on("two")
            return owner._sent > last

        eventually(renewed)
        store.close()
    finally:
        proxy.close()


def test_after_a_failover_every_connection_is_to_the_new_primary(
    open_on: Open, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Also those that only read, though the old one still answers them."""
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
        proxy.lead_to(replica.port)
        replica.client().replicaof("NO", "ONE")
        redis_server.client().replicaof("127.0.0.1", 1)
        fill(store, queue)
        assert len(list(store.snapshot(queue, after(queue), "m").walk("m", queue))) == 5
        store.close()
    finally:
        redis_server.client().replicaof("NO", "ONE")
        proxy.close()
        replica.kill()


def test_of_a_tenant_that_was_deleted_no_prefix_is_left(open_on: Open, redis_server: RedisServer) -> None:
    """Its queues go all at once."""
    store = open_on("one")
    for tenant, queue in ((1, 1), (1, 2), (2, 1)):
        fill(store, queue_prefix(tenant, queue))
    batch, gone = store.new_batch(), tenant_prefix(1)
    for family in ("m", "vi", "le", "li", "gr", "ik", "re", "ex"):
        batch.delete_range(gone, after(gone), store.family(family).handle)
    store.write(batch)
    assert redis_server.client().zrange("t:{fenced:0}:p", 0, -1) == [queue_prefix(2, 1) + b"::2.1"]


def test_a_database_that_there_is_not_is_a_failure_of_the_store(open_on: Open, redis_server: RedisServer) -> None:
    """With what Redis says to it."""

    class At:
        url = f"{redis_server.url}/77"

    with pytest.raises(StoreFailed, match="DB index is out of range"):
        open_on("one", At())
