"""Snapshots: everything in a queue at one moment, while the queue keeps working."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tenantq.domain import limits
from tenantq.domain.message import NewMessage
from tenantq.errors import Invalid, NotFound, QuotaExceeded
from tests.administration import delete_queue, put_tenant
from tests.shards import pass_time

if TYPE_CHECKING:
    from tenantq.domain.message import Facts
    from tenantq.runtime.clock import ManualClock
    from tests.verbs import Shard


async def _all(shard: Shard, id: str, *, limit: int = 3, queue: str = "q") -> list[Facts]:
    found: list[Facts] = []
    start = None
    while True:
        page = await shard.snapshots.read("default", queue, id, start=start, limit=limit)
        found += page.messages
        start = page.cursor
        if start is None:
            return found


async def _fill(shard: Shard) -> None:
    """Add messages of every state to a queue."""
    await shard.add("default", "q", [NewMessage(body=b"leased", priority=9), NewMessage(body=b"twice", priority=8)])
    got = await shard.poll("default", "q", max=2, lease_ms=60_000)
    await shard.nack("default", "q", [got[1].receipt], delay_ms=0, reason="not yet")
    await shard.add(
        "default",
        "q",
        [
            NewMessage(body=b"ready", attributes={"a": "b"}),
            NewMessage(body=b"delayed", delay_ms=5_000),
            NewMessage(body=b"first", group="g"),
            NewMessage(body=b"blocked", group="g"),
        ],
    )


async def test_snapshot_does_not_change(shard: Shard, clock: ManualClock) -> None:
    """Later adds, acks and due messages do not appear on any page."""
    await _fill(shard)
    first = await shard.snapshots.open("default", "q")
    before = {facts.body: await shard.reads.get("default", "q", facts.raw_id) for facts in await _all(shard, first.id)}
    taken = await shard.snapshots.open("default", "q")
    await shard.add("default", "q", [NewMessage(body=b"later")])
    for delivery in await shard.poll("default", "q", max=10):
        await shard.ack("default", "q", [delivery.receipt])
    await pass_time(shard, clock, 30_000)
    found = await _all(shard, taken.id, limit=1)
    assert {facts.body: facts for facts in found} == before
    assert {facts.body.decode(): facts.state for facts in found} == {
        "leased": "in_flight", "twice": "ready", "ready": "ready", "delayed": "delayed", "first": "ready", "blocked": "blocked",
    }  # fmt: skip
    assert [facts.raw_id for facts in found] == sorted(facts.raw_id for facts in found)
    assert (taken.messages, taken.bytes) == (6, sum(facts.size for facts in found))


async def test_snapshot_is_divided_into_parts(shard: Shard) -> None:
    """Each part has the requested number of messages, and together they are complete."""
    await shard.add("default", "q", [NewMessage(body=b"%d" % number) for number in range(1_000)])
    for _ in range(4):
        await shard.add("default", "q", [NewMessage(body=b"x") for _ in range(1_000)])
    taken = await shard.snapshots.open("default", "q", part_messages=900)
    bounds = [None, *taken.parts, None]
    counts = []
    for start, end in pairwise(bounds):
        page = await shard.snapshots.read("default", "q", taken.id, start=start, end=end, limit=1_000)
        assert page.cursor is None
        counts.append(len(page.messages))
    assert counts == [900, 900, 900, 900, 900, 500]
    exact = await shard.snapshots.open("default", "q", part_messages=5_000)
    assert exact.parts == []


async def test_snapshot_pages_are_limited_in_bytes(shard: Shard) -> None:
    """A page of large bodies ends early, and the next one continues after it."""
    for _ in range(10):
        await shard.add("default", "q", [NewMessage(body=bytes(limits.BODY_BYTES_MAX))])
    taken = await shard.snapshots.open("default", "q")
    page = await shard.snapshots.read("default", "q", taken.id, limit=100)
    assert 1 < len(page.messages) < 10
    assert page.cursor is not None
    assert len(await _all(shard, taken.id, limit=100)) == 10


async def test_snapshot_expires_when_idle_and_after_its_lifetime(shard: Shard, clock: ManualClock) -> None:
    """Reads keep it alive, but not forever, because it retains storage."""
    await _fill(shard)
    taken = await shard.snapshots.open("default", "q", keep_ms=600_000)
    for _ in range(limits.SNAPSHOT_LIFE_MS_MAX // 500_000):
        await pass_time(shard, clock, 500_000)
        assert len(await _all(shard, taken.id)) == 6
    await pass_time(shard, clock, 500_000)
    with pytest.raises(
        NotFound, match="no such snapshot: it was closed, was not read for too long, or the server was restarted"
    ):
        await _all(shard, taken.id)
    idle = await shard.snapshots.open("default", "q", keep_ms=1_000)
    await pass_time(shard, clock, 1_000)
    with pytest.raises(NotFound):
        await _all(shard, idle.id)


async def test_snapshots_are_limited_and_belong_to_their_queue(shard: Shard) -> None:
    """One too many is refused until one is closed; another queue or tenant cannot read it."""
    await _fill(shard)
    await put_tenant(shard, "acme")
    for tenant, queue in (("default", "other"), ("acme", "q")):
        await shard.add(tenant, queue, [NewMessage(body=b"x")])
    taken = [await shard.snapshots.open("default", "q") for _ in range(limits.SNAPSHOTS_OF_TENANT_MAX)]
    with pytest.raises(QuotaExceeded, match="too many snapshots"):
        await shard.snapshots.open("default", "other")
    await shard.snapshots.open("acme", "q")
    for tenant, queue in (("default", "other"), ("acme", "q")):
        with pytest.raises(NotFound):
            await shard.snapshots.read(tenant, queue, taken[0].id)
        with pytest.raises(NotFound):
            shard.snapshots.close(tenant, queue, taken[0].id)
    shard.snapshots.close("default", "q", taken[0].id)
    await shard.snapshots.open("default", "other")
    with pytest.raises(NotFound):
        await shard.snapshots.read("default", "q", taken[0].id)


async def test_snapshots_are_deleted_with_their_queue(shard: Shard, clock: ManualClock) -> None:
    """A recreated queue of the same name does not get them."""
    await _fill(shard)
    taken = await shard.snapshots.open("default", "q")
    await delete_queue(shard, "default", "q", force=True)
    await pass_time(shard, clock, 1)
    with pytest.raises(NotFound):
        await _all(shard, taken.id)
    await shard.add("default", "q", [NewMessage(body=b"new")])
    with pytest.raises(NotFound):
        await _all(shard, taken.id)


async def test_invalid_arguments_are_named(shard: Shard) -> None:
    """Ranges and IDs are checked."""
    await _fill(shard)
    taken = await shard.snapshots.open("default", "q")
    for options in ({"keep_ms": 0}, {"keep_ms": limits.SNAPSHOT_KEEP_MS_MAX + 1}, {"part_messages": 0}):
        with pytest.raises(Invalid, match=next(iter(options))):
            await shard.snapshots.open("default", "q", **options)
    with pytest.raises(Invalid, match="limit"):
        await shard.snapshots.read("default", "q", taken.id, limit=0)
    with pytest.raises(Invalid):
        await shard.snapshots.read("default", "q", taken.id, start="nonsense")
    with pytest.raises(NotFound):
        await shard.snapshots.open("default", "nowhere")
