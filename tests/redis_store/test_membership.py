"""Members of a cluster share the shards: they join, drain, die and come back, and every shard has one owner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from tenantq.cluster.membership import Membership
from tenantq.domain.cluster_view import Heartbeats, Member
from tenantq.errors import StoreFailed, StoreLocked
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
        self.may_release = asyncio.Event()
        self.may_release.set()
        self.releasing: set[int] = set()  # they serve no longer, and are not free yet
        self.is_prepared = True  # for what it acquires
        self.refused: set[int] = set()  # shards that others own
        self.cut_off: set[int] = set()  # shards whose store it cannot reach

    def owned(self) -> dict[int, int]:
        mine = (shard for shard, id in self.locks.owner.items() if id == self.id and shard not in self.releasing)
        return {shard: self.locks.epoch[shard] for shard in mine}

    def loads(self) -> dict[int, float]:
        return dict.fromkeys(self.owned(), 0.1)

    def waiting(self) -> set[int]:
        return self.refused if self.is_prepared else set()

    async def acquire(self, shard: int, is_assigned: Callable[[], bool]) -> None:
        await asyncio.sleep(0)
        if shard in self.cut_off:
            raise StoreFailed("the store does not answer")
        if self.locks.owner.get(shard, self.id) != self.id:
            self.refused.add(shard)
            raise StoreLocked("owned by another member")
        self.refused.discard(shard)
        self.locks.owner[shard] = self.id
        self.locks.epoch[shard] = self.locks.epoch.get(shard, 0) + 1

    async def release(self, shard: int, successor: Member | None) -> float:
        assert successor is not None
        refused_at = asyncio.get_running_loop().time()
        self.releasing.add(shard)
        await self.may_release.wait()
        self.releasing.remove(shard)
        self.locks.handovers.append((shard, self.id, successor.id))
        del self.locks.owner[shard]
        return refused_at


class NoLinks:
    """Notices that never arrive: heartbeats alone must suffice."""

    def look(self, members: Iterable[str]) -> None:
        pass

    def released(self, shard: int, successor: str) -> None:
        pass

    def owns(self, shard: int, epoch: int) -> None:
        pass


class Members:
    """Starts members of one cluster."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.locks = Locks()
        self.joined: list[Membership] = []
        self.holders: dict[str, Holder] = {}

    async def join(self, id: str) -> Membership:
        registry = RedisRegistry(parse_address(self.url), RedisSettings(name="fleet"))
        registry.create(SHARDS, ())
        member = Member(id=id, peer_address=f"{id}:1")
        self.holders[id] = Holder(id, self.locks)
        found = Membership(registry, self.holders[id], SystemClock(), member, NoLinks())
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
    """Wait until a condition on other members holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # members answer to the store, not to this test
            await asyncio.sleep(0.02)


async def test_members_share_the_shards_evenly(cluster: Members) -> None:
    """The first member takes all, a second gets half, and both see the same owners."""
    a = await cluster.join("a")
    await until(lambda: cluster.count("a") == SHARDS)
    b = await cluster.join("b")
    await until(lambda: cluster.count("b") == SHARDS // 2 and not a.view.moves and not b.view.moves)
    owners = {shard: owner.id if (owner := b.view.owner_of(shard)) else None for shard in range(SHARDS)}
    assert owners == cluster.locks.owner
    assert all(successor == "b" for _, _, successor in cluster.locks.handovers)


async def test_member_survives_a_primary_that_is_briefly_not_durable(
    cluster: Members, durable_server: RedisServer
) -> None:
    """This happens after a failover, before the new primary writes its log. Heartbeats and ownership continue."""
    a, b = await cluster.join("a"), await cluster.join("b")
    await until(lambda: cluster.count("b") and not a.view.moves)
    redis = durable_server.client()
    redis.config_set("appendonly", "no")
    redis.client_kill_filter(_type="normal")
    await until(lambda: "appendonly is no" in a.problem and "appendonly is no" in b.problem)
    redis.config_set("appendonly", "yes")
    await until(lambda: not a.problem and not b.problem)
    await until(lambda: len(a.view.members) == len(b.view.members) == 2)


async def test_heartbeats_continue_after_any_failure(cluster: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that owned shards without heartbeats would keep others from serving them."""
    a = await cluster.join("a")
    failed = threading.Event()

    def fail(*_: object) -> Heartbeats:
        failed.set()
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(a._registry, "heartbeat", fail)
        await until(lambda: failed.is_set() and a.problem == "a defect")
    await until(lambda: not a.problem and cluster.count("a") == SHARDS)


async def test_draining_member_hands_over_every_shard(cluster: Members) -> None:
    """Afterwards it owns none, and the other member owns all."""
    a, _ = await cluster.join("a"), await cluster.join("b")
    await until(lambda: cluster.count("a") and cluster.count("b") and not a.view.moves)
    assert await a.drain(20_000)
    await until(lambda: cluster.count("b") == SHARDS)
    await a.close()


async def test_owner_serves_until_its_successor_is_prepared(cluster: Members) -> None:
    """A successor that has yet to connect to the store would leave the shard without an owner for that long."""
    a, b = await cluster.join("a"), await cluster.join("b")
    await until(lambda: cluster.count("a") and cluster.count("b") and not a.view.moves)
    successor, done = cluster.holders["b"], len(cluster.locks.handovers)
    successor.is_prepared, successor.refused = False, set()
    draining = asyncio.ensure_future(a.drain(20_000))
    await until(lambda: successor.refused)  # it tries to own them
    seen = a.view
    await until(lambda: a.view is not seen and b.view.members["a"].draining)
    await asyncio.wait([draining], timeout=0.3)
    assert len(cluster.locks.handovers) == done
    successor.is_prepared = True
    assert await draining
    await until(lambda: cluster.count("b") == SHARDS)


async def test_owner_serves_until_an_earlier_successor_waits_no_more(
    cluster: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one would claim the shard once it is free, and calls would wait for it at the other successor."""
    monkeypatch.setattr("tenantq.cluster.membership.DEAD_MS", 60_000)
    found = {id: await cluster.join(id) for id in "abc"}
    a = found["a"]
    await until(lambda: all(cluster.count(id) for id in "abc") and not a.view.moves)
    done = len(cluster.locks.handovers)
    async with a._releasing:
        draining = asyncio.ensure_future(a.drain(20_000))
        await until(lambda: any(a.view.waiting_for(shard) for shard in a.view.moves))
        ((shard, earlier),) = a.view.moves.items()
        later = next(id for id in "bc" if id != earlier)
        may_beat, heartbeat = threading.Event(), found[earlier]._registry.heartbeat

        def beat_late(member: Member, assigner_ms: int) -> Heartbeats:
            assert may_beat.wait(20)
            return heartbeat(member, assigner_ms)

        monkeypatch.setattr(found[earlier]._registry, "heartbeat", beat_late)
        await found[later].request_drain(earlier, drain=True)
        await until(lambda: a.view.assignment[shard] == later and later in a.view.waiting_for(shard))
    await asyncio.wait([draining], timeout=0.3)
    assert len(cluster.locks.handovers) == done
    may_beat.set()
    assert await draining
    await until(lambda: cluster.count(later) == SHARDS)
    assert (shard, "a", later) in cluster.locks.handovers


async def test_leaving_member_completes_the_handover_of_its_last_shard(cluster: Members) -> None:
    """Neither drain nor close cuts off a release that has begun: its shard would be without an owner for longer."""
    a = await cluster.join("a")
    await until(lambda: cluster.count("a") == SHARDS)
    b = await cluster.join("b")
    await until(lambda: cluster.count("b") == SHARDS // 2 and not a.view.moves and not b.view.moves)
    holder = cluster.holders["a"]
    holder.may_release.clear()
    leaving = asyncio.ensure_future(a.drain(20_000))
    while cluster.count("a") > 1:
        await until(lambda: holder.releasing)
        holder.may_release.set()
        await until(lambda: not holder.releasing)
        holder.may_release.clear()
    await until(lambda: holder.releasing)
    await asyncio.wait([leaving], timeout=0.3)
    assert not leaving.done()
    closing = asyncio.ensure_future(a.close())
    await asyncio.wait([closing], timeout=0.3)
    assert not closing.done()
    holder.may_release.set()
    await closing
    assert await leaving
    assert cluster.count("a") == 0


async def test_shards_of_a_dead_member_go_to_the_others(cluster: Members) -> None:
    """Nobody releases them; their leases end in the store."""
    a, b = await cluster.join("a"), await cluster.join("b")
    await until(lambda: cluster.count("b") > 0 and not a.view.moves)
    assert a._task is not None
    a._task.cancel()
    for shard in [shard for shard, id in cluster.locks.owner.items() if id == "a"]:
        del cluster.locks.owner[shard]  # its leases have ended
    await until(lambda: cluster.count("b") == SHARDS and "a" not in b.view.members)


async def test_a_shard_goes_to_a_member_that_can_open_it(cluster: Members) -> None:
    """It does not come back while its last member is cut off, and is served again when any member can open it."""
    a, b = await cluster.join("a"), await cluster.join("b")
    await until(lambda: cluster.count("b") == SHARDS // 2 and not a.view.moves and not b.view.moves)
    holders, locks = cluster.holders, cluster.locks
    lost = {shard for shard, id in locks.owner.items() if id == "a"}
    holders["a"].cut_off = lost
    for shard in lost:
        del locks.owner[shard]  # its lease has ended
    await until(lambda: cluster.count("b") == SHARDS)
    holders["b"].cut_off = lost
    for shard in lost:
        del locks.owner[shard]
    await until(lambda: all(set(one.view.members["b"].cannot_open) == lost for one in (a, b)))
    holders["a"].cut_off = holders["b"].cut_off = set()
    await until(lambda: len(locks.owner) == SHARDS)


class Overtaken(RedisRegistry):
    """Answers a heartbeat only after the shards that it reports as being acquired are acquired."""

    sent = threading.Event()
    acquired = threading.Event()

    def heartbeat(self, member: Member, assigner_ms: int) -> Heartbeats:
        rows = super().heartbeat(member, assigner_ms)
        if member.acquiring:
            self.sent.set()
            assert self.acquired.wait(20)
        return rows


class LateHolder(Holder):
    """Acquires shards while a heartbeat reports that it is about to."""

    def waiting(self) -> set[int]:
        return set(range(SHARDS))

    async def acquire(self, shard: int, is_assigned: Callable[[], bool]) -> None:
        await asyncio.to_thread(Overtaken.sent.wait, 20)
        await super().acquire(shard, is_assigned)
        if len(self.owned()) == SHARDS:
            asyncio.get_running_loop().call_later(0.05, Overtaken.acquired.set)


async def test_a_member_does_not_hand_a_shard_over_to_itself(durable_server: RedisServer) -> None:
    """Its own row may still say that it is acquiring a shard that it already owns."""
    locks = Locks()
    registry = Overtaken(parse_address(durable_server.url), RedisSettings(name="fleet"))
    registry.create(SHARDS, ())
    member = Member(id="a", peer_address="a:1")
    found = Membership(registry, LateHolder("a", locks), SystemClock(), member, NoLinks())
    await found.start()
    await until(lambda: found.takeovers == SHARDS and len(found.view.members["a"].owned) == SHARDS)
    await found.close()
    durable_server.client().flushall()
    assert locks.handovers == []


async def test_the_last_member_does_not_wait_for_a_successor(cluster: Members) -> None:
    """It keeps its shards until it closes."""
    a = await cluster.join("a")
    await until(lambda: cluster.count("a") == SHARDS)
    assert not await a.drain(60_000)


async def test_members_keep_their_shards_during_a_registry_outage(
    cluster: Members, durable_server: RedisServer
) -> None:
    """An outage declares no member dead, and heartbeats continue afterwards."""
    a, b = await cluster.join("a"), await cluster.join("b")
    await until(lambda: cluster.count("b") > 0 and not a.view.moves and not b.view.moves)
    before = dict(cluster.locks.owner)
    durable_server.client().execute_command("CLIENT", "PAUSE", 4_000, "ALL")
    await until(lambda: a.problem and b.problem)
    await until(lambda: not a.problem and not b.problem)
    assert cluster.locks.owner == before
