"""Leases: one holder at a time, fenced by deadline and token."""

import asyncio
import random

import pytest

from tenantq.domain.message import Caller, Outcome, Result
from tenantq.errors import Invalid, LeaseLost
from tenantq.runtime.clock import ManualClock
from tests.administration import put_queue, put_tenant
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time, wait_until_idle
from tests.verbs import Shard


def deadlines(shard: Shard) -> int:
    """Return the number of stored lease deadlines."""
    return len(shard.state.store.scan(shard.state.store.li, b"", b"\xff" * 33, 10_000))


def was_lost(outcome: Outcome) -> bool:
    """Return whether a receipt was refused because its lease has ended."""
    return not outcome.ok and isinstance(outcome.error, LeaseLost) and outcome.error.status == 409


async def test_01_after_lease_expiry_ack_with_the_old_lease_is_rejected_even_before_the_sweeper_ran(
    shard: Shard, clock: ManualClock
) -> None:
    """The deadline counts, not the sweeper: time passes here without any timer firing."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    clock._pass(1_000)
    (outcome,) = await shard.ack(T, Q, [got.receipt])
    assert was_lost(outcome)
    await pass_time(shard, clock, 0)
    (again,) = await shard.poll(T, Q)
    assert (again.id, again.attempt) == (got.id, 2)


async def test_01_lease_is_valid_one_millisecond_before_its_end(shard: Shard, clock: ManualClock) -> None:
    """It is the other side of the boundary."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    await pass_time(shard, clock, 999)
    assert (await shard.ack(T, Q, [got.receipt]))[0].ok


async def test_02_after_lease_expiry_extend_returns_false_and_creates_no_expiry_entry(
    shard: Shard, clock: ManualClock
) -> None:
    """This holds before and after the sweeper ran."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    clock._pass(1_000)
    assert deadlines(shard) == 1
    assert was_lost((await shard.extend(T, Q, [got.receipt], lease_ms=5_000))[0])
    await pass_time(shard, clock, 0)
    assert deadlines(shard) == 0
    assert was_lost((await shard.extend(T, Q, [got.receipt], lease_ms=5_000))[0])
    assert deadlines(shard) == 0


async def test_03_ack_with_another_messages_or_a_random_lease_changes_nothing(shard: Shard, clock: ManualClock) -> None:
    """Receipts combined from two messages, random ones and garbage are refused alike."""
    await shard.add(T, Q, [message("a"), message("b")])
    first, second = await shard.poll(T, Q, max=2)
    crossed = first.receipt[:32] + second.receipt[32:]
    rubbish = ["", "x" * 48, first.receipt[:-1], first.receipt + "0", "é" * 48, first.receipt[:32] + "0" * 16]
    wrong = [crossed, random.Random(1).randbytes(24).hex(), *rubbish]
    assert all(was_lost(outcome) for outcome in await shard.ack(T, Q, wrong))
    assert shard.reads.stats(T, Q).in_flight == 2
    assert (await shard.reads.get(T, Q, first.id)).state == "in_flight"
    assert [outcome.ok for outcome in await shard.ack(T, Q, [first.receipt, second.receipt])] == [True, True]


async def test_04_second_ack_of_the_same_message_returns_false_and_has_no_second_effect(shard: Shard) -> None:
    """It comes in a later call or in the same batch."""
    await shard.add(T, Q, [message("a"), message("b")])
    first, second = await shard.poll(T, Q, max=2)
    assert (await shard.ack(T, Q, [first.receipt]))[0].ok
    assert was_lost((await shard.ack(T, Q, [first.receipt]))[0])
    outcomes = await shard.ack(T, Q, [second.receipt, second.receipt])
    assert outcomes[0].ok
    assert was_lost(outcomes[1])
    stats = shard.reads.stats(T, Q)
    assert (stats.acked_total, stats.in_flight, stats.bytes) == (2, 0, 0)


@pytest.mark.parametrize("settle", ["ack", "nack", "release"])
async def test_04_settled_receipt_cannot_be_used_again(shard: Shard, settle: str) -> None:
    """It does not matter how the lease ended."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    first = {
        "ack": shard.ack(T, Q, [got.receipt]),
        "nack": shard.nack(T, Q, [got.receipt], delay_ms=0),
        "release": shard.release(T, Q, [got.receipt]),
    }
    for name, call in first.items():
        if name == settle:
            assert (await call)[0].ok
        else:
            call.close()
    assert was_lost((await shard.ack(T, Q, [got.receipt]))[0])
    assert was_lost((await shard.nack(T, Q, [got.receipt]))[0])
    assert was_lost((await shard.release(T, Q, [got.receipt]))[0])
    assert was_lost((await shard.extend(T, Q, [got.receipt], lease_ms=1))[0])


async def test_05_extend_sets_expiry_to_now_plus_n_and_leaves_exactly_one_expiry(
    shard: Shard, clock: ManualClock
) -> None:
    """After many extends, the message returns once, at the last deadline."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    for _ in range(5):
        await pass_time(shard, clock, 500)
        (outcome,) = await shard.extend(T, Q, [got.receipt], lease_ms=1_000)
        assert outcome.ok
        assert outcome.lease_until == clock.wall_ms() + 1_000
        assert deadlines(shard) == 1
    await pass_time(shard, clock, 999)
    assert await shard.poll(T, Q) == []
    await pass_time(shard, clock, 1)
    (again,) = await shard.poll(T, Q, max=10)
    assert (again.id, again.attempt) == (got.id, 2)
    assert shard.reads.stats(T, Q).lease_expired_total == 1


async def test_05_extend_can_shorten_a_lease(shard: Shard, clock: ManualClock) -> None:
    """The new end may be before the old one."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=60_000)
    await shard.extend(T, Q, [got.receipt], lease_ms=100)
    await pass_time(shard, clock, 100)
    assert [again.id for again in await shard.poll(T, Q)] == [got.id]


async def test_05_extending_twice_in_one_batch_leaves_one_expiry(shard: Shard) -> None:
    """The second extend sees the first."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    outcomes = await shard.extend(T, Q, [got.receipt, got.receipt], lease_ms=1_000)
    assert [outcome.ok for outcome in outcomes] == [True, True]
    assert deadlines(shard) == 1


async def test_06_extend_of_unknown_lease_is_false_and_with_0_seconds_an_argument_error(shard: Shard) -> None:
    """Arguments are checked before anything is looked up."""
    await shard.add(T, Q, [message()])
    assert was_lost((await shard.extend(T, Q, ["0" * 31 + "1" * 17], lease_ms=1_000))[0])
    for wrong in (0, -1, True, 1.5, "1", None):
        with pytest.raises(Invalid, match="lease_ms"):
            await shard.extend(T, Q, ["0" * 48], lease_ms=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["lease_ms", "max"])
async def test_07_poll_with_lease_0_or_max_0_is_an_argument_error(shard: Shard, argument: str) -> None:
    """Nothing is leased."""
    await shard.add(T, Q, [message()])
    for wrong in (0, -1, True, 1.0, 10**12):
        with pytest.raises(Invalid, match=argument):
            await shard.poll(T, Q, **{argument: wrong})  # type: ignore[arg-type]
        with pytest.raises(Invalid, match=argument):
            await shard.fleet_poll(Q, **{argument: wrong})  # type: ignore[arg-type]
    assert shard.reads.stats(T, Q).in_flight == 0


async def test_08_an_expired_message_is_redelivered_to_another_consumer_with_attempts_plus_1(
    shard: Shard, clock: ManualClock
) -> None:
    """A waiting poller gets it at the deadline, without any other traffic."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=2_000, caller=Caller("first"))
    other = asyncio.create_task(shard.poll(T, Q, wait_ms=60_000, caller=Caller("second")))
    await pass_time(shard, clock, 1_999)
    assert not other.done()
    await pass_time(shard, clock, 1)
    (again,) = await other
    assert (again.id, got.attempt, again.attempt) == (got.id, 1, 2)
    assert again.receipt != got.receipt


async def test_09_the_late_workers_ack_after_a_reclaim_is_rejected_also_under_the_same_identity(
    shard: Shard, clock: ManualClock
) -> None:
    """The token fences, not the name; the late result is not stored."""
    same = Caller("worker-1")
    (added,) = await shard.add(T, Q, [message()])
    (late,) = await shard.poll(T, Q, lease_ms=1_000, caller=same)
    await pass_time(shard, clock, 1_000)
    (current,) = await shard.poll(T, Q, lease_ms=1_000, caller=same)
    stale = Result("completed", b"late")
    assert was_lost((await shard.ack(T, Q, [late.receipt], results=[stale], caller=same))[0])
    assert was_lost((await shard.nack(T, Q, [late.receipt], caller=same))[0])
    assert was_lost((await shard.extend(T, Q, [late.receipt], lease_ms=1, caller=same))[0])
    assert (await shard.reads.result(T, Q, added.id)).status == "pending"
    assert (await shard.ack(T, Q, [current.receipt], caller=same))[0].ok


async def test_09_a_late_result_in_one_batch_with_the_current_one_is_not_stored(
    shard: Shard, clock: ManualClock
) -> None:
    """Each result belongs to its receipt, not to the message named by both."""
    (added,) = await shard.add(T, Q, [message()])
    (late,) = await shard.poll(T, Q, lease_ms=1_000)
    await pass_time(shard, clock, 1_000)
    (current,) = await shard.poll(T, Q, lease_ms=1_000)
    results = [Result("completed", b"right"), Result("completed", b"late")]
    outcomes = await shard.ack(T, Q, [current.receipt, late.receipt], results=results)
    assert [outcome.ok for outcome in outcomes] == [True, False]
    assert (await shard.reads.result(T, Q, added.id)).value == b"right"


@pytest.mark.parametrize("early_ms", [2, 1, 0, -1])
async def test_10_a_heartbeat_racing_the_reaper_wins_without_redelivery_or_fails_loudly(
    shard: Shard, clock: ManualClock, early_ms: int
) -> None:
    """Extend and sweep enter the same round; success and redelivery never occur together."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    await wait_until_idle(shard)
    heartbeat = asyncio.create_task(shard.extend(T, Q, [got.receipt], lease_ms=1_000))
    await asyncio.sleep(0)  # it is queued now
    clock.advance(1_000 - early_ms)
    (outcome,) = await heartbeat
    await pass_time(shard, clock, 5)
    redelivered = await shard.poll(T, Q)
    assert outcome.ok == (early_ms > 0)
    assert bool(redelivered) == (not outcome.ok)


async def test_11_n_pollers_and_m_messages_every_message_is_delivered_exactly_once(shard: Shard) -> None:
    """No lease ends meanwhile, and no message is missing."""
    added = [one.id for _ in range(4) for one in await shard.add(T, Q, [message(str(n)) for n in range(100)])]

    async def consume(size: int) -> list[str]:
        mine: list[str] = []
        while got := await shard.poll(T, Q, max=size):
            mine += [one.id for one in got]
        return mine

    taken = await asyncio.gather(*(consume(1 + n % 5) for n in range(16)))
    ids = [id for mine in taken for id in mine]
    assert len(ids) == len(set(ids)) == 400
    assert set(ids) == set(added)


async def test_19_coalesced_pollers_keep_their_own_lease_durations_and_messages(
    shard: Shard, clock: ManualClock
) -> None:
    """In one round, each lease ends at its own time, and each receipt fits one message."""
    await put_queue(shard, T, Q)
    polls = [asyncio.create_task(shard.poll(T, Q, lease_ms=ms, wait_ms=10_000)) for ms in (1_000, 2_000, 3_000)]
    await wait_until_idle(shard)
    rounds = shard.loop.figures.rounds
    await shard.add(T, Q, [message(str(n)) for n in range(3)])
    got = [(await poll)[0] for poll in polls]
    assert shard.loop.figures.rounds - rounds <= 3  # the add, and one round that served all of them
    assert len({one.id for one in got}) == 3
    start = clock.wall_ms()
    assert [one.lease_until - start for one in got] == [1_000, 2_000, 3_000]
    crossed = [got[0].receipt[:32] + got[1].receipt[32:], got[1].receipt[:32] + got[2].receipt[32:]]
    assert all(was_lost(outcome) for outcome in await shard.extend(T, Q, crossed, lease_ms=9_000))
    for n in range(3):
        await pass_time(shard, clock, 1_000)
        assert [one.id for one in await shard.poll(T, Q, max=5, lease_ms=60_000)] == [got[n].id]


async def test_23_release_returns_the_message_at_once_without_consuming_an_attempt(shard: Shard) -> None:
    """It returns to its old position."""
    await shard.add(T, Q, [message("a"), message("b")])
    for _ in range(10):
        (got,) = await shard.poll(T, Q)
        assert (got.body, got.attempt) == (b"a", 1)
        assert (await shard.release(T, Q, [got.receipt]))[0].ok
    facts = await shard.reads.get(T, Q, got.id)
    assert (facts.state, facts.attempts) == ("ready", 0)
    assert {entry.outcome for entry in facts.history} == {"released"}


async def test_23_releases_do_not_count_towards_max_attempts(shard: Shard) -> None:
    """Many releases do not make a dead letter."""
    await put_queue(shard, T, Q, max_attempts=1)
    await shard.add(T, Q, [message()])
    for _ in range(3):
        (got,) = await shard.poll(T, Q)
        await shard.release(T, Q, [got.receipt])
    assert shard.reads.stats(T, Q).dead_total == 0
    assert shard.reads.stats(T, Q).ready == 1


async def test_24_nack_with_delay_hides_it_that_long(shard: Shard, clock: ManualClock) -> None:
    """The delay is exact to the millisecond."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt], delay_ms=700)
    await pass_time(shard, clock, 699)
    assert await shard.poll(T, Q) == []
    await pass_time(shard, clock, 1)
    assert [again.attempt for again in await shard.poll(T, Q)] == [2]


async def test_24_nack_without_delay_uses_backoff_within_its_bound(shard: Shard, clock: ManualClock) -> None:
    """The backoff is a random part of min(base * 2^n, max), spread over the range."""
    await put_queue(shard, T, Q, backoff_base_ms=100, backoff_max_ms=350, max_attempts=0)
    await shard.add(T, Q, [message(str(n)) for n in range(200)])
    for bound in (100, 200, 350, 350):
        got = await shard.poll(T, Q, max=1_000)
        assert len(got) == 200
        await shard.nack(T, Q, [one.receipt for one in got])
        page = await shard.reads.peek(T, Q, limit=1_000)
        delays = [one.visible_at - clock.wall_ms() for one in page.messages]
        assert min(delays) >= 0
        assert max(delays) <= bound
        assert max(delays) - min(delays) > bound // 2  # jitter, not a constant
        await pass_time(shard, clock, bound)


async def test_24_nack_with_delay_0_returns_it_at_once(shard: Shard) -> None:
    """Zero is a delay, not "use the backoff"."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt], delay_ms=0)
    assert [again.attempt for again in await shard.poll(T, Q)] == [2]


async def test_60_restart_keeps_live_leases_and_requeues_expired_ones(
    open_shard: OpenShard, clock: ManualClock
) -> None:
    """A receipt from before the restart works until its deadline."""
    shard = await open_shard()
    await shard.add(T, Q, [message("short"), message("long")])
    (short,) = await shard.poll(T, Q, lease_ms=1_000)
    (long,) = await shard.poll(T, Q, lease_ms=60_000)
    await shard.close()
    clock.advance(1_000)
    shard = await open_shard()
    assert was_lost((await shard.ack(T, Q, [short.receipt]))[0])
    assert (await shard.ack(T, Q, [long.receipt]))[0].ok
    await wait_until_idle(shard)
    assert [(one.body, one.attempt) for one in await shard.poll(T, Q, max=9)] == [(b"short", 2)]


async def test_a_lease_token_is_never_zero_and_differs_with_every_delivery(shard: Shard) -> None:
    """Zero means "not leased" on disk."""
    await shard.add(T, Q, [message()])
    tokens = set()
    for _ in range(20):
        (got,) = await shard.poll(T, Q)
        tokens.add(got.receipt[32:])
        await shard.release(T, Q, [got.receipt])
    assert len(tokens) == 20
    assert "0" * 16 not in tokens


async def test_removing_a_leased_message_loses_its_lease(shard: Shard, clock: ManualClock) -> None:
    """Nothing happens at its former deadline."""
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    assert (await shard.remove(T, Q, [added.id]))[0].ok
    assert was_lost((await shard.ack(T, Q, [got.receipt]))[0])
    await pass_time(shard, clock, 2_000)
    assert await shard.poll(T, Q) == []
    stats = shard.reads.stats(T, Q)
    assert (stats.in_flight, stats.bytes, stats.lease_expired_total, stats.healed_total) == (0, 0, 0, 0)


async def test_changing_a_delivery_affects_no_other_tenant(shard: Shard) -> None:
    """Each delivery has its own attributes."""
    await put_tenant(shard, "acme")
    await shard.add(T, Q, [message()])
    await shard.add("acme", Q, [message()])
    (mine,) = await shard.poll(T, Q)
    mine.attributes["note"] = "mine"
    (other,) = await shard.poll("acme", Q)
    assert other.attributes == {}


async def test_18_expired_messages_do_not_use_up_a_pollers_turn(shard: Shard, clock: ManualClock) -> None:
    """Only delivered messages count."""
    await put_queue(shard, T, Q)
    await shard.add(T, Q, [message(ttl_ms=10), message(ttl_ms=10), message(), message()])
    clock._pass(10)  # no sweep has run
    polls = [asyncio.create_task(shard.poll(T, Q, max=2)) for _ in range(2)]
    assert [len(await poll) for poll in polls] == [1, 1]
    await wait_until_idle(shard)
