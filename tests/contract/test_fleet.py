"""Fleet polls: one worker fleet over a queue name in many tenants, in weighted fair turns."""

import asyncio
from collections import Counter

import pytest

from tenantq.domain.message import Delivery
from tenantq.errors import NotFound
from tenantq.runtime.clock import ManualClock
from tests.administration import delete_queue, put_queue, put_tenant
from tests.conftest import OpenShard
from tests.shards import Q, message, pass_time, wait_until_idle
from tests.verbs import Shard


async def tenants(shard: Shard, backlog: int, **weights: int) -> None:
    """Create tenants with a backlog each."""
    for name, weight in weights.items():
        await put_tenant(shard, name, weight=weight)
        for start in range(0, backlog, 1_000):
            await shard.add(name, Q, [message() for _ in range(min(1_000, backlog - start))])


async def finish(shard: Shard, got: list[Delivery]) -> None:
    """Ack deliveries of many tenants."""
    for one in got:
        assert (await shard.ack(one.tenant, one.queue, [one.receipt]))[0].ok


def shares(got: list[Delivery]) -> Counter[str]:
    """Return the number of deliveries of each tenant."""
    return Counter(one.tenant for one in got)


async def test_turns_follow_the_weights_among_tenants_with_work(shard: Shard) -> None:
    """The ratio is 3 : 1 : 1, within one message."""
    await tenants(shard, 200, ant=3, bee=1, cow=1)
    got = await shard.fleet_poll(Q, max=200)
    assert len(got) == 200
    for name, fair in (("ant", 120), ("bee", 40), ("cow", 40)):
        assert abs(shares(got)[name] - fair) <= 2


async def test_the_share_holds_over_many_small_polls(shard: Shard) -> None:
    """A worker that takes one at a time is as fair as one that takes many."""
    await tenants(shard, 100, ant=2, bee=1)
    got: list[Delivery] = []
    for _ in range(60):
        got += await shard.fleet_poll(Q)
    assert abs(shares(got)["ant"] - 40) <= 2


async def test_deep_backlog_gains_no_extra_share(shard: Shard) -> None:
    """Neither do many polls: fairness is per tenant."""
    await tenants(shard, 1_000, ant=1)
    await tenants(shard, 10, bee=1)
    polls = await asyncio.gather(*(shard.fleet_poll(Q, max=2) for _ in range(10)))
    assert shares([one for poll in polls for one in poll]) == {"ant": 10, "bee": 10}


async def test_fleet_is_work_conserving(shard: Shard) -> None:
    """A tenant alone gets everything, whatever its weight, and idle tenants cost nothing."""
    await tenants(shard, 5, ant=1000)
    await tenants(shard, 50, bee=1)
    await tenants(shard, 0, cow=9)
    got = await shard.fleet_poll(Q, max=100)
    assert shares(got) == {"ant": 5, "bee": 50}


async def test_returning_tenant_has_no_saved_turns(shard: Shard) -> None:
    """It is served next or nearly so, but does not catch up."""
    await tenants(shard, 1, ant=1)
    await tenants(shard, 400, bee=1)
    await finish(shard, await shard.fleet_poll(Q, max=200))
    await shard.add("ant", Q, [message() for _ in range(100)])
    got = await shard.fleet_poll(Q, max=20)
    assert "ant" in {one.tenant for one in got[:3]}
    assert abs(shares(got)["ant"] - 10) <= 1


@pytest.mark.parametrize("end", ["ack", "nack", "expiry"])
async def test_processing_time_is_charged(shard: Shard, clock: ManualClock, end: str) -> None:
    """A tenant whose work takes three times as long gets a third of the deliveries, so equal worker time.

    However its deliveries end: failing or letting leases run out is no way to get more.
    """
    await tenants(shard, 1_000, slow=1, fast=1)
    for name in ("slow", "fast"):
        await put_queue(shard, name, Q, max_attempts=0, lease_ms=300 if name == "slow" else 100)
    used: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for n in range(400):
        (got,) = await shard.fleet_poll(Q, lease_ms=None if end == "expiry" else 60_000)
        takes = 300 if got.tenant == "slow" else 100
        await pass_time(shard, clock, takes)
        if end == "ack":
            await finish(shard, [got])
        elif end == "nack":
            await shard.nack(got.tenant, Q, [got.receipt], delay_ms=0)
        if n >= 40:  # the average has settled
            used[got.tenant] += takes
            counted[got.tenant] += 1
    assert abs(used["slow"] / used.total() - 0.5) < 0.03
    assert abs(counted["fast"] / counted["slow"] - 3) < 0.3


async def test_fleet_poll_can_be_restricted_to_tenants(shard: Shard) -> None:
    """Messages of other tenants are neither delivered nor lost."""
    await tenants(shard, 10, ant=1, bee=1, cow=1)
    got = await shard.fleet_poll(Q, tenants=["ant", "cow"], max=100)
    assert shares(got) == {"ant": 10, "cow": 10}
    assert shares(await shard.fleet_poll(Q, max=100)) == {"bee": 10}
    with pytest.raises(NotFound):
        await shard.fleet_poll(Q, tenants=["ant", "nobody"])


async def test_polls_with_different_restrictions_are_served_in_one_round(shard: Shard) -> None:
    """Each gets only messages of its tenants."""
    for name in ("ant", "bee"):
        await put_tenant(shard, name)
        await put_queue(shard, name, Q)
    polls = [
        asyncio.create_task(shard.fleet_poll(Q, tenants=[name] if name else None, max=3, wait_ms=1_000))
        for name in ("ant", "bee", None)
    ]
    await wait_until_idle(shard)
    adds = [asyncio.create_task(shard.add(name, Q, [message() for _ in range(5)])) for name in ("ant", "bee")]
    await asyncio.gather(*adds)
    got = [await poll for poll in polls]
    assert {one.tenant for one in got[0]} == {"ant"}
    assert {one.tenant for one in got[1]} == {"bee"}
    assert got[2]


@pytest.mark.parametrize("later", [False, True])
async def test_work_of_any_tenant_wakes_a_waiting_fleet_poll(shard: Shard, clock: ManualClock, *, later: bool) -> None:
    """Covers a tenant created later, and a message that becomes due."""
    waiting = asyncio.create_task(shard.fleet_poll(Q, wait_ms=60_000))
    await wait_until_idle(shard)
    await put_tenant(shard, "newcomer")
    await shard.add("newcomer", Q, [message(delay_ms=5_000 if later else 0)])
    if later:
        await pass_time(shard, clock, 4_999)
        assert not waiting.done()
        await pass_time(shard, clock, 1)
    assert shares(await asyncio.wait_for(waiting, 5)) == {"newcomer": 1}


async def test_expired_lease_wakes_a_waiting_fleet_poll(shard: Shard, clock: ManualClock) -> None:
    """No other traffic is needed."""
    await tenants(shard, 1, ant=1)
    await shard.fleet_poll(Q, lease_ms=1_000)
    waiting = asyncio.create_task(shard.fleet_poll(Q, wait_ms=60_000))
    await pass_time(shard, clock, 1_000)
    assert [one.attempt for one in await asyncio.wait_for(waiting, 5)] == [2]


async def test_work_of_other_tenants_does_not_wake_a_restricted_poll(shard: Shard, clock: ManualClock) -> None:
    """It ends at its timeout."""
    await tenants(shard, 0, ant=1, bee=1)
    waiting = asyncio.create_task(shard.fleet_poll(Q, tenants=["ant"], wait_ms=1_000))
    await wait_until_idle(shard)
    await shard.add("bee", Q, [message()])
    await wait_until_idle(shard)
    assert not waiting.done()
    await pass_time(shard, clock, 1_000)
    assert await waiting == []
    assert shares(await shard.fleet_poll(Q)) == {"bee": 1}


async def test_queues_of_other_names_are_not_touched(shard: Shard) -> None:
    """This includes their dead letters."""
    await tenants(shard, 1, ant=1)
    await shard.add("ant", "work-dlq", [message()])
    await shard.add("ant", "wor", [message()])
    assert [one.queue for one in await shard.fleet_poll(Q, max=9)] == [Q]
    assert await shard.fleet_poll("nothing-of-that-name") == []


async def test_deleted_tenants_and_queues_drop_out(shard: Shard) -> None:
    """The others are still served."""
    await tenants(shard, 5, ant=1, bee=1, cow=1)
    await shard.fleet_poll(Q, max=3)
    await shard.erasure.delete_tenant("ant")
    await delete_queue(shard, "bee", Q, force=True)
    assert shares(await shard.fleet_poll(Q, max=50)) == {"cow": 4}


async def test_direct_and_fleet_polls_share_a_queue(shard: Shard) -> None:
    """Nothing is delivered twice or left behind."""
    await tenants(shard, 30, ant=1, bee=1)
    seen: list[str] = []
    for _ in range(40):
        seen += [one.id for one in await shard.fleet_poll(Q, max=2)]
        seen += [one.id for one in await shard.poll("ant", Q)]
    assert len(seen) == len(set(seen)) == 60


async def test_fleet_works_after_a_restart(open_shard: OpenShard) -> None:
    """Its lane is rebuilt from the existing queues."""
    shard = await open_shard()
    await tenants(shard, 10, ant=1, bee=1)
    await shard.close()
    shard = await open_shard()
    assert shares(await shard.fleet_poll(Q, max=10)) == {"ant": 5, "bee": 5}


async def test_each_queue_of_a_fleet_uses_its_own_lease_time(shard: Shard, clock: ManualClock) -> None:
    """A lease time in the poll overrides it."""
    await tenants(shard, 2, ant=1, bee=1)
    await put_queue(shard, "ant", Q, lease_ms=1_000)
    await put_queue(shard, "bee", Q, lease_ms=2_000)
    now = clock.wall_ms()
    got = {one.tenant: one.lease_until - now for one in await shard.fleet_poll(Q, max=2)}
    assert got == {"ant": 1_000, "bee": 2_000}
    assert {one.lease_until - now for one in await shard.fleet_poll(Q, max=2, lease_ms=500)} == {500}
