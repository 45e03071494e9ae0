"""Behaviour 66: nothing confirmed is lost or done twice when connections break, or Redis hangs or is killed."""

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
    """Run a durable server that the tests of this file stop and kill."""
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


async def drain(shard: Shard) -> list[str]:
    """Return the bodies of all remaining messages, and ack them."""
    found: list[str] = []
    while got := await shard.poll(T, Q, max=100):
        await shard.ack(T, Q, [one.receipt for one in got])
        found += [one.body.decode() for one in got]
    return found


async def test_66_random_connection_resets_neither_lose_nor_repeat_work(
    own_server: RedisServer, tmp_path: Path
) -> None:
    """One in twenty chunks is dropped, some half sent, in either direction; the caller sees no error."""
    proxy = ResettingProxy(own_server.port, 0.05, seed=3)
    try:
        async with shard_on(proxy, tmp_path) as shard:
            added, acked = await work(shard, 50)
            left = await drain(shard)
            assert sorted(left) == sorted(added - acked)
            assert shard.failure is None
            assert shard.reads.stats(T, Q).delivered_total == len(added)
    finally:
        proxy.close()
    assert proxy.resets > 10


async def test_66_calls_survive_a_redis_that_hangs_for_a_while(own_server: RedisServer, tmp_path: Path) -> None:
    """Clients time out, reconnect and retry until it responds."""
    async with shard_on(own_server, tmp_path, patience_ms=20_000, lease_ms=500) as shard:
        added, acked = await work(shard, 5)
        own_server.signal(signal.SIGSTOP)
        threading.Timer(1.5, own_server.signal, [signal.SIGCONT]).start()
        more, finished = await work_named(shard, "after")
        assert sorted(await drain(shard)) == sorted((added | more) - acked - finished)


async def work_named(shard: Shard, name: str) -> tuple[set[str], set[str]]:
    """Do one more round of work, with bodies of this name."""
    bodies = {f"{name}-{n}" for n in range(3)}
    await shard.add(T, Q, [message(body) for body in sorted(bodies)])
    got = await shard.poll(T, Q, max=1, lease_ms=600_000)
    await shard.ack(T, Q, [one.receipt for one in got])
    return bodies, {one.body.decode() for one in got}


async def test_66_killed_redis_recovers_everything_confirmed(own_server: RedisServer, tmp_path: Path) -> None:
    """The data is on its disk, and the shard continues when it is back."""
    async with shard_on(own_server, tmp_path, patience_ms=20_000) as shard:
        added, acked = await work(shard, 5)
        own_server.kill()
        threading.Timer(0.5, own_server.start).start()
        more, finished = await work_named(shard, "after")
        assert sorted(await drain(shard)) == sorted((added | more) - acked - finished)


async def test_66_shard_stops_when_redis_stays_silent_for_too_long(own_server: RedisServer, tmp_path: Path) -> None:
    """No call in progress is confirmed, and the next start finds everything confirmed before."""
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
        await again.add(T, Q, [message("unsure", key="unsure")])  # added once, whether or not the first attempt arrived
        assert sorted(await drain(again)) == sorted((added - acked) | {"unsure"})


@pytest.mark.parametrize("reads", [False, True])
async def test_unreachable_store_stops_an_idle_or_reading_shard(
    own_server: RedisServer, tmp_path: Path, *, reads: bool
) -> None:
    """The shard reports that it is not ready before it stops."""
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


async def test_close_does_not_wait_for_an_unreachable_store(own_server: RedisServer, tmp_path: Path) -> None:
    """The lease in the store ends without a release."""
    store = await OnRedis(own_server, tmp_path, "fsync", patience_ms=600_000, lease_ms=500)("0")
    own_server.signal(signal.SIGSTOP)
    try:
        await asyncio.to_thread(eventually, lambda: store.ownership.is_doubtful)
        await asyncio.wait_for(asyncio.to_thread(store.close), 30)
    finally:
        own_server.signal(signal.SIGCONT)


async def test_start_without_redis_names_the_address(tmp_path: Path) -> None:
    """The error hides the credentials of the URL."""

    class Nowhere:
        url = "redis://user:s3cret-word@127.0.0.1:1"

    with pytest.raises(StoreFailed, match=r"store redis://127\.0\.0\.1:1: .*refused") as failed:
        await shard_on(Nowhere(), tmp_path, patience_ms=300).open()
    assert "s3cret" not in str(failed.value)
