"""Long polls: woken by work, never cut short, and served fairly."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tenantq.domain.message import Delivery
from tenantq.engine.settings import ShardSettings
from tenantq.errors import Draining, Invalid, NotFound, Suspended, Unavailable
from tenantq.runtime.clock import ManualClock, SystemClock
from tests.administration import delete_queue, put_queue, put_tenant, resume_tenant, suspend_tenant
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time, wait_until_idle
from tests.verbs import Shard

GIVEN_UP_S = 20
"""After this much real time a poller that does not wake fails its test, instead of hanging it."""


async def test_12_a_delayed_message_is_never_early_and_reaches_a_waiting_poller_without_other_traffic(
    shard: Shard, clock: ManualClock
) -> None:
    """The queue's timer delivers it on the millisecond."""
    await shard.add(T, Q, [message(delay_ms=5_000)])
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=60_000))
    await pass_time(shard, clock, 4_999)
    assert not waiting.done()
    assert await shard.poll(T, Q) == []
    await pass_time(shard, clock, 1)
    assert len(await waiting) == 1


async def test_12_delays_are_kept_across_a_restart(open_shard: OpenShard, clock: ManualClock) -> None:
    """The timer is set again when the store opens."""
    shard = await open_shard()
    await shard.add(T, Q, [message(delay_ms=5_000)])
    await shard.close()
    clock.advance(4_000)
    shard = await open_shard()
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=60_000))
    await pass_time(shard, clock, 999)
    assert not waiting.done()
    await pass_time(shard, clock, 1)
    assert len(await waiting) == 1


async def test_12_shorter_delay_added_later_is_delivered_first(shard: Shard, clock: ManualClock) -> None:
    """This holds across priorities."""
    await shard.add(T, Q, [message("late", delay_ms=9_000, priority=9), message("mid", delay_ms=5_000)])
    await shard.add(T, Q, [message("soon", delay_ms=1_000, priority=3)])
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=60_000))
    await pass_time(shard, clock, 1_000)
    assert [one.body for one in await waiting] == [b"soon"]
    await pass_time(shard, clock, 4_000)
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"mid"]
    await pass_time(shard, clock, 4_000)
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"late"]


async def test_13_a_long_poll_is_not_cut_short_by_adding_an_invisible_message(shard: Shard, clock: ManualClock) -> None:
    """It waits its full time."""
    await put_queue(shard, T, Q)
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000))
    await wait_until_idle(shard)
    await shard.add(T, Q, [message(delay_ms=60_000)])
    await pass_time(shard, clock, 9_999)
    assert not waiting.done()
    await pass_time(shard, clock, 1)
    assert await waiting == []


async def test_14_a_long_poll_on_an_empty_queue_returns_empty_after_its_time(shard: Shard, clock: ManualClock) -> None:
    """It returns exactly at its timeout."""
    await put_queue(shard, T, Q)
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000))
    await pass_time(shard, clock, 9_999)
    assert not waiting.done()
    await pass_time(shard, clock, 1)
    assert await waiting == []


async def test_14_on_the_real_clock_too(open_shard: OpenShard) -> None:
    """Between t and t plus a generous tolerance."""
    shard = await open_shard(clock=SystemClock())
    await put_queue(shard, T, Q)
    start = time.monotonic()
    assert await shard.poll(T, Q, wait_ms=200) == []
    assert 0.19 <= time.monotonic() - start < 2


async def add_one(shard: Shard, _: str) -> None:
    """Add a message for the waiting poll."""
    await shard.add(T, Q, [message("wanted")])


async def nack_at_once(shard: Shard, receipt: str) -> None:
    """Nack the message without a delay."""
    await shard.nack(T, Q, [receipt], delay_ms=0)


async def release(shard: Shard, receipt: str) -> None:
    """Release the message."""
    await shard.release(T, Q, [receipt])


async def ack_the_head_of_its_group(shard: Shard, receipt: str) -> None:
    """Ack the head, so that the next of the group is delivered."""
    await shard.ack(T, Q, [receipt])


@pytest.mark.parametrize("cause", [add_one, nack_at_once, release, ack_the_head_of_its_group])
async def test_15_a_waiting_poller_wakes_on_add_in_the_next_round_and_no_time_passes(
    shard: Shard, clock: ManualClock, cause: Callable[[Shard, str], Awaitable[None]]
) -> None:
    """A message that returns to the queue wakes it too.

    The 20 ms of the promise are counted in rounds: the one of the add and the next. The clock stands still, so that no
    timer can be involved.
    """
    held = "wanted" if cause in {nack_at_once, release} else "head"
    await shard.add(T, Q, [message(held, group="g"), message("wanted", group="g")])
    (got,) = await shard.poll(T, Q)
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000))
    await wait_until_idle(shard)
    rounds, start = shard.loop.figures.rounds, clock.monotonic_ms()
    assert not waiting.done()
    await cause(shard, got.receipt)
    (woken,) = await asyncio.wait_for(waiting, GIVEN_UP_S)
    assert woken.body == b"wanted"
    assert shard.loop.figures.rounds - rounds == 2
    assert clock.monotonic_ms() == start


async def test_15_on_the_real_clock_too(open_shard: OpenShard) -> None:
    """The bound is loose, the wait is ten seconds."""
    shard = await open_shard(clock=SystemClock())
    await put_queue(shard, T, Q)
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000))
    await wait_until_idle(shard)
    start = time.monotonic()
    await shard.add(T, Q, [message()])
    assert len(await waiting) == 1
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("messages", [1, 20, 128])
async def test_16_one_add_of_k_messages_wakes_k_waiting_pollers_in_one_round(
    shard: Shard, clock: ManualClock, messages: int
) -> None:
    """The round after the add serves them all; the other polls keep waiting.

    The clock stands still, so no timer is involved.
    """
    await put_queue(shard, T, Q)
    pollers = [asyncio.create_task(shard.poll(T, Q, wait_ms=10_000)) for _ in range(messages + 7)]
    await wait_until_idle(shard)
    rounds, start = shard.loop.figures.rounds, clock.monotonic_ms()
    added = await shard.add(T, Q, [message() for _ in range(messages)])
    got = await asyncio.wait_for(asyncio.gather(*pollers[:messages]), GIVEN_UP_S)  # those who came first
    assert shard.loop.figures.rounds - rounds == 2
    assert clock.monotonic_ms() == start
    assert [one.id for (one,) in got] == [one.id for one in added]
    served_in = {row.seq for one in added for row in await shard.reads.trace(T, Q, one.id) if row.op == "poll"}
    assert len(served_in) == 1
    assert not any(poller.done() for poller in pollers[messages:])


async def test_17_a_poll_with_timeout_0_returns_immediately(shard: Shard) -> None:
    """The clock stands still, so it cannot have waited."""
    await put_queue(shard, T, Q)
    assert await shard.poll(T, Q) == []
    await shard.add(T, Q, [message(delay_ms=1)])
    assert await shard.poll(T, Q, wait_ms=0) == []


async def test_18_concurrent_polls_with_demands_5_3_1_and_6_messages_get_3_2_1(shard: Shard) -> None:
    """Messages are divided in turns, and no poll exceeds its request."""
    await put_queue(shard, T, Q)
    polls = [asyncio.create_task(shard.poll(T, Q, max=n, wait_ms=1_000)) for n in (5, 3, 1)]
    await wait_until_idle(shard)
    await shard.add(T, Q, [message() for _ in range(6)])
    assert [len(await poll) for poll in polls] == [3, 2, 1]


async def test_18_satisfied_polls_leave_the_rest_to_others(shard: Shard) -> None:
    """Turns go only to polls that want more."""
    await put_queue(shard, T, Q)
    polls = [asyncio.create_task(shard.poll(T, Q, max=n, wait_ms=1_000)) for n in (1, 9)]
    await wait_until_idle(shard)
    await shard.add(T, Q, [message() for _ in range(8)])
    assert [len(await poll) for poll in polls] == [1, 7]


@pytest.mark.parametrize("yields", range(6))
async def test_20_a_poller_that_disconnects_while_coalesced_loses_no_message_beyond_one_lease(
    shard: Shard, clock: ManualClock, yields: int
) -> None:
    """It may leave at any point of the round."""
    await put_queue(shard, T, Q)
    gone = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000, lease_ms=1_000))
    stays = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000, lease_ms=60_000))
    await wait_until_idle(shard)
    adding = asyncio.create_task(shard.add(T, Q, [message("a"), message("b")]))
    for _ in range(yields):
        await asyncio.sleep(0)
    gone.cancel()
    await adding
    (kept,) = await stays
    await pass_time(shard, clock, 1_000)
    (other,) = await shard.poll(T, Q, max=5)
    assert {kept.body, other.body} == {b"a", b"b"}


async def test_20_a_message_added_after_the_disconnect_goes_straight_to_the_next_poller(shard: Shard) -> None:
    """Nothing is leased to a caller that has left."""
    await put_queue(shard, T, Q)
    gone = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000))
    await wait_until_idle(shard)
    gone.cancel()
    await shard.add(T, Q, [message()])
    assert [one.attempt for one in await shard.poll(T, Q)] == [1]


@pytest.mark.parametrize("fleet", [False, True])
async def test_ended_polls_do_not_count_as_waiting(open_shard: OpenShard, clock: ManualClock, *, fleet: bool) -> None:
    """The limit applies to polls that wait now."""
    shard = await open_shard(settings=ShardSettings(waiting_polls_max=2))
    await put_queue(shard, T, Q)

    def poll() -> asyncio.Task[list[Delivery]]:
        call = shard.fleet_poll(Q, wait_ms=1_000) if fleet else shard.poll(T, Q, wait_ms=1_000)
        return asyncio.create_task(call)

    first = [poll(), poll()]
    await wait_until_idle(shard)
    with pytest.raises(Unavailable):
        await poll()
    await pass_time(shard, clock, 1_000)
    assert [await one for one in first] == [[], []]
    again = poll()
    await pass_time(shard, clock, 1_000)
    assert await again == []


async def test_cancelled_polls_do_not_count_as_waiting(open_shard: OpenShard) -> None:
    """A client that reconnects often cannot lock itself out."""
    shard = await open_shard(settings=ShardSettings(waiting_polls_max=2))
    await put_queue(shard, T, Q)
    for _ in range(5):
        task = asyncio.create_task(shard.poll(T, Q, wait_ms=1_000))
        await wait_until_idle(shard)
        task.cancel()
    assert await shard.poll(T, Q) == []


async def test_a_poll_of_an_unknown_tenant_is_not_found_at_once(shard: Shard) -> None:
    """Its wait does not matter."""
    with pytest.raises(NotFound, match="tenant"):
        await shard.poll("nobody", Q, wait_ms=10_000)


async def test_waiting_longer_than_the_limit_is_an_argument_error(shard: Shard) -> None:
    """The wait time has a limit."""
    for wrong in (-1, 300_001, True, 1.5):
        with pytest.raises(Invalid, match="wait_ms"):
            await shard.poll(T, Q, wait_ms=wrong)  # type: ignore[arg-type]


async def test_waiting_polls_of_a_deleted_queue_get_an_error(shard: Shard) -> None:
    """The reply is not empty, but has the reason."""
    await put_queue(shard, T, Q)
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000))
    await wait_until_idle(shard)
    await delete_queue(shard, T, Q)
    with pytest.raises(Draining):
        await waiting


async def test_waiting_polls_return_empty_when_the_shard_closes(shard: Shard) -> None:
    """A close does not wait for their time, and leases nothing to them."""
    await put_queue(shard, T, Q)
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=300_000))
    await wait_until_idle(shard)
    await shard.close()
    assert await waiting == []


async def test_20_messages_leased_to_a_cancelled_poll_return_at_once(shard: Shard) -> None:
    """It is cancelled between lease and reply: no attempt is used, and the lease is not waited for."""
    await shard.add(T, Q, [message(str(number)) for number in range(3)])
    poll = asyncio.ensure_future(shard.poll(T, Q, max=3, lease_ms=60_000))
    while shard.reads.stats(T, Q).in_flight == 0:  # noqa: ASYNC110  # the moment between the write and the reply has no event
        await asyncio.sleep(0)
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    await wait_until_idle(shard)
    again = await shard.poll(T, Q, max=3)
    assert [one.body for one in again] == [b"0", b"1", b"2"]
    assert [one.attempt for one in again] == [1, 1, 1]


@pytest.mark.parametrize("fleet", [False, True])
async def test_20_poll_cancelled_in_the_turn_of_its_reply_returns_its_messages(
    open_shard: OpenShard, *, fleet: bool
) -> None:
    """The reply was ready, but not received yet."""
    polls: list[asyncio.Task[list[Delivery]]] = []

    def leave(point: str) -> None:
        if point == "before_reply" and polls and not shard.state.lines and shard.reads.stats(T, Q).in_flight:
            asyncio.get_running_loop().call_soon(polls.pop().cancel)  # it runs before the poll's own next step

    shard = await open_shard(probe=leave)
    await put_queue(shard, T, Q)
    poll = asyncio.ensure_future(shard.fleet_poll(Q, wait_ms=9_000) if fleet else shard.poll(T, Q, wait_ms=9_000))
    await wait_until_idle(shard)
    polls.append(poll)
    await shard.add(T, Q, [message()])
    await asyncio.gather(poll, return_exceptions=True)
    assert poll.cancelled()
    await wait_until_idle(shard)
    assert [one.attempt for one in await shard.poll(T, Q)] == [1]


async def test_poll_waits_for_a_missing_queue_and_gets_its_first_message(shard: Shard, clock: ManualClock) -> None:
    """Polls of other missing queues keep waiting until their timeout."""
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000))
    other = asyncio.create_task(shard.poll(T, "other", wait_ms=10_000))
    await wait_until_idle(shard)
    assert not waiting.done()
    await shard.add(T, Q, [message("first")])
    assert [one.body for one in await waiting] == [b"first"]
    await pass_time(shard, clock, 9_999)
    assert not other.done()
    await pass_time(shard, clock, 1)
    assert await other == []


async def test_poll_of_a_missing_queue_fails_at_once_if_it_cannot_wait(shard: Shard) -> None:
    """This applies without a wait, and if adds do not create queues."""
    with pytest.raises(NotFound):
        await shard.poll(T, Q)
    await put_tenant(shard, T, create_queues=False)
    with pytest.raises(NotFound):
        await shard.poll(T, Q, wait_ms=10_000)


async def test_polls_of_missing_queues_end_with_their_tenant(shard: Shard) -> None:
    """Suspending or deleting it answers them."""
    await put_tenant(shard, "acme")
    waiting = asyncio.create_task(shard.poll("acme", Q, wait_ms=10_000))
    await wait_until_idle(shard)
    await suspend_tenant(shard, "acme")
    with pytest.raises(Suspended):
        await waiting
    with pytest.raises(Suspended):
        await shard.poll("acme", Q, wait_ms=10_000)
    await resume_tenant(shard, "acme")
    waiting = asyncio.create_task(shard.poll("acme", Q, wait_ms=10_000))
    await wait_until_idle(shard)
    await shard.erasure.delete_tenant("acme")
    with pytest.raises(NotFound):
        await waiting


async def test_polls_that_wait_for_missing_queues_are_limited_per_tenant(open_shard: OpenShard) -> None:
    """Polls that were cancelled make room."""
    shard = await open_shard(settings=ShardSettings(waiting_polls_max=2))
    waiting = [asyncio.create_task(shard.poll(T, f"q{at}", wait_ms=10_000)) for at in range(2)]
    await wait_until_idle(shard)
    with pytest.raises(Unavailable):
        await shard.poll(T, "q2", wait_ms=10_000)
    waiting[0].cancel()
    waiting.append(asyncio.create_task(shard.poll(T, "q2", wait_ms=10_000)))
    await wait_until_idle(shard)
    await shard.add(T, "q2", [message()])
    assert len(await waiting[2]) == 1
    await shard.close()
    assert await waiting[1] == []
