"""Order: priority first, then FIFO by (visible_at, id)."""

from tenantq.runtime.clock import ManualClock
from tests.administration import put_queue
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time
from tests.verbs import Shard


async def bodies(shard: Shard, max: int = 1_000) -> list[str]:
    """Poll and return the bodies in order of delivery."""
    return [one.body.decode() for one in await shard.poll(T, Q, max=max)]


async def test_21_fifo_within_one_queue_and_priority_for_a_single_consumer(shard: Shard) -> None:
    """This holds within and across batches, polled one by one or many at once."""
    for start in range(0, 60, 20):
        await shard.add(T, Q, [message(f"{n:02}") for n in range(start, start + 20)])
    order = [body for size in (1, 1, 5, 13, 40) for body in await bodies(shard, size)]
    assert order == [f"{n:02}" for n in range(60)]


async def test_21_fifo_also_across_restart(open_shard: OpenShard, clock: ManualClock) -> None:
    """A message added after the restart, in the same millisecond, comes after earlier ones."""
    shard = await open_shard()
    await shard.add(T, Q, [message(f"{n:02}") for n in range(10)])
    first = await bodies(shard, 3)
    await shard.close()
    shard = await open_shard()
    await shard.add(T, Q, [message(f"{n:02}") for n in range(10, 20)])
    await shard.close()
    clock.advance(5)
    shard = await open_shard()
    await shard.add(T, Q, [message(f"{n:02}") for n in range(20, 25)])
    assert first + await bodies(shard) == [f"{n:02}" for n in range(25)]


async def test_21_order_is_by_the_time_a_message_becomes_visible(shard: Shard, clock: ManualClock) -> None:
    """A delayed message comes after those visible before it."""
    await shard.add(T, Q, [message("delayed", delay_ms=50)])
    await pass_time(shard, clock, 20)
    await shard.add(T, Q, [message("between")])
    await pass_time(shard, clock, 60)
    await shard.add(T, Q, [message("last")])
    assert await bodies(shard) == ["between", "delayed", "last"]


async def test_21_message_due_before_a_new_one_is_added_comes_first(shard: Shard, clock: ManualClock) -> None:
    """No timer needs to run between the two."""
    await shard.add(T, Q, [message("delayed", delay_ms=50)])
    clock._pass(60)
    await shard.add(T, Q, [message("new")])
    await pass_time(shard, clock, 0)
    assert await bodies(shard) == ["delayed", "new"]


async def test_22_higher_priority_first(shard: Shard) -> None:
    """Covers all ten levels, added in any order."""
    for priority in (3, 9, 0, 7, 1, 8, 2, 6, 5, 4):
        await shard.add(T, Q, [message(str(priority), priority=priority)])
    assert await bodies(shard) == [str(n) for n in range(9, -1, -1)]


async def test_22_a_higher_priority_added_later_overtakes(shard: Shard) -> None:
    """The next poll sees it."""
    await shard.add(T, Q, [message("low1"), message("low2")])
    assert await bodies(shard, 1) == ["low1"]
    await shard.add(T, Q, [message("high", priority=5)])
    assert await bodies(shard, 1) == ["high"]
    assert await bodies(shard, 1) == ["low2"]


async def test_delayed_high_priority_does_not_block_lower_ones(shard: Shard, clock: ManualClock) -> None:
    """Only visible messages compete."""
    await shard.add(T, Q, [message("high", priority=9, delay_ms=1_000), message("low")])
    assert await bodies(shard) == ["low"]
    await pass_time(shard, clock, 1_000)
    assert await bodies(shard) == ["high"]


async def test_cursor_goes_back_for_a_message_that_returns(shard: Shard) -> None:
    """Everything after it was consumed."""
    await shard.add(T, Q, [message(str(n)) for n in range(5)])
    first, *_ = await shard.poll(T, Q, max=4)
    await shard.release(T, Q, [first.receipt])
    assert await bodies(shard) == ["0", "4"]


async def test_28_message_due_in_48_hours_survives_and_is_delivered(open_shard: OpenShard, clock: ManualClock) -> None:
    """Neither the queue's TTL, nor a restart, nor the retention of keys discards it."""
    two_days = 48 * 3_600_000
    shard = await open_shard()
    await put_queue(shard, T, Q, ttl_ms=60_000, dedup_ms=1_000, result_ttl_ms=1_000)
    (added,) = await shard.add(T, Q, [message("later", delay_ms=two_days, key="k")])
    await pass_time(shard, clock, two_days // 2)
    await shard.close()
    clock.advance(two_days // 4)
    shard = await open_shard()
    await pass_time(shard, clock, two_days // 4 - 1)
    assert await bodies(shard) == []
    assert (await shard.reads.get(T, Q, added.id)).state == "delayed"
    await pass_time(shard, clock, 1)
    assert await bodies(shard) == ["later"]


async def test_28_message_without_a_ttl_never_expires(shard: Shard, clock: ManualClock) -> None:
    """A year later it is still there."""
    await shard.add(T, Q, [message("old")])
    await pass_time(shard, clock, 366 * 86_400_000)
    assert await bodies(shard) == ["old"]
