"""Orphan rows are healed, counted and reported; they never block a queue or stop the shard."""

import asyncio

import pytest

from tenantq.journal.record import JournalRow, decode_record, rows
from tenantq.runtime.clock import ManualClock
from tenantq.store.keys import EXPIRES_KEY, EXPIRES_RESULT, EXPIRES_TTL, deadline_key, digest, expiry_key, waiting_key
from tenantq.store.rows import LeaseRow, pack_lease
from tests.administration import put_queue
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time, wait_until_idle
from tests.verbs import Shard

ORPHAN = bytes.fromhex("018bcfe5680070008000000000000001")  # sorts before everything that is added here


def inject(shard: Shard, **families: dict[bytes, bytes]) -> None:
    """Write rows behind the engine's back."""
    batch = shard.state.store.new_batch()
    for name, values in families.items():
        for key, value in values.items():
            batch.put(key, value, shard.state.store.family(name).handle)
    shard.state.store.write(batch)


def lose(shard: Shard, id: bytes) -> None:
    """Delete a message's body behind the engine's back."""
    batch = shard.state.store.new_batch()
    batch.delete(prefix(shard) + id, shard.state.store.m.handle)
    shard.state.store.write(batch)


async def consume(shard: Shard) -> list[bytes]:
    """Poll and ack several times, and return the bodies in order."""
    order: list[bytes] = []
    for _ in range(5):
        got = await shard.poll(T, Q, max=9)
        order += [one.body for one in got]
        if got:
            await shard.ack(T, Q, [one.receipt for one in got])
    return order


def prefix(shard: Shard) -> bytes:
    """Return the bytes that all keys of the queue start with."""
    return shard.state.catalog.tenant(T).queues[Q].prefix


def healed(shard: Shard) -> list[JournalRow]:
    """Return the journal rows about healing."""
    found = shard.state.store.scan_items(shard.state.store.jn, b"", b"\xff" * 9, 10_000)
    return [row for _, value in found for row in rows(decode_record(value)[1]) if row.op == "heal"]


def count(shard: Shard, family: str) -> int:
    """Return the number of rows in a family."""
    return len(shard.state.store.scan(shard.state.store.family(family), b"", b"\xff" * 64, 10_000))


def lease(shard: Shard, deadline: int, *, token: int = 7, attempts: int = 1, group: bytes = b"") -> bytes:
    """Return a lease row that belongs to no message."""
    now = shard.state.shard_clock.now_ms()
    return pack_lease(LeaseRow(attempts, token, deadline, now, now, 0, 4, 0, 0xFFFF, group))


async def works(shard: Shard) -> None:
    """Check that the queue delivers a message and that its counters are consistent."""
    before = {one.body for one in (await shard.reads.peek(T, Q, limit=1_000)).messages}
    await shard.add(T, Q, [message("probe")])
    got = await shard.poll(T, Q, max=1_000)
    assert {one.body for one in got} == before | {b"probe"}
    assert all(outcome.ok for outcome in await shard.ack(T, Q, [one.receipt for one in got]))
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.in_flight, stats.blocked, stats.bytes) == (0, 0, 0, 0, 0)
    assert shard.failure is None


@pytest.mark.parametrize("orphans", [1, 5, 700])
async def test_63_index_rows_without_a_body_are_healed(shard: Shard, orphans: int) -> None:
    """The real messages after them are all delivered."""
    await shard.add(T, Q, [message("a"), message("b")])
    now = shard.state.shard_clock.now_ms()
    ids = [ORPHAN[:-2] + n.to_bytes(2) for n in range(orphans)]
    inject(shard, vi={waiting_key(prefix(shard), 0, now - 5, id): b"" for id in ids})
    shard.state.catalog.tenant(T).queues[Q].level(0).cursor = b""  # as after a restart
    got: set[bytes] = set()
    for _ in range(10):
        got |= {one.body for one in await shard.poll(T, Q, max=1_000)}
    assert got == {b"a", b"b"}
    assert shard.reads.stats(T, Q).healed_total == orphans
    assert len(healed(shard)) == orphans
    assert all(row.outcome == "healed" and "without a body" in row.details for row in healed(shard))
    assert count(shard, "vi") == 0


async def test_63_healing_index_rows_keeps_the_counters_correct(shard: Shard) -> None:
    """An uncounted row is not subtracted, or the counters are recounted."""
    await shard.add(T, Q, [message("a"), message("b")])
    now = shard.state.shard_clock.now_ms()
    inject(shard, vi={waiting_key(prefix(shard), 0, now - 5, ORPHAN): b""})
    shard.state.catalog.tenant(T).queues[Q].level(0).cursor = b""
    (first,) = await shard.poll(T, Q)
    (second,) = await shard.poll(T, Q)
    assert [first.body, second.body] == [b"a", b"b"]
    await shard.ack(T, Q, [first.receipt, second.receipt])
    await works(shard)


async def test_63_lost_body_is_healed_and_the_rest_delivered(shard: Shard) -> None:
    """The body of one message vanished from disk."""
    lost, _ = await shard.add(T, Q, [message("lost"), message("kept")])
    lose(shard, lost.raw_id)
    got = await shard.poll(T, Q, max=9)
    assert [one.body for one in got] == [b"kept"]
    assert shard.reads.stats(T, Q).healed_total == 1
    assert [row.message_id for row in healed(shard)] == [lost.id]


async def test_63_deadline_without_a_lease_is_healed(shard: Shard, clock: ManualClock) -> None:
    """The sweep that finds it deletes and reports it."""
    await shard.add(T, Q, [message("a")])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    now = shard.state.shard_clock.now_ms()
    inject(shard, li={deadline_key(prefix(shard), now + 500, ORPHAN): b""})
    await pass_time(shard, clock, 1_000)
    assert shard.reads.stats(T, Q).healed_total == 1
    assert [row.details for row in healed(shard)] == ["deadline row without a lease"]
    assert count(shard, "li") == 0
    (again,) = await shard.poll(T, Q)
    assert again.id == got.id
    await shard.ack(T, Q, [again.receipt])
    await works(shard)


async def test_63_wrong_deadline_is_healed_and_the_lease_continues(shard: Shard, clock: ManualClock) -> None:
    """A lease ends at the time in its own row: no early expiry, no second delivery."""
    await shard.add(T, Q, [message("long"), message("short")])
    (long,) = await shard.poll(T, Q, lease_ms=60_000)
    await shard.poll(T, Q, lease_ms=1_000)
    now = shard.state.shard_clock.now_ms()
    inject(shard, li={deadline_key(prefix(shard), now + 500, long.raw_id): b""})
    await pass_time(shard, clock, 1_000)
    assert [row.details for row in healed(shard)] == ["deadline row without a lease"]
    stats = shard.reads.stats(T, Q)
    assert (stats.lease_expired_total, stats.in_flight, count(shard, "li")) == (1, 1, 1)
    (again,) = await shard.poll(T, Q, max=9)
    assert again.body == b"short"
    assert [outcome.ok for outcome in await shard.ack(T, Q, [long.receipt, again.receipt])] == [True, True]
    await works(shard)


@pytest.mark.parametrize("attempts", [1, 5])
async def test_63_lease_without_a_body_is_healed_when_it_ends(shard: Shard, clock: ManualClock, attempts: int) -> None:
    """Whether it would return or become a dead letter, nothing is left, and the counters are correct."""
    await shard.add(T, Q, [message("a")])
    await shard.poll(T, Q, lease_ms=1_000)
    until = shard.state.shard_clock.now_ms() + 500
    key = prefix(shard) + ORPHAN
    inject(
        shard,
        le={key: lease(shard, until, attempts=attempts)},
        li={deadline_key(prefix(shard), until, ORPHAN): b""},
    )
    await pass_time(shard, clock, 1_000)
    (got,) = await shard.poll(T, Q, max=9)
    await shard.ack(T, Q, [got.receipt])
    assert shard.reads.stats(T, Q).healed_total >= 1
    assert healed(shard)
    assert (count(shard, "le"), count(shard, "li"), count(shard, "vi")) == (0, 0, 0)
    await works(shard)


async def test_63_lease_without_a_deadline_causes_no_second_delivery(shard: Shard) -> None:
    """A lease row without a message affects nobody."""
    await shard.add(T, Q, [message("a")])
    until = shard.state.shard_clock.now_ms() + 500
    inject(shard, le={prefix(shard) + ORPHAN: lease(shard, until, token=0)})
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"a"]
    assert not (await shard.ack(T, Q, [f"{ORPHAN.hex()}{7:016x}"]))[0].ok


async def test_63_acking_an_orphan_lease_keeps_counters_above_zero(shard: Shard, clock: ManualClock) -> None:
    """Even with a known receipt, the counters stay correct."""
    await put_queue(shard, T, Q)
    until = shard.state.shard_clock.now_ms() + 60_000
    inject(
        shard, le={prefix(shard) + ORPHAN: lease(shard, until)}, li={deadline_key(prefix(shard), until, ORPHAN): b""}
    )
    await shard.ack(T, Q, [f"{ORPHAN.hex()}{7:016x}"])
    stats = shard.reads.stats(T, Q)
    assert stats.in_flight >= 0
    assert stats.bytes >= 0


async def test_63_orphan_expiry_entries_are_collected(shard: Shard, clock: ManualClock) -> None:
    """Covers messages, keys, results, and an unknown kind."""
    await shard.add(T, Q, [message("a", ttl_ms=1_000)])
    now = shard.state.shard_clock.now_ms()
    kinds = (EXPIRES_TTL, EXPIRES_KEY, EXPIRES_RESULT, b"?")
    inject(shard, ex={expiry_key(prefix(shard), now + 500, kind, ORPHAN): b"" for kind in kinds})
    await pass_time(shard, clock, 1_000)
    assert count(shard, "ex") == 0
    assert shard.reads.stats(T, Q).expired_total == 1
    await works(shard)


async def test_63_wrong_expiry_entry_does_not_end_a_message_early(shard: Shard, clock: ManualClock) -> None:
    """The message's own TTL counts."""
    (added,) = await shard.add(T, Q, [message("a", ttl_ms=10_000)])
    now = shard.state.shard_clock.now_ms()
    await shard.add(T, Q, [message("b", ttl_ms=500)])
    inject(shard, ex={expiry_key(prefix(shard), now + 500, EXPIRES_TTL, added.raw_id): b""})
    await pass_time(shard, clock, 1_000)
    assert [one.body for one in (await shard.reads.peek(T, Q)).messages] == [b"a"]
    await pass_time(shard, clock, 9_000)
    assert (await shard.reads.peek(T, Q)).messages == []


async def test_63_wrong_expiry_entry_does_not_end_a_key_early(shard: Shard, clock: ManualClock) -> None:
    """The key's own window counts, and ends on time."""
    await put_queue(shard, T, Q, dedup_ms=10_000)
    await shard.add(T, Q, [message("a", key="k"), message("b", ttl_ms=500)])
    early = shard.state.shard_clock.now_ms() + 500
    inject(shard, ex={expiry_key(prefix(shard), early, EXPIRES_KEY, digest(b"k")): b""})
    await pass_time(shard, clock, 1_000)
    assert (await shard.add(T, Q, [message("a", key="k")]))[0].duplicate
    await pass_time(shard, clock, 9_000)
    assert (count(shard, "ik"), count(shard, "ex")) == (0, 0)


async def test_63_group_member_without_a_body_is_skipped(shard: Shard) -> None:
    """The group continues with the next real one, and no message stays counted as blocked."""
    _, lost, _ = await shard.add(T, Q, [message(body, group="g") for body in ("a", "lost", "b")])
    lose(shard, lost.raw_id)
    assert await consume(shard) == [b"a", b"b"]
    assert [row.details for row in healed(shard)] == ["group member without a body"]
    stats = shard.reads.stats(T, Q)
    assert (stats.healed_total, stats.blocked, stats.ready) == (1, 0, 0)
    assert count(shard, "gr") == 0


async def test_63_stray_group_member_is_skipped(shard: Shard) -> None:
    """The row of a message that never existed lies between two real ones."""
    first, _ = await shard.add(T, Q, [message("a", group="g"), message("b", group="g")])
    stray = (int.from_bytes(first.raw_id) + 1).to_bytes(16)
    inject(shard, gr={prefix(shard) + digest(b"g") + stray: b""})
    assert await consume(shard) == [b"a", b"b"]
    assert shard.reads.stats(T, Q).healed_total == 1
    assert count(shard, "gr") == 0


@pytest.mark.parametrize("restart", [False, True])
async def test_63_group_with_a_missing_head_is_not_blocked_forever(open_shard: OpenShard, *, restart: bool) -> None:
    """Messages added later are delivered."""
    shard = await open_shard()
    await put_queue(shard, T, Q)
    group = prefix(shard) + digest(b"g")
    inject(shard, gr={group: ORPHAN, group + ORPHAN: b""})
    if restart:
        await shard.close()
        shard = await open_shard()
    await shard.add(T, Q, [message("a", group="g"), message("b", group="g")])
    assert await consume(shard) == [b"a", b"b"]
    assert shard.reads.stats(T, Q).healed_total >= 1
    assert healed(shard)


async def test_63_group_continues_when_the_body_of_its_head_is_lost(shard: Shard) -> None:
    """Healing the index row also removes the message from its group."""
    lost, _ = await shard.add(T, Q, [message("lost", group="g"), message("next", group="g")])
    lose(shard, lost.raw_id)
    assert await consume(shard) == [b"next"]
    assert shard.reads.stats(T, Q).healed_total >= 1


async def test_63_counters_without_rows_are_corrected(open_shard: OpenShard, clock: ManualClock) -> None:
    """A poll trusts the rows, not the counter, also for delayed messages."""
    shard = await open_shard()
    added = await shard.add(T, Q, [message("a"), message("b", delay_ms=1_000)])
    now = shard.state.shard_clock.now_ms()
    batch = shard.state.store.new_batch()
    batch.delete(waiting_key(prefix(shard), 0, now, added[0].raw_id), shard.state.store.vi.handle)
    batch.delete(waiting_key(prefix(shard), 0, now + 1_000, added[1].raw_id), shard.state.store.vi.handle)
    shard.state.store.write(batch)
    await shard.close()
    shard = await open_shard()
    await asyncio.wait_for(shard.poll(T, Q), 5)
    await pass_time(shard, clock, 1_000)
    assert any("counted but not found" in row.details for row in healed(shard))
    got = [one.body for _ in range(3) for one in await shard.poll(T, Q, max=9)]
    assert sorted(got) == [b"a", b"b"]  # they were unreachable, and are queued again
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.in_flight) == (0, 0, 2)


async def test_63_long_poll_survives_healing(shard: Shard) -> None:
    """An orphan neither ends it early nor makes it loop forever."""
    await put_queue(shard, T, Q)
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=60_000))
    await wait_until_idle(shard)
    lost = (await shard.add(T, "elsewhere", [message()]))[0].raw_id
    inject(shard, vi={waiting_key(prefix(shard), 0, shard.state.shard_clock.now_ms() - 1, lost): b""})
    shard.state.catalog.tenant(T).queues[Q].level(0).cursor = b""
    await shard.add(T, Q, [message("real")])
    assert [one.body for one in await asyncio.wait_for(waiting, 5)] == [b"real"]
