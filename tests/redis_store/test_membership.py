"""Members of a cluster share the shards: they join, drain, die and come back, and every shard has one owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tenantq.cluster.membership import Membership
from tenantq.domain.cluster_view import Member
from tenantq.errors import StoreLocked
from tenantq.runtime.clock import SystemClock
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.registry import RedisRegistry
from tenantq.store.redis.settings import RedisSettings
from tests.redis_servers import RedisServer

SHARDS = 12


class Locks:
    """The ownership of all shards, as the store keeps it."""

    def __init__(self) -> None:
        self.owner: dict[int, str] = {}
        self.epoch: dict[int, int] = {}
        self.handovers: list[tuple[int, str, str]] = []


class Holder:
    """Owns shards by the shared locks."""

    def __init__(self, id: str, locks: Locks) -> None:
        self.id, self.locks = id, locks

    def owned(self) -> dict[int, int]:
        return {shard: self.locks.epoch[shard] for shard, id in self.locks.owner.items() if id == self.id}

    def loads(self) -> dict[int, float]:
        return dict.fromkeys(self.owned(), 0.1)

    async def acquire(self, shard: int) -> None:
        await asyncio.sleep(0)
        if self.locks.owner.get(shard, self.id) != self.id:
            raise StoreLocked("owned by another member")
        self.locks.owner[shard] = self.id
        self.locks.epoch[shard] = self.locks.epoch.get(shard, 0) + 1

    async def release(self, shard: int, successor: Member | None) -> None:
        assert successor is not None
        await asyncio.sleep(0)
        self.locks.handovers.append((shard, self.id, successor.id))
        del self.locks.owner[shard]


class Members:
    """Starts members of one cluster."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.locks = Locks()
        self.joined: list[Membership] = []

    async def join(self, id: str) -> Membership:
        registry = RedisRegistry(parse_address(self.url), RedisSettings(name="fleet"))
        registry.create(SHARDS, ())
        found = Membership(registry, Holder(id, self.locks), SystemClock(), Member(id=id, peer_address=f"{id}:1"))
        await found.start()
        self.joined.append(found)
        return found

    def count(self, id: str) -> int:
        return list(self.locks.owner.values()).count(id)


@pytest.fixture
async def cluster(durable_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Members]:
    """Start members of one cluster."""
    monkeypatch.setattr("tenantq.cluster.membership.JOIN_DELAY_MS", 300)
    monkeypatch.setattr("tenantq.cluster.membership.COOLDOWN_MS", 50)
    members = Members(durable_server.url)
    yield members
    for one in members.joined:
        await one.close()
    durable_server.client().flushall()


async def until(condition: Callable[[], object]) -> None:
    """Wait for other members."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # members answer to the store, not to this test
            await asyncio.sleep(0.02)


async def test_members_share_the_shards_evenly(cluster: Members) -> None:
    """The first takes all; a second gets its half; both see the same owners."""
    a = await cluster.join("a")
    await until(lambda: cluster.count("a") == SHARDS)
    b = await cluster.join("b")
    await until(lambda: cluster.count("b") == SHARDS // 2 and not a.view.moves and not b.view.moves)
    owners = {shard: owner.id if (owner := b.view.owner_of(shard)) else None for shard in range(SHARDS)}
    assert owners == cluster.locks.owner
    assert all(successor == "b" for _, _, successor in cluster.locks.handovers)


async def test_a_draining_member_hands_every_shard_over(cluster: Members) -> None:
    """Afterwards it owns nothing, and the other one everything."""
    a, _ = await cluster.join("a"), await cluster.join("b")
    await until(lambda: cluster.count("a") and cluster.count("b") and not a.view.moves)
    assert await a.drain(20_000)
    await until(lambda: cluster.count("b") == SHARDS)
    await a.close()


async def test_shards_of_a_dead_member_go_to_the_others(cluster: Members) -> None:
    """Nobody releases them; the store's lease does."""
    a, b = await cluster.join("a"), await cluster.join("b")
    await until(lambda: cluster.count("b") > 0 and not a.view.moves)
    assert a._task is not None
    a._task.cancel()
    for shard in [shard for shard, id in cluster.locks.owner.items() if id == "a"]:
        del cluster.locks.owner[shard]  # its leases have ended
    await until(lambda: cluster.count("b") == SHARDS and "a" not in b.view.members)


async def test_the_last_member_does_not_wait_for_a_successor(cluster: Members) -> None:
    """It keeps its shards until it closes."""
    a = await cluster.join("a")
    await until(lambda: cluster.count("a") == SHARDS)
    assert not await a.drain(60_000)


async def test_members_keep_their_shards_while_the_registry_is_silent(
    cluster: Members, durable_server: RedisServer
) -> None:
    """Nobody is declared dead because of an outage, and heartbeats continue afterwards."""
    a, b = await cluster.join("a"), await cluster.join("b")
    await until(lambda: cluster.count("b") > 0 and not a.view.moves and not b.view.moves)
    before = dict(cluster.locks.owner)
    durable_server.client().execute_command("CLIENT", "PAUSE", 4_000, "ALL")
    await until(lambda: a.problem and b.problem)
    await until(lambda: not a.problem and not b.problem)
    assert cluster.locks.owner == before
