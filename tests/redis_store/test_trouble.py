"""66: connections that break, a Redis that hangs or is killed: nothing confirmed is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from tenantq.engine.settings import ShardSettings
from tenantq.errors import StoreFailed
from tests.redis_servers import OnRedis, RedisServer, ResettingProxy, eventually
from tests.shards import Q, T, message
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a durable server that tests of this file stop and kill."""
    server = RedisServer(tmp_path_factory.mktemp("own"), "appendonly yes", "appendfsync always")
    yield server
    server.kill()


def shard_on(server: object, path: Path, **settings: object) -> Shard:
    """Return a shard on a server, not opened yet."""
    opener = OnRedis(server, path, "fsync", **settings)
    return Shard(path, open_store=opener, settings=ShardSettings(disk_reserve_bytes=0))


async def work(shard: Shard, rounds: int) -> tuple[set[str], set[str]]:
    """Add, poll and ack; return what was confirmed as added and as acked, by body."""
    added, acked = set[str](), set[str]()
    for number in range(rounds):
        bodies = [f"{number}-{n}" for n in range(3)]
        await shard.add(T, Q, [message(body) for body in bodies])
        added.update(bodies)
        got = await shard.poll(T, Q, max=2, lease_ms=600_000)
        assert all(one.attempt == 1 for one in got)
        assert all(one.ok for one in await shard.ack(T, Q, [one.receipt for one in got]))
        bodies = [one.body.decode() for one in got]
        assert not acked.intersection(bodies)
        acked.update(bodies)
    return added, acked


async def rest_of(shard: Shard) -> list[str]:
    """Take out everything that is left."""
    found: list[str] = []
    while got := await shard.poll(T, Q, max=100):
        await shard.ack(T, Q, [one.receipt for one in got])
        found += [one.body.decode() for one in got]
    return found


async def test_66_with_a_reset_every_twenty_pieces_everything_is_done_once(
    own_server: RedisServer, tmp_path: Path
) -> None:
    """In either direction, half of a piece passed on at times: the caller notices nothing."""
    proxy = ResettingProxy(own_server.port, 0.05, seed=3)
    try:
        async with shard_on(proxy, tmp_path) as shard:
            added, acked = await work(shard, 50)
            left = await rest_of(shard)
            assert sorted(left) == sorted(added - acked)
            assert shard.failure is None
            assert shard.reads.stats(T, Q).delivered_total == len(added)
    finally:
        proxy.close()
    assert proxy.resets > 10


async def test_66_a_redis_that_hangs_for_a_while_is_waited_for(own_server: RedisServer, tmp_path: Path) -> None:
    """Its clients time out, connect anew and ask again; when it goes on, so do they."""
    async with shard_on(own_server, tmp_path, patience_ms=20_000, lease_ms=500) as shard:
        added, acked = await work(shard, 5)
        own_server.signal(signal.SIGSTOP)
        threading.Timer(1.5, own_server.signal, [signal.SIGCONT]).start()
        more, finished = await work_named(shard, "after")
        assert sorted(await rest_of(shard)) == sorted((added | more) - acked - finished)


async def work_named(shard: Shard, name: str) -> tuple[set[str], set[str]]:
    """Do one more round of work, with bodies of its own."""
    bodies = {f"{name}-{n}" for n in range(3)}
    await shard.add(T, Q, [message(body) for body in sorted(bodies)])
    got = await shard.poll(T, Q, max=1, lease_ms=600_000)
    await shard.ack(T, Q, [one.receipt for one in got])
    return bodies, {one.body.decode() for one in got}


async def test_66_a_redis_that_is_killed_comes_back_with_everything(own_server: RedisServer, tmp_path: Path) -> None:
    """It is on its disk; the shard goes on by itself when it is back."""
    async with shard_on(own_server, tmp_path, patience_ms=20_000) as shard:
        added, acked = await work(shard, 5)
        own_server.kill()
        threading.Timer(0.5, own_server.start).start()
        more, finished = await work_named(shard, "after")
        assert sorted(await rest_of(shard)) == sorted((added | more) - acked - finished)


async def test_66_when_patience_ends_the_shard_stops_and_the_next_start_has_everything(
    own_server: RedisServer, tmp_path: Path
) -> None:
    """Nobody whose work was under way is told that it is confirmed."""
    shard = shard_on(own_server, tmp_path, patience_ms=500)
    await shard.open()
    added, acked = await work(shard, 5)
    own_server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreFailed, match="tried for"):
            await shard.add(T, Q, [message("unsure", key="unsure")])
        assert shard.loop.stopped.is_set()
        await asyncio.wait_for(shard.close(), 20)
    finally:
        own_server.signal(signal.SIGCONT)
    async with shard_on(own_server, tmp_path) as again:
        await again.add(T, Q, [message("unsure", key="unsure")])  # once, whether it had arrived or not
        assert sorted(await rest_of(again)) == sorted((added - acked) | {"unsure"})


@pytest.mark.parametrize("reads", [False, True])
async def test_a_store_that_is_away_stops_a_shard_that_writes_nothing(
    own_server: RedisServer, tmp_path: Path, *, reads: bool
) -> None:
    """Whether nobody asks for anything or somebody reads; before that it is not ready any more."""
    shard = shard_on(own_server, tmp_path, patience_ms=500, lease_ms=500)
    await shard.open()
    (added,) = await shard.add(T, Q, [message("a")])
    own_server.signal(signal.SIGSTOP)
    try:
        if reads:
            with pytest.raises(StoreFailed):
                await shard.reads.get(T, Q, added.id)
        await asyncio.wait_for(shard.loop.stopped.wait(), 20)
        assert shard.loop.is_doubtful
        await shard.close()
    finally:
        own_server.signal(signal.SIGCONT)


async def test_who_closes_does_not_wait_for_a_store_that_is_away(own_server: RedisServer, tmp_path: Path) -> None:
    """Its lease ends by itself."""
    store = await OnRedis(own_server, tmp_path, "fsync", patience_ms=600_000, lease_ms=500)("0")
    own_server.signal(signal.SIGSTOP)
    try:
        await asyncio.to_thread(eventually, lambda: store.is_doubtful)
        await asyncio.wait_for(asyncio.to_thread(store.close), 30)
    finally:
        own_server.signal(signal.SIGCONT)


async def test_where_no_redis_is_a_start_says_so(tmp_path: Path) -> None:
    """With the address, and without a traceback."""

    class Nowhere:
        url = "redis://user:s3cret-word@127.0.0.1:1"

    with pytest.raises(StoreFailed, match=r"store redis://127\.0\.0\.1:1: .*refused") as failed:
        await shard_on(Nowhere(), tmp_path, patience_ms=300).open()
    assert "s3cret" not in str(failed.value)
