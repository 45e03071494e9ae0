"""Events in one round, or between two, leave nothing duplicated, stuck or unreported."""

import asyncio
from pathlib import Path

import pytest

from tenantq.domain import limits
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.engine.round import Round
from tenantq.engine.settings import ShardSettings
from tenantq.errors import Invalid, TenantqError
from tenantq.journal.record import JournalRow, decode_record, rows
from tenantq.runtime.clock import ManualClock
from tests.administration import delete_queue, finished, pause_queue, purge, put_queue, put_tenant, queues
from tests.conftest import OpenShard
from tests.shards import Q, T, examined, freeze, message, pass_time, wait_until_idle
from tests.verbs import Shard

HOUR = 3_600_000
DLQ = "work-dlq"


def journal(shard: Shard) -> list[JournalRow]:
    """Return the journal's rows in order."""
    found = shard.state.store.scan_items(shard.state.store.jn, b"", b"\xff" * 9, 100_000)
    return [row for _, value in found for row in rows(decode_record(value)[1])]


async def check_consistency(shard: Shard, tmp_path: Path) -> None:
    """Close the shard and check that the doctor finds nothing."""
    await wait_until_idle(shard)
    assert shard.failure is None
    await shard.close()
    assert examined(shard).findings == []


async def drain_dead_letters(shard: Shard) -> str:
    """Delete the dead-letter queue while one lease keeps it draining; return its receipt."""
    await put_queue(shard, T, Q, max_attempts=1)
    await shard.add(T, DLQ, [message("in the way")])
    (held,) = await shard.poll(T, DLQ, lease_ms=HOUR)
    await delete_queue(shard, T, DLQ)
    assert shard.reads.stats(T, DLQ).status == "draining"
    return held.receipt


async def test_dead_letter_waits_while_its_queue_is_being_deleted(
    shard: Shard, clock: ManualClock, tmp_path: Path
) -> None:
    """It is not delivered, each attempt is journaled, and the new dead-letter queue gets it."""
    receipt = await drain_dead_letters(shard)
    (added,) = await shard.add(T, Q, [message("letter")])
    (got,) = await shard.poll(T, Q)
    (outcome,) = await shard.nack(T, Q, [got.receipt], reason="broken")
    assert outcome.ok
    for _ in range(3):
        await pass_time(shard, clock, 1_500)
        assert await shard.poll(T, Q) == []
        assert shard.failure is None
    told = [row for row in await shard.reads.trace(T, Q, added.id) if row.op == "dead_letter"]
    assert {row.outcome for row in told} == {"deferred"}
    assert len(told) >= 2
    assert shard.reads.stats(T, Q).dead_total == 0
    await shard.ack(T, DLQ, [receipt])
    await wait_until_idle(shard)
    assert DLQ not in queues(shard, T)
    await pass_time(shard, clock, 1_500)
    assert await shard.poll(T, Q) == []
    await wait_until_idle(shard)
    (letter,) = await shard.poll(T, DLQ)
    assert (letter.raw_id, letter.body) == (added.raw_id, b"letter")
    assert (shard.reads.stats(T, Q).dead_total, shard.reads.stats(T, Q).ready) == (1, 0)
    assert "unexplained" not in {row.op for row in journal(shard)}
    await check_consistency(shard, tmp_path)


async def test_waiting_dead_letter_expires_with_its_ttl(shard: Shard, clock: ManualClock, tmp_path: Path) -> None:
    """The TTL may end during the last delivery, without polls."""
    await drain_dead_letters(shard)
    await shard.add(T, Q, [message(ttl_ms=100)])
    assert len(await shard.poll(T, Q, lease_ms=1_000)) == 1
    await pass_time(shard, clock, 500)
    await pass_time(shard, clock, 1_000)
    await pass_time(shard, clock, 5_000)
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.in_flight, stats.expired_total) == (0, 0, 0, 1)
    await check_consistency(shard, tmp_path)


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_fleet_poll_continues_after_a_message_becomes_a_dead_letter(shard: Shard, wait_ms: int) -> None:
    """Ready messages of the next tenant are delivered at once."""
    await put_tenant(shard, "aaa")
    await put_tenant(shard, "bbb")
    await shard.add("aaa", Q, [message("old")])
    (got,) = await shard.poll("aaa", Q)
    await shard.nack("aaa", Q, [got.receipt], delay_ms=0)
    await put_queue(shard, "aaa", Q, max_attempts=1)
    await shard.add("bbb", Q, [message("good")])
    polling = asyncio.create_task(shard.fleet_poll(Q, max=1, wait_ms=wait_ms))
    await wait_until_idle(shard)
    assert polling.done()
    assert [one.body for one in polling.result()] == [b"good"]


async def test_fleet_polls_for_different_tenants_in_one_round_all_get_messages(open_shard: OpenShard) -> None:
    """The tenants of the first poll do not use up the limit of the round."""
    shard = await open_shard(settings=ShardSettings(round_cost_alone=8, round_cost_shared=2))
    for tenant in ("aaa", "bbb"):
        await put_tenant(shard, tenant)
        await shard.add(tenant, Q, [message() for _ in range(50)])
    first, second, third = await asyncio.gather(
        shard.fleet_poll(Q, max=20, tenants=["aaa"]),
        shard.fleet_poll(Q, max=5, tenants=["bbb"]),
        shard.fleet_poll(Q, max=5),
    )
    assert min(len(first), len(second), len(third)) > 0
    assert {one.tenant for one in first} == {"aaa"}
    assert {one.tenant for one in second} == {"bbb"}
    ids = [one.raw_id for got in (first, second, third) for one in got]
    assert len(ids) == len(set(ids))


async def test_fully_refused_add_creates_no_queue(shard: Shard) -> None:
    """Only the refusal is journaled."""
    (reply,) = await shard.add(T, "fresh", [message(priority=99)])
    assert isinstance(reply.error, Invalid)
    assert "fresh" not in queues(shard, T)
    assert "create_queue" not in {row.op for row in journal(shard)}
    replies = await shard.add(T, "fresh", [message(priority=99), message("good")])
    assert [one.error is None for one in replies] == [False, True]
    assert "fresh" in queues(shard, T)


@pytest.mark.parametrize("most", [2, 3, 4])
async def test_no_message_is_twice_in_one_reply(shard: Shard, clock: ManualClock, tmp_path: Path, most: int) -> None:
    """Leases end and delays pass in the very round that delivers."""
    await put_queue(shard, T, Q, max_attempts=0, low_priority_every=2, low_priority_after_ms=0)
    await shard.add(T, Q, [message("x")])
    await shard.poll(T, Q, lease_ms=1_000)
    await shard.add(T, Q, [message(f"high {n}", priority=9) for n in range(4)])
    await shard.poll(T, Q, max=4, lease_ms=1_000)
    await shard.add(T, Q, [message(f"late {n}", delay_ms=1_000) for n in range(3)])
    await wait_until_idle(shard)
    clock.advance(1_000)
    bodies: list[bytes] = []
    for _ in range(20):
        got = await shard.poll(T, Q, max=most)
        bodies += [one.body for one in got]
        if got:
            assert all(outcome.ok for outcome in await shard.ack(T, Q, [one.receipt for one in got]))
    assert len(bodies) == len(set(bodies)) == 8
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.in_flight, stats.healed_total) == (0, 0, 0, 0)
    await check_consistency(shard, tmp_path)


async def test_space_of_purged_messages_is_reclaimed_with_durability_os(
    open_shard: OpenShard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens once, as after a sync."""
    emptied: list[bytes] = []
    shard = await open_shard(settings=ShardSettings(durability="os"))
    monkeypatch.setattr(type(shard.state.store.files), "compact", lambda _, first, __: emptied.append(first))
    await shard.add(T, Q, [message()])
    prefix = shard.state.catalog.tenant(T).queues[Q].prefix
    assert await purge(shard, T, Q) == 1
    await pass_time(shard, clock, 1_000)
    await shard.close()
    assert emptied == [prefix]


@pytest.mark.parametrize("name", ["a" * 76 + "-dlq", "a" * 71 + "-dlq.fifo"], ids=["plain", "fifo"])
async def test_a_queue_with_the_longest_name_is_not_its_own_dead_letter_queue(
    shard: Shard, clock: ManualClock, name: str
) -> None:
    """Its messages are delivered max_attempts times, and then never again."""
    await put_queue(shard, T, name, max_attempts=1)
    group = "g" if name.endswith(".fifo") else None
    await shard.add(T, name, [message(group=group)])
    (got,) = await shard.poll(T, name)
    await shard.nack(T, name, [got.receipt])
    await pass_time(shard, clock, HOUR)
    assert await shard.poll(T, name) == []
    (letters,) = set(queues(shard, T)) - {name}
    assert len(letters) <= 80
    assert [one.raw_id for one in await shard.poll(T, letters)] == [got.raw_id]


@pytest.mark.rocksdb_only("copies its files")
async def test_forced_delete_survives_a_crash(
    open_shard: OpenShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues after the restart without waiting for leases."""
    shard = await open_shard()
    await shard.add(T, Q, [message()])
    await shard.poll(T, Q, lease_ms=HOUR)
    real = shard.loop._write

    def copied(round: Round) -> None:
        real(round)
        if any(entry.op == "delete_queue" for entry in round.effects.entries):
            shard.state.store.sync()
            freeze(tmp_path / "data", tmp_path / "crashed")

    monkeypatch.setattr(shard.loop, "_write", copied)
    await delete_queue(shard, T, Q, force=True)
    crashed = await open_shard("crashed")
    await wait_until_idle(crashed)
    assert Q not in queues(crashed, T)
    await crashed.close()
    assert examined(crashed).findings == []


async def test_reply_of_many_tenants_respects_its_size_limit(shard: Shard) -> None:
    """It exceeds the limit by less than one message; the others follow with the next poll."""
    size, tenants = 1 << 20, 24
    for n in range(tenants):
        await put_tenant(shard, f"tenant-{n:02}")
        await shard.add(f"tenant-{n:02}", Q, [message(b"z" * size)])
    seen: list[bytes] = []
    while got := await shard.fleet_poll(Q, max=100):
        assert sum(len(one.body) for one in got) < limits.REPLY_BYTES_MAX + size
        seen += [one.raw_id for one in got]
    assert len(set(seen)) == len(seen) == tenants


async def test_many_group_members_without_a_body_are_healed_at_once(shard: Shard, tmp_path: Path) -> None:
    """The next member with a body is delivered."""
    first = await shard.add(T, Q, [message(group="g") for _ in range(1_000)])
    more = await shard.add(T, Q, [message(group="g") for _ in range(201)])
    await shard.add(T, Q, [message("last", group="g")])
    (head,) = await shard.poll(T, Q)
    lost = shard.state.store.new_batch()
    prefix = shard.state.catalog.tenant(T).queues[Q].prefix
    for one in (*first[1:], *more):
        lost.delete(prefix + one.raw_id, shard.state.store.m.handle)
    shard.state.store.write(lost)
    (outcome,) = await shard.ack(T, Q, [head.receipt])
    assert outcome.ok
    (got,) = await shard.poll(T, Q)
    assert got.body == b"last"
    assert shard.reads.stats(T, Q).healed_total == 1_200
    await check_consistency(shard, tmp_path)


async def test_a_refused_operation_is_journaled_under_its_own_name(shard: Shard) -> None:
    """It is the name that it has on success."""
    await put_tenant(shard, "closed", create_queues=False)
    calls = {
        "add": shard.add("closed", "nope", [message()]),
        "poll": shard.poll(T, "nope"),
        "ack": shard.ack(T, "nope", ["x"]),
        "nack": shard.nack(T, "nope", ["x"]),
        "release": shard.release(T, "nope", ["x"]),
        "extend": shard.extend(T, "nope", ["x"], lease_ms=5),
        "remove": shard.remove(T, "nope", [bytes(16)]),
        "configure_queue": put_queue(shard, T, "nope", lease_ms=0),
        "pause_queue": pause_queue(shard, T, "nope"),
        "delete_queue": delete_queue(shard, T, "nope"),
        "purge": purge(shard, T, "nope"),
        "configure_tenant": put_tenant(shard, "acme", weight=0),
    }
    for call in calls.values():
        with pytest.raises(TenantqError):
            await call
    assert [row.op for row in journal(shard) if row.outcome == "refused"] == list(calls)


async def test_background_work_of_a_deleted_tenant_adds_no_row(shard: Shard, clock: ManualClock) -> None:
    """No caller was refused."""
    await put_tenant(shard, "acme")
    await shard.add("acme", Q, [message(), message(delay_ms=10)])
    await shard.poll("acme", Q, lease_ms=10)
    await wait_until_idle(shard)
    last = shard.journal.span[1]
    clock.advance(10)  # the sweep and the advance are queued now
    await shard.erasure.delete_tenant("acme")
    await pass_time(shard, clock, 1_000)
    assert [row.op for row in journal(shard) if row.seq > last] == ["delete_tenant"]
    assert "refused" not in {row.outcome for row in journal(shard)}


async def test_dead_letter_and_redrive_rows_name_the_destination(shard: Shard) -> None:
    """With their bytes, the journal shows the arrivals of each queue."""
    await put_queue(shard, T, Q, max_attempts=1)
    (added,) = await shard.add(T, Q, [message("12345")])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt])
    await finished(shard, await shard.redrive(T, Q, filter=RedriveFilter(ids=frozenset({added.id}))))
    moves = {row.op: row for row in await shard.reads.trace(T, Q, added.id) if row.op in {"dead_letter", "redrive"}}
    assert (moves["dead_letter"].queue, moves["dead_letter"].bytes) == (Q, 5)
    assert DLQ in moves["dead_letter"].details
    assert (moves["redrive"].queue, moves["redrive"].bytes) == (DLQ, 5)
    assert moves["redrive"].details == f"to {Q}"


async def test_fleet_lanes_of_unknown_queues_are_limited(shard: Shard) -> None:
    """A lane with a waiting poll stays, and the poll still gets its message."""
    waiting = asyncio.create_task(shard.fleet_poll(Q, wait_ms=60_000))
    await wait_until_idle(shard)
    for start in range(0, 2_000, 100):
        assert await asyncio.gather(*(shard.fleet_poll(f"none-{start + n}") for n in range(100))) == [[]] * 100
    assert len(shard.state.lanes) <= 1_000
    await shard.add(T, Q, [message("found")])
    assert [one.body for one in await waiting] == [b"found"]


async def test_message_discarded_by_the_sweep_is_skipped_by_the_poll(
    shard: Shard, clock: ManualClock, tmp_path: Path
) -> None:
    """The poll of the same round still finds its row, and nothing is counted twice."""
    await shard.add(T, Q, [message("ends", ttl_ms=1_000), message("stays")])
    await wait_until_idle(shard)
    rounds = shard.loop.figures.rounds
    clock.advance(1_000)  # the sweep is queued
    (got,) = await shard.poll(T, Q, max=9)
    assert shard.loop.figures.rounds - rounds == 1
    assert got.body == b"stays"
    stats = shard.reads.stats(T, Q)
    assert (stats.expired_total, stats.ready, stats.in_flight, stats.bytes) == (1, 0, 1, len(b"stays"))
    assert [row.op for row in journal(shard)].count("expire") == 1
    await check_consistency(shard, tmp_path)
