"""Clocks: the wall clock may jump either way; leases and delays run on elapsed time."""

import pytest

from tenantq.runtime.clock import ManualClock
from tests.administration import put_queue
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time
from tests.verbs import Shard

HOUR = 3_600_000


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_69_wall_clock_jump_changes_no_delay(shard: Shard, clock: ManualClock, jump: int) -> None:
    """Delays end neither early nor late."""
    await shard.add(T, Q, [message(delay_ms=60_000)])
    clock.jump_wall(jump)
    await pass_time(shard, clock, 59_999)
    assert await shard.poll(T, Q) == []
    await pass_time(shard, clock, 1)
    assert len(await shard.poll(T, Q)) == 1


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_69_wall_clock_jump_loses_no_lease(shard: Shard, clock: ManualClock, jump: int) -> None:
    """The lease keeps its length; its displayed end follows the corrected clock."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=10_000)
    clock.jump_wall(jump)
    await pass_time(shard, clock, 9_999)
    facts = await shard.reads.get(T, Q, got.id)
    assert (facts.state, facts.lease_until) == ("in_flight", clock.wall_ms() + 1)
    assert (await shard.extend(T, Q, [got.receipt], lease_ms=1_000))[0].lease_until == clock.wall_ms() + 1_000
    assert (await shard.ack(T, Q, [got.receipt]))[0].ok


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_69_jump_while_the_shard_is_down_changes_nothing(
    open_shard: OpenShard, clock: ManualClock, jump: int
) -> None:
    """The machine stayed up, so the elapsed time is known."""
    shard = await open_shard()
    await shard.add(T, Q, [message("held"), message("delayed", delay_ms=60_000)])
    (got,) = await shard.poll(T, Q, lease_ms=60_000)
    await shard.close()
    clock.jump_wall(jump)
    clock.advance(30_000)
    shard = await open_shard()
    await pass_time(shard, clock, 29_999)
    assert await shard.poll(T, Q, max=9) == []
    assert (await shard.ack(T, Q, [got.receipt]))[0].ok
    await pass_time(shard, clock, 1)
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"delayed"]


@pytest.mark.rocksdb_only(
    "on Redis the store's clock says how long the shard was closed: tests/redis_store/test_ownership.py"
)
@pytest.mark.parametrize("jump", [HOUR, -HOUR, 0])
async def test_69_after_a_reboot_nothing_is_early_by_more_than_the_jump(
    open_shard: OpenShard, clock: ManualClock, jump: int
) -> None:
    """Only the wall clock shows how long the machine was off, and it is trusted."""
    delay = 3 * HOUR
    shard = await open_shard()
    await shard.add(T, Q, [message(delay_ms=delay)])
    await shard.close()
    clock.advance(HOUR)  # really off for an hour
    clock.jump_wall(jump)
    clock.reboot()
    shard = await open_shard()
    passed = max(0, HOUR + jump)  # what the wall clock says; time never goes back
    await pass_time(shard, clock, delay - passed - 1)
    assert await shard.poll(T, Q) == []
    await pass_time(shard, clock, 1)
    assert len(await shard.poll(T, Q)) == 1


@pytest.mark.rocksdb_only(
    "on Redis the store's clock says how long the shard was closed: tests/redis_store/test_ownership.py"
)
async def test_69_reboot_keeps_live_leases(open_shard: OpenShard, clock: ManualClock) -> None:
    """The receipt works until its deadline."""
    shard = await open_shard()
    await shard.add(T, Q, [message("a"), message("b")])
    short, long = await shard.poll(T, Q, max=2, lease_ms=60_000)
    await shard.extend(T, Q, [long.receipt], lease_ms=HOUR)
    await shard.close()
    clock.advance(60_000)
    clock.reboot()
    shard = await open_shard()
    outcomes = await shard.ack(T, Q, [short.receipt, long.receipt])
    assert [outcome.ok for outcome in outcomes] == [False, True]


async def test_69_order_survives_a_wall_clock_that_goes_back(open_shard: OpenShard, clock: ManualClock) -> None:
    """FIFO order uses the shard clock; IDs increase through jump, restart and reboot."""
    shard = await open_shard()
    ids = [one.raw_id for one in await shard.add(T, Q, [message("1")])]
    clock.jump_wall(-24 * HOUR)
    ids += [one.raw_id for one in await shard.add(T, Q, [message("2")])]
    await shard.close()
    shard = await open_shard()
    ids += [one.raw_id for one in await shard.add(T, Q, [message("3")])]
    await shard.close()
    clock.reboot()
    clock.jump_wall(-24 * HOUR)
    shard = await open_shard()
    ids += [one.raw_id for one in await shard.add(T, Q, [message("4")])]
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"1", b"2", b"3", b"4"]
    assert ids == sorted(ids)


async def test_69_a_lease_of_1500_ms_lasts_one_and_a_half_seconds(shard: Shard, clock: ManualClock) -> None:
    """Milliseconds are not rounded."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_500)
    assert got.lease_until == clock.wall_ms() + 1_500
    await pass_time(shard, clock, 1_499)
    assert await shard.poll(T, Q) == []
    assert (await shard.reads.get(T, Q, got.id)).state == "in_flight"
    await pass_time(shard, clock, 1)
    assert [one.attempt for one in await shard.poll(T, Q)] == [2]


async def test_69_keys_results_and_ttls_use_the_shard_clock(shard: Shard, clock: ManualClock) -> None:
    """A jump neither shortens nor extends them."""
    await put_queue(shard, T, Q, dedup_ms=10_000)
    await shard.add(T, Q, [message("x", key="k", ttl_ms=10_000)])
    clock.jump_wall(HOUR)
    await pass_time(shard, clock, 9_999)
    assert (await shard.add(T, Q, [message("x", key="k")]))[0].duplicate
    assert shard.reads.stats(T, Q).ready == 1
    clock.jump_wall(-5 * HOUR)
    await pass_time(shard, clock, 1)
    assert shard.reads.stats(T, Q).ready == 0
    assert not (await shard.add(T, Q, [message("x", key="k")]))[0].duplicate
