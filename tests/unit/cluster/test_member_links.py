"""How a member finds the owners of shards while they move."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from tenantq.cluster.error_codec import NotOwner
from tenantq.cluster.fleet_waits import FleetWaits
from tenantq.cluster.host import ShardHost
from tenantq.cluster.member_links import MemberLinks
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.domain.cluster_view import Cluster, ClusterView, Member
from tenantq.gates.turns import Turns
from tenantq.runtime.clock import SystemClock
from tenantq.runtime.futures import BackgroundTasks
from tests.unit.client.doubles import until

SECRET = "known to all members"  # noqa: S105  # of links that live as long as a test
SHARD = 5


async def member(id: str, background: BackgroundTasks) -> tuple[MemberLinks, Member]:
    """Return a member that owns no shard, and its row."""
    clock, loop = SystemClock(), asyncio.get_running_loop()
    make: Any = None  # no shard is opened
    host = ShardHost(make, clock, type(loop))
    calls = ShardCalls(host, clock, 8)
    links = MemberLinks(
        id, SECRET, host, calls, {}, Turns(loop), ShardMemory(host, clock), FleetWaits(loop), clock, background.start
    )
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    await links.open(sock, None)
    return links, Member(id=id, peer_address=f"127.0.0.1:{sock.getsockname()[1]}")


async def test_a_late_refusal_does_not_end_a_newer_ownership() -> None:
    """A member that was still opening a shard refused a call. The refusal arrives after the notice that it owns the shard."""
    background = BackgroundTasks()
    (here, own), (there, other) = [await member(id, background) for id in ("here", "there")]
    rows = {"here": own, "there": Member(id="there", peer_address=other.peer_address, owned={SHARD: 1})}
    view = ClusterView(cluster=Cluster(id="c", format="1", shards=8), members=rows, assignment={})
    try:
        here.update(view)
        await until(lambda: here.place(SHARD) is not None)
        asked = here.place(SHARD)
        assert asked is not None
        try:
            await asked.call("peer.release", None, [])
        except NotOwner as refusal:
            here.note_owner("there", SHARD, 2)
            here.learn(refusal)
        assert here.place(SHARD) is not None
        try:
            await asked.call("peer.release", None, [])
        except NotOwner as refusal:
            refusal.epoch = 2
            here.learn(refusal)
        assert here.place(SHARD) is None  # until the next owner is known
        here.note_owner("there", SHARD, 3)
        assert here.place(SHARD) is not None
    finally:
        await background.finish()
        for links in (here, there):
            await links.close()


async def test_a_call_waits_only_for_a_member_that_is_about_to_own_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait in vain for one that another member was faster than, or that still waits for what it should not own."""
    monkeypatch.setattr("tenantq.cluster.member_links.OPENING_MS", 60_000)
    background = BackgroundTasks()
    (here, own), (there, other) = [await member(id, background) for id in ("here", "there")]
    rows = {"here": own, "there": Member(id="there", peer_address=other.peer_address, owned={SHARD: 1})}
    view = ClusterView(cluster=Cluster(id="c", format="1", shards=8), members=rows, assignment={SHARD: "there"})
    asked: list[int] = []
    there._host.is_opening = lambda shard: not asked.append(shard)  # type: ignore[method-assign,func-returns-value]
    try:
        for links in (here, there):
            links.update(view)
        await until(lambda: here.place(SHARD) is not None)
        place = here.place(SHARD)
        assert place is not None
        waiting = asyncio.ensure_future(place.call("peer.release", None, []))
        await until(lambda: asked)
        assert not waiting.done()
        there.note_owner("third", SHARD, 2)
        with pytest.raises(NotOwner) as refusal:
            await asyncio.wait_for(waiting, 20)
        assert refusal.value.owner == "third"
        there.update(msgspec.structs.replace(view, assignment={SHARD: "third"}))
        with pytest.raises(NotOwner):
            await asyncio.wait_for(asyncio.ensure_future(place.call("peer.release", None, [])), 20)
    finally:
        await background.finish()
        for links in (here, there):
            await links.close()


async def test_a_member_that_has_released_a_shard_does_not_call_an_earlier_owner() -> None:
    """Its own ownership, which it forgets first, is newer than what it was told."""
    background = BackgroundTasks()
    (here, own), (there, other) = [await member(id, background) for id in ("here", "there")]
    view = ClusterView(
        cluster=Cluster(id="c", format="1", shards=8), members={"here": own, "there": other}, assignment={}
    )
    try:
        here.update(view)
        here.note_owner("there", SHARD, 1)
        await until(lambda: here.place(SHARD) is not None)
        here._host.successors[SHARD] = (2, "third")
        assert here.place(SHARD) is None  # it is not connected to the third one yet
        here.note_owner("there", SHARD, 3)
        assert here.place(SHARD) is not None
    finally:
        await background.finish()
        for links in (here, there):
            await links.close()


async def test_a_member_that_does_not_reach_the_registry_is_called_while_it_answers() -> None:
    """It still serves its shards. Once it does not answer either, it is not."""
    background = BackgroundTasks()
    (here, own), (there, other) = [await member(id, background) for id in ("here", "there")]
    rows = {"here": own, "there": Member(id="there", peer_address=other.peer_address, owned={SHARD: 1})}
    cluster = Cluster(id="c", format="1", shards=8)
    try:
        here.update(ClusterView(cluster=cluster, members=rows, assignment={}))
        await until(lambda: here.place(SHARD) is not None)
        without = ClusterView(cluster=cluster, members={"here": own}, assignment={})
        here.update(without)
        here.update(without)
        assert here.place(SHARD) is not None
        assert (here.owner(SHARD), here.others(), here.members()) == ("there", ["there"], ["there"])
        await there.close()
        await until(lambda: here.place(SHARD) is None)
        here.update(without)
        assert (here.owner(SHARD), here.others()) == (None, [])
    finally:
        await background.finish()
        for links in (here, there):
            await links.close()
