"""What an owner may do no more once another may have taken its place: write, confirm, read, tidy up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import StoreFailed
from tenantq.store.keys import after, queue_prefix
from tenantq.store.redis.store import RedisStore
from tests.redis_servers import OnRedis, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tenantq.store.redis.moment import RedisMoment

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
    with pytest.raises(StoreFailed, match="owns this shard by now"):
        put(second, b"never")
    with pytest.raises(StoreFailed, match="owns this shard by now"):
        second._own().hold()
    put(third, b"more")
    assert b"never" not in rows(third)


def test_a_commit_whose_number_another_batch_has_is_not_confirmed(open_on: Open) -> None:
    """What became of the other was never learnt: it was sent, and no answer came while there was patience."""
    store = open_on("one")
    put(store, b"unsure")
    store._own().commit -= 1  # as where the answer was lost for good
    with pytest.raises(StoreFailed, match="another than the one that was sent"):
        put(store, b"next")
    assert rows(store) == [b"unsure"]


def row_of(store: RedisStore, queue: int) -> bytes:
    """Write one message's row into a queue, and return its key."""
    batch, key = store.new_batch(), queue_prefix(1, queue) + bytes(16)
    batch.put(key, b"body", store.m.handle)
    store.write(batch)
    return key


def cleared_moment(store: RedisStore, queue: int) -> RedisMoment:
    """Take a moment of a queue, and delete the queue."""
    lower = queue_prefix(1, queue)
    row_of(store, queue)
    moment, batch = store.moment(lower, after(lower), "m"), store.new_batch()
    batch.delete_range(lower, after(lower), store.m.handle)
    store.write(batch)
    return moment


def fall_silent(store: RedisStore, redis_server: RedisServer) -> None:
    """Let a lease end, as that of a process that is paused."""
    store._own()._ended.set()
    store._own()._sent -= LEASE_MS
    redis_server.client().hset(STATE, "until_ms", 0)


def test_what_an_owner_that_was_paused_lets_go_is_its_own(open_on: Open, redis_server: RedisServer) -> None:
    """Its snapshots end, and what the next owner keeps for its own stays."""
    first = open_on("one")
    moments = [cleared_moment(first, 1)]
    fall_silent(first, redis_server)
    second = open_on("two")
    moments.append(cleared_moment(second, 2))
    moments[0].let_go()
    lower = queue_prefix(1, 2)
    assert moments[1].keys("m", lower, 9) == [lower + bytes(16)]
    moments[1].let_go()
    assert redis_server.client().keys("*kept*") == []


def test_a_snapshot_of_an_owner_that_was_paused_is_read_no_more(open_on: Open, redis_server: RedisServer) -> None:
    """What it shows may be what the next owner has changed, of which nothing was kept for it."""
    first = open_on("one")
    key = row_of(first, 1)
    moment = first.moment(key[:8], after(key[:8]), "m")
    assert moment.get("m", key) == b"body"
    fall_silent(first, redis_server)
    second = open_on("two")
    batch = second.new_batch()
    batch.put(key, b"changed", second.m.handle)
    second.write(batch)
    with pytest.raises(StoreFailed, match="owns this shard by now"):
        moment.get("m", key)


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
    with pytest.raises(StoreFailed, match="owns this shard by now"):
        first.get(first.m, key)
