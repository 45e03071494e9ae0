"""A byte flipped in a table file: the affected queue is quarantined, and every other queue keeps working."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import httpx
import pytest

from tenantq import Client
from tenantq.domain.message import LOCAL
from tenantq.engine.ops.redrive import CancelRedrive
from tenantq.engine.redrive_registry import stored_redrives
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import QueueDamaged, StoreDamaged
from tenantq.runtime.randomness import id_text
from tests.acceptance.command import ADMIN_TOKEN, call, serving
from tests.administration import finished, put_queue, put_tenant
from tests.shards import journal_rows, message, pass_time, wait_until_idle
from tests.verbs import Shard

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard

MARK = random.Random(7).randbytes(64)
"""Does not compress, so the table file contains it verbatim."""


async def fill(shard: Shard, *, leased: bool = False) -> None:
    """Give two tenants a queue in table files; the bodies of one contain the mark."""
    for tenant, body in (("acme", MARK * 200), ("globex", b"x" * 9_000)):
        await put_tenant(shard, tenant)
        await put_queue(shard, tenant, "work", max_attempts=1)
        await shard.add(tenant, "work", [message(body) for _ in range(8)])
        if leased:
            await shard.poll(tenant, "work", max=8, lease_ms=1_000)
    shard.state.store.files.erase(b"", b"\xff" * 8)  # like old tables: nothing is left to compact


def flip_a_byte(data: Path) -> None:
    """Change one byte of a stored body."""
    (file,) = [path for path in (data / "db").glob("*.sst") if MARK in path.read_bytes()]
    flip_in(file)


def flip_in(file: Path) -> None:
    """Change one byte of the mark in a file."""
    raw = bytearray(file.read_bytes())
    raw[raw.index(MARK) + len(MARK) // 2] ^= 1
    file.write_bytes(raw)


async def compact_and_add(data: Path) -> None:
    """Open a store, compact it, and add a message."""
    async with Shard(data) as shard:
        with contextlib.suppress(Exception):  # the binding has no error class of its own
            shard.state.store.files.compact(b"", b"\xff" * 8)
        await shard.add("globex", "work", [message("refused")])


async def test_compaction_that_finds_damage_stops_the_server_once(open_shard: OpenShard, tmp_path: Path) -> None:
    """RocksDB then refuses writes. After a restart nothing is compacted, and every other queue works."""
    shard = await open_shard()
    await fill(shard)
    await shard.add("acme", "work", [message(MARK + bytes([n])) for n in range(3)])
    shard.state.store.files.flush()
    await shard.close()
    for file in (tmp_path / "data" / "db").glob("*.sst"):
        if MARK in file.read_bytes():
            flip_in(file)
    with pytest.raises(StoreDamaged):
        await compact_and_add(tmp_path / "data")
    shard = await open_shard()
    await shard.add("globex", "work", [message("taken")])
    with pytest.raises(QueueDamaged):
        await shard.poll("acme", "work")
    assert len(await shard.poll("globex", "work", max=99)) == 9
    await shard.close()


def test_damaged_queue_is_quarantined_and_others_are_served(tmp_path: Path) -> None:
    """Its calls get a typed error, readiness and metrics count it, and the doctor names it."""
    data = tmp_path / "data"

    async def prepare() -> None:
        async with Shard(data) as shard:
            await fill(shard)

    asyncio.run(prepare())
    flip_a_byte(data)
    with serving(data) as server, Client(server.url, token=ADMIN_TOKEN) as client:
        bad, good = client.tenant("acme").queue("work"), client.tenant("globex").queue("work")
        for _ in range(3):
            with pytest.raises(QueueDamaged):
                bad.poll()
            (got,) = good.poll()
            got.ack()
        with pytest.raises(QueueDamaged):
            bad.add("more")
        with pytest.raises(QueueDamaged):
            bad.peek()
        client.tenant("acme").queue("other").add("works")
        assert client.tenant("acme").queue("other").poll()
        assert bad.stats().ready == 8
        ready = httpx.get(f"{server.url}/readyz")
        assert (ready.status_code, ready.json()["details"]["queues"]) == (200, "1 queue damaged")
        metrics = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
        assert "tenantq_damaged_queues 1.0" in metrics.text
        server.process.terminate()
        assert server.process.wait(30) == 0
    examined = call("doctor", "--data-dir", data, "--json")
    assert examined.code == 1
    found = {(one["kind"], one["tenant"], one["queue"]) for one in examined.json["findings"]}
    assert found - {("damaged", "", "")} == {("damaged", "acme", "work")}


async def test_round_that_finds_damage_is_undone_and_rerun_without_it(open_shard: OpenShard, tmp_path: Path) -> None:
    """Adds, acks and polls of other queues in the same round are executed exactly once."""
    shard = await open_shard()
    await fill(shard)
    await shard.close()
    flip_a_byte(tmp_path / "data")
    shard = await open_shard()
    (held,) = await shard.poll("globex", "work")
    bad = asyncio.ensure_future(shard.poll("acme", "work", max=8, wait_ms=1_000))
    adds = [asyncio.ensure_future(shard.add("globex", "work", [message("new", key="k")])) for _ in range(2)]
    ack = asyncio.ensure_future(shard.ack("globex", "work", [held.receipt]))
    poll = asyncio.ensure_future(shard.poll("globex", "work", max=2))
    fleet = asyncio.ensure_future(shard.fleet_poll("work", max=1))
    with pytest.raises(QueueDamaged):
        await bad
    assert {one.duplicate for add in adds for one in await add} == {True, False}
    assert (await ack)[0].ok
    assert len(await poll) == 2
    assert [one.tenant for one in await fleet] == ["globex"]
    stats = shard.reads.stats("globex", "work")
    assert (stats.ready, stats.in_flight, stats.added_total, stats.acked_total) == (5, 3, 9, 1)
    await shard.close()


async def test_settlements_in_an_undone_round_are_executed_exactly_once(open_shard: OpenShard, tmp_path: Path) -> None:
    """Messages move to the dead letters before and after one that cannot be read."""
    shard = await open_shard()
    await fill(shard)
    held = {}
    for tenant in ("acme", "globex"):
        await put_queue(shard, tenant, "work-dlq")
        held[tenant] = await shard.poll(tenant, "work", max=8, lease_ms=600_000)
    await shard.close()
    flip_a_byte(tmp_path / "data")
    shard = await open_shard()
    order = [("globex", held["globex"][:2]), ("acme", held["acme"]), ("globex", held["globex"][2:4])]
    nacks = [
        asyncio.ensure_future(shard.nack(tenant, "work", [one.receipt for one in messages]))
        for tenant, messages in order
    ]
    first, damaged, last = await asyncio.gather(*nacks, return_exceptions=True)
    assert isinstance(damaged, QueueDamaged)
    assert not isinstance(first, BaseException)
    assert not isinstance(last, BaseException)
    assert [one.ok for one in (*first, *last)] == [True] * 4
    stats = shard.reads.stats("globex", "work")
    assert (stats.in_flight, stats.nacked_total, stats.dead) == (4, 4, 4)
    assert shard.reads.stats("acme", "work").in_flight == 8
    rows = [row.message_id for row in await journal_rows(shard, op="nack") if row.outcome == "ok"]
    assert sorted(rows) == sorted(one.id for one in held["globex"][:4])
    await shard.close()


async def damage_dead_letters(open_shard: OpenShard, tmp_path: Path) -> tuple[Shard, dict[str, list[bytes]]]:
    """Open a shard with dead letters of two tenants, of which one of acme cannot be read. Return it and their IDs."""
    shard = await open_shard()
    await fill(shard)
    ids = {}
    for tenant in ("acme", "globex"):
        held = await shard.poll(tenant, "work", max=8)
        await shard.nack(tenant, "work", [one.receipt for one in held])
        ids[tenant] = [one.raw_id for one in held]
    shard.state.store.files.erase(b"", b"\xff" * 8)
    await shard.close()
    flip_a_byte(tmp_path / "data")
    return await open_shard(), ids


async def test_redrive_of_damaged_rows_fails_and_others_are_executed_exactly_once(
    open_shard: OpenShard, tmp_path: Path
) -> None:
    """Both are in one round. The other one continues after it was undone."""
    shard, ids = await damage_dead_letters(open_shard, tmp_path)
    all_of_them = RedriveFilter(limit=8)
    healthy, damaged = await asyncio.gather(
        *[shard.redrive(tenant, "work", filter=all_of_them) for tenant in ("globex", "acme")]
    )
    async with asyncio.timeout(10):
        await finished(shard, damaged)
        await finished(shard, healthy)
    assert shard.failure is None
    assert (healthy.progress.state, healthy.progress.moved, shard.reads.stats("globex", "work").ready) == ("done", 8, 8)
    found = damaged.progress
    assert (found.state, found.moved, found.reason) == ("failed", 0, "rows of the dead-letter queue cannot be read")
    assert shard.reads.stats("acme", "work").dead == 8
    rows = [row.message_id for row in await journal_rows(shard, op="redrive") if row.message_id]
    assert sorted(rows) == sorted(map(id_text, ids["globex"]))
    stored = {one.id: one.progress for one in stored_redrives(shard.state.store)}
    assert stored == {healthy.id: healthy.progress, damaged.id: found}
    await shard.close()


async def test_redrive_calls_in_an_undone_round_are_executed_exactly_once(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> None:
    """A start, a cancel and a slice are undone with everything that follows from them."""
    shard, ids = await damage_dead_letters(open_shard, tmp_path)
    slow, other = [await shard.redrive("globex", "work", rate=1) for _ in range(2)]
    await shard.add("acme", "other", [message()] * 50)  # the turn of globex is first
    await wait_until_idle(shard)
    globex = shard.tenant("globex")
    cancel = asyncio.ensure_future(shard.submit(CancelRedrive(globex, LOCAL, "work", other.id)))
    start = asyncio.ensure_future(shard.redrive("globex", "work", filter=RedriveFilter(limit=1)))
    remove = asyncio.ensure_future(shard.remove("acme", "work-dlq", ids["acme"]))
    await asyncio.sleep(0)  # they are in the lines
    clock.advance(1_000)  # and the next slices too
    with pytest.raises(QueueDamaged):
        await remove
    assert (await cancel).progress.state == "cancelled"
    new = await start
    await finished(shard, new)
    assert shard.failure is None
    tasks = shard.state.redrives.of_tenant(globex)
    assert {one.id for one in tasks} == {slow.id, other.id, new.id}
    found = [(one.progress.moved, one.progress.skipped) for one in (slow, other, new)]
    assert found == [(2, 0), (1, 1), (1, 0)]  # both wanted the same message
    assert shard.reads.stats("globex", "work").ready == 4
    await pass_time(shard, clock, 1_000)
    assert slow.progress.checked == 3  # one slice each second
    assert len(await journal_rows(shard, op="cancel_redrive")) == 1
    await shard.close()


async def test_leases_that_end_in_a_damaged_queue_affect_no_other_queue(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> None:
    """The sweep changes rows before it finds that it cannot read the messages."""
    shard = await open_shard()
    await fill(shard, leased=True)
    await shard.close()
    flip_a_byte(tmp_path / "data")
    shard = await open_shard()
    await pass_time(shard, clock, 5_000)
    assert shard.failure is None
    assert [queue.tenant.name for queue in shard.state.damaged] == ["acme"]
    assert shard.reads.stats("globex", "work-dlq").ready == 8
    assert shard.reads.stats("acme", "work").in_flight == 8
    await shard.close()
