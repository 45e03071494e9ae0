"""Groups and FIFO queues: at most one message in flight, and never reordered."""

import asyncio
import random

import pytest

from tenantq.runtime.clock import ManualClock
from tests.administration import finished, put_queue
from tests.conftest import OpenShard
from tests.shards import T, message, pass_time, wait_until_idle
from tests.verbs import Shard

Q = "work"
FIFO = "orders.fifo"


async def add(shard: Shard, bodies: str, group: str | None = "g", queue: str = Q, **fields: object) -> list[str]:
    """Add one message per letter and return their IDs."""
    added = await shard.add(T, queue, [message(letter, group=group, **fields) for letter in bodies])
    return [one.id for one in added]


async def drain(shard: Shard, queue: str = Q) -> str:
    """Deliver and ack everything, and return the bodies in order."""
    order = ""
    while got := await shard.poll(T, queue, max=100):
        order += "".join(one.body.decode() for one in got)
        await shard.ack(T, queue, [one.receipt for one in got])
    return order


@pytest.mark.parametrize(("queue", "group"), [(Q, "g"), (FIFO, None), (FIFO, "g")])
async def test_a_group_has_one_message_in_flight_and_keeps_its_order(
    shard: Shard, queue: str, group: str | None
) -> None:
    """Messages of a FIFO queue without a group share one."""
    await add(shard, "abc", group, queue)
    (got,) = await shard.poll(T, queue, max=10)
    assert got.body == b"a"
    assert await shard.poll(T, queue, max=10) == []
    stats = shard.reads.stats(T, queue)
    assert (stats.ready, stats.blocked, stats.in_flight) == (2, 2, 1)
    await shard.ack(T, queue, [got.receipt])
    assert await drain(shard, queue) == "bc"
    stats = shard.reads.stats(T, queue)
    assert (stats.ready, stats.blocked, stats.in_flight, stats.bytes) == (0, 0, 0, 0)
    assert shard.state.store.scan(shard.state.store.gr, b"", b"\xff" * 64, 10) == []


async def test_groups_do_not_wait_for_each_other(shard: Shard) -> None:
    """They do not wait for messages without a group either."""
    await add(shard, "ab", "one")
    await add(shard, "cd", "two")
    await add(shard, "ef", None)
    assert [one.body for one in await shard.poll(T, Q, max=10)] == [b"a", b"c", b"e", b"f"]


async def test_a_priority_does_not_reorder_inside_a_group(shard: Shard) -> None:
    """The group's order is the order of adding."""
    await add(shard, "a", priority=0)
    await add(shard, "b", priority=9)
    await add(shard, "c", priority=5)
    assert await drain(shard) == "abc"


async def test_delayed_head_blocks_its_group(shard: Shard, clock: ManualClock) -> None:
    """Delays never reorder a group."""
    await add(shard, "a", delay_ms=1_000)
    await add(shard, "b")
    assert await shard.poll(T, Q, max=10) == []
    await pass_time(shard, clock, 1_000)
    assert await drain(shard) == "ab"


async def test_delay_of_a_blocked_member_runs(shard: Shard, clock: ManualClock) -> None:
    """It is still respected if the head finishes early."""
    await add(shard, "a")
    await add(shard, "b", delay_ms=1_000)
    await add(shard, "c", delay_ms=5_000)
    assert await drain(shard) == "a"
    await pass_time(shard, clock, 1_000)
    assert await drain(shard) == "b"
    await pass_time(shard, clock, 3_999)
    assert await drain(shard) == ""
    await pass_time(shard, clock, 1)
    assert await drain(shard) == "c"


async def test_nacked_head_blocks_its_group(shard: Shard, clock: ManualClock) -> None:
    """This includes its backoff."""
    await add(shard, "ab")
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt], delay_ms=1_000)
    assert await shard.poll(T, Q, max=10) == []
    await pass_time(shard, clock, 1_000)
    assert await drain(shard) == "ab"


async def test_released_head_stays_first(shard: Shard) -> None:
    """A release has no other effect."""
    await add(shard, "ab")
    (got,) = await shard.poll(T, Q)
    await shard.release(T, Q, [got.receipt])
    assert await drain(shard) == "ab"


async def test_expired_head_stays_first(shard: Shard, clock: ManualClock) -> None:
    """No later message overtakes it at the moment of expiry."""
    await add(shard, "ab")
    await shard.poll(T, Q, lease_ms=1_000)
    clock._pass(1_000)
    assert [one.body for one in await shard.poll(T, Q, max=10)] in ([], [b"a"])
    await pass_time(shard, clock, 60_000)
    assert await drain(shard) == "ab"


@pytest.mark.parametrize("queue", [Q, FIFO])
async def test_dead_letter_head_unblocks_its_group(shard: Shard, queue: str) -> None:
    """The dead letters of a FIFO queue go to a FIFO queue."""
    await put_queue(shard, T, queue, max_attempts=1)
    await add(shard, "abc", queue=queue)
    for expected in (b"a", b"b"):
        (got,) = await shard.poll(T, queue)
        assert got.body == expected
        await shard.nack(T, queue, [got.receipt])
    assert await drain(shard, queue) == "c"
    letters = "work-dlq" if queue == Q else "orders-dlq.fifo"
    assert await drain(shard, letters) == "ab"


async def test_removing_a_waiting_head_unblocks_its_group(shard: Shard) -> None:
    """Removing one in the middle keeps the order of the rest."""
    ids = await add(shard, "abcd")
    await shard.remove(T, Q, [ids[2], ids[0]])
    assert await drain(shard) == "bd"
    assert shard.reads.stats(T, Q).blocked == 0


async def test_removing_a_head_in_flight_unblocks_its_group(shard: Shard) -> None:
    """A waiting poll gets the next message at once."""
    ids = await add(shard, "ab")
    await shard.poll(T, Q)
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000))
    await wait_until_idle(shard)
    await shard.remove(T, Q, [ids[0]])
    assert [one.body for one in await waiting] == [b"b"]


async def test_removing_a_whole_group_in_one_batch_leaves_nothing(shard: Shard) -> None:
    """The IDs may be in any order."""
    ids = await add(shard, "abcdef")
    await shard.remove(T, Q, random.Random(3).sample(ids, 6))
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.blocked, stats.bytes) == (0, 0, 0)
    assert shard.state.store.scan(shard.state.store.gr, b"", b"\xff" * 64, 10) == []
    await add(shard, "g")
    assert await drain(shard) == "g"


async def test_expired_ttl_of_the_head_unblocks_its_group(shard: Shard, clock: ManualClock) -> None:
    """A blocked message past its TTL is never delivered."""
    await add(shard, "a", ttl_ms=1_000)
    await add(shard, "b")
    await add(shard, "c", ttl_ms=1_000)
    await add(shard, "d")
    await pass_time(shard, clock, 1_000)
    assert await drain(shard) == "bd"
    stats = shard.reads.stats(T, Q)
    assert (stats.expired_total, stats.blocked, stats.bytes) == (2, 0, 0)


async def test_nack_discards_a_head_past_its_ttl(shard: Shard, clock: ManualClock) -> None:
    """Its group continues."""
    await add(shard, "a", ttl_ms=1_000)
    await add(shard, "b")
    (got,) = await shard.poll(T, Q, lease_ms=10_000)
    await pass_time(shard, clock, 2_000)
    await shard.nack(T, Q, [got.receipt])
    assert await drain(shard) == "b"


@pytest.mark.parametrize("queue", [Q, FIFO])
async def test_redriving_a_group_keeps_its_order(shard: Shard, queue: str) -> None:
    """Letters blocked by their group in the dead-letter queue move too."""
    await put_queue(shard, T, queue, max_attempts=1)
    await add(shard, "abc", queue=queue)
    while got := await shard.poll(T, queue):
        await shard.nack(T, queue, [got[0].receipt])
    task = await shard.redrive(T, queue)
    await asyncio.wait_for(finished(shard, task), 10)
    assert task.progress.moved == 3
    assert await drain(shard, queue) == "abc"


async def test_a_restart_keeps_heads_members_and_order(open_shard: OpenShard, clock: ManualClock) -> None:
    """One is in flight, one delayed, several blocked."""
    shard = await open_shard()
    await add(shard, "abc", "one")
    await add(shard, "xy", "two", delay_ms=1_000)
    (got,) = await shard.poll(T, Q)
    await shard.close()
    shard = await open_shard()
    await add(shard, "d", "one")
    assert await shard.poll(T, Q, max=10) == []
    assert shard.reads.stats(T, Q).blocked == 4
    assert (await shard.ack(T, Q, [got.receipt]))[0].ok
    assert await drain(shard) == "bcd"
    await pass_time(shard, clock, 1_000)
    assert await drain(shard) == "xy"


async def test_concurrent_polls_never_share_a_group(shard: Shard) -> None:
    """This holds however the polls are matched."""
    await put_queue(shard, T, FIFO)
    polls = [asyncio.create_task(shard.poll(T, FIFO, max=5, wait_ms=1_000)) for _ in range(4)]
    await wait_until_idle(shard)
    for group in ("one", "two"):
        await add(shard, "abc", group, FIFO)
    await wait_until_idle(shard)
    held = [one.group for poll in polls if poll.done() for one in poll.result()]
    assert held == ["one", "two"]
    for poll in polls:
        poll.cancel()


@pytest.mark.parametrize("seed", range(2))
async def test_random_operations_keep_the_order_of_each_group(
    open_shard: OpenShard, clock: ManualClock, seed: int
) -> None:
    """Nacks, expiries, releases, acks and restarts over three groups."""
    dice = random.Random(seed)
    shard = await open_shard()
    await put_queue(shard, T, FIFO, max_attempts=0)
    for n in range(30):
        await shard.add(T, FIFO, [message(f"{n:03}", group=f"g{n % 3}", priority=dice.randrange(10))])
    finished: dict[str, list[str]] = {"g0": [], "g1": [], "g2": []}
    for _ in range(600):
        if sum(map(len, finished.values())) == 30:
            break
        got = await shard.poll(T, FIFO, max=dice.randint(1, 3), lease_ms=1_000)
        assert len({one.group for one in got}) == len(got)
        for one in got:
            end = dice.choice(["ack", "ack", "nack", "release", "expire"] * 4 + ["restart"])
            if end == "ack":
                assert (await shard.ack(T, FIFO, [one.receipt]))[0].ok
                finished[str(one.group)].append(one.body.decode())
            elif end == "nack":
                await shard.nack(T, FIFO, [one.receipt], delay_ms=dice.randrange(50))
            elif end == "release":
                await shard.release(T, FIFO, [one.receipt])
            elif end == "restart":
                await shard.close()
                shard = await open_shard()
        await pass_time(shard, clock, 1_000 if not got else 10)
    assert finished == {f"g{g}": [f"{n:03}" for n in range(g, 30, 3)] for g in range(3)}
