"""What an owner may do no more once another may have taken its place: write, confirm, read, tidy up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import StoreFailed
from tenantq.store.redis.store import RedisStore
from tests.redis_servers import OnRedis, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
