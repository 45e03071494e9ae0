"""Polls for whole groups get the head of a group and those behind it, and nothing is ever reordered."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tenantq.doctor.store_check import examine
from tests.administration import put_queue
from tests.shards import message, pass_time, wait_until_idle

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.domain.message import Delivery
    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard
    from tests.verbs import Shard

T, Q = "default", "line.fifo"


async def take(shard: Shard, max: int = 10, **options: object) -> list[Delivery]:
    """Lease whole groups."""
    return await shard.poll(T, Q, max=max, whole_groups=True, **options)  # type: ignore[arg-type]


def bodies(got: list[Delivery]) -> list[str]:
    """Return the received bodies, in order."""
    return [one.body.decode() for one in got]


async def fill(shard: Shard, *names: str) -> None:
    """Add messages named after group and number."""
    await shard.add(T, Q, [message(name, group=name.partition("-")[0]) for name in names])


async def test_group_is_delivered_together_and_in_order(shard: Shard) -> None:
    """As many as fit come before the next group; a poll without the option gets only heads."""
    await fill(shard, "a-1", "b-1", "a-2", "a-3", "b-2", "c-1")
    assert bodies(await take(shard, 4)) == ["a-1", "a-2", "a-3", "b-1"]
    assert bodies(await shard.poll(T, Q, max=10)) == ["c-1"]
    stats = shard.reads.stats(T, Q)
    assert (stats.in_flight, stats.blocked, stats.ready) == (5, 1, 1)


async def test_group_is_blocked_while_any_of_it_is_in_flight(shard: Shard) -> None:
    """They may be settled in any order."""
    await fill(shard, "a-1", "a-2", "a-3", "a-4")
    first, second, third = await take(shard, 3)
    await shard.ack(T, Q, [second.receipt])
    await shard.ack(T, Q, [first.receipt])
    assert await take(shard) == []
    await shard.ack(T, Q, [third.receipt])
    assert bodies(await take(shard)) == ["a-4"]


async def test_returned_message_comes_before_later_ones(shard: Shard, clock: ManualClock) -> None:
    """The head returns at once, a later one after those before it, and all when their leases end."""
    await fill(shard, "a-1", "a-2", "a-3")
    first, second, _ = await take(shard, lease_ms=1_000)
    await shard.nack(T, Q, [second.receipt], delay_ms=0)
    assert await take(shard) == []
    await shard.nack(T, Q, [first.receipt], delay_ms=0)
    again = await take(shard, lease_ms=1_000)
    assert bodies(again) == ["a-1", "a-2"]
    assert [one.attempt for one in again] == [2, 2]
    await pass_time(shard, clock, 1_001)
    assert bodies(await take(shard)) == ["a-1", "a-2", "a-3"]


async def test_delays_ttls_and_attempts_apply_inside_a_group(shard: Shard, clock: ManualClock) -> None:
    """A message that is not due ends the batch; an expired or dead one is removed."""
    await put_queue(shard, T, "dead.fifo")
    await put_queue(shard, T, Q, max_attempts=1, dead_letter="dead.fifo", dead_on_poll=True)
    await fill(shard, "a-1", "a-2", "a-3")
    await shard.add(T, Q, [message("a-4", group="a", delay_ms=5_000), message("a-5", group="a")])
    got = await take(shard, 2, lease_ms=1_000)
    await shard.ack(T, Q, [got[0].receipt])
    await pass_time(shard, clock, 1_001)
    assert bodies(await take(shard, lease_ms=1_000)) == ["a-3"]
    await wait_until_idle(shard)
    assert bodies(await shard.poll(T, "dead.fifo", max=10)) == ["a-2"]
    assert shard.reads.stats(T, Q).blocked == 2


async def test_dead_letter_that_cannot_move_is_not_overtaken(shard: Shard, clock: ManualClock) -> None:
    """Its dead-letter queue is missing, so it blocks its group."""
    await put_queue(shard, T, Q, dead_on_poll=True, dead_letter="letters.fifo")
    await shard.add(
        T, Q, [message("a-1", group="a"), message("a-2", group="a", max_attempts=1), message("a-3", group="a")]
    )
    first = await take(shard, 2)
    assert bodies(first) == ["a-1", "a-2"]
    await shard.nack(T, Q, [one.receipt for one in first], delay_ms=0)
    (again,) = await take(shard)
    assert again.body == b"a-1"
    await shard.ack(T, Q, [again.receipt])
    assert await take(shard) == []
    await put_queue(shard, T, "letters.fifo")
    await pass_time(shard, clock, 60_000)
    assert bodies(await take(shard)) == ["a-3"]
    assert shard.reads.stats(T, Q).dead == 1


@pytest.mark.rocksdb_only("the doctor looks at what is on disk")
@pytest.mark.parametrize("seed", range(3))
async def test_random_operations_keep_order_and_counters(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path, seed: int
) -> None:
    """In each group, first deliveries follow the order of adding, and the doctor finds nothing."""
    dice = random.Random(seed)
    shard = await open_shard(f"data{seed}")
    await put_queue(shard, T, Q, max_attempts=0)
    held: list[Delivery] = []
    seen: dict[str, list[int]] = {}  # numbers of each group, in order of first delivery
    for number in range(400):
        act = dice.random()
        if act < 0.35:
            await fill(shard, *(f"{dice.choice('abc')}-{number}{at}" for at in range(dice.randint(1, 4))))
        elif act < 0.65:
            for one in await shard.poll(
                T, Q, max=dice.randint(1, 6), whole_groups=dice.random() < 0.8, lease_ms=dice.choice((500, 5_000))
            ):
                group, _, at = one.body.decode().partition("-")
                if int(at) not in seen.setdefault(group, []):
                    seen[group].append(int(at))
                held.append(one)
        elif act < 0.95 and held:
            one = held.pop(dice.randrange(len(held)))
            how = dice.random()
            if how < 0.5:
                await shard.ack(T, Q, [one.receipt])
            elif how < 0.8:
                await shard.nack(T, Q, [one.receipt], delay_ms=dice.choice((0, 300)))
            elif how < 0.9:
                await shard.release(T, Q, [one.receipt])
            else:
                await shard.remove(T, Q, [one.raw_id])
        else:
            await pass_time(shard, clock, dice.choice((10, 600)))
    for numbers in seen.values():
        assert numbers == sorted(numbers)
    await wait_until_idle(shard)
    await shard.close()
    report = examine(tmp_path / f"data{seed}")
    assert not report.findings, report.findings[:5]
