"""Behaviours 46, 47 and 48: quotas are exact, have no effect on refusal, reset on time, and warn."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.doctor.store_check import examine
from tenantq.domain.limits import DAY_MS, HOUR_MS
from tenantq.domain.message import SYSTEM
from tenantq.engine.ops.rights import ReportQuotas
from tenantq.engine.ops.spread import PrepareHome
from tenantq.engine.part_state import PartState
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.engine.settings import ShardSettings
from tenantq.engine.usage import Usage
from tenantq.errors import Draining, Limited, NotFound, QuotaExceeded, TenantqError, TooLarge
from tenantq.store.rocks import RocksStore
from tenantq.store.rows import unpack_message
from tests.administration import delete_queue, finished, purge, put_queue, put_tenant, queues, usage
from tests.crash.recount import JournalTally, recount
from tests.shards import freeze, journal_rows, message, pass_time, wait_until_idle

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.domain.message import AddResult, Delivery
    from tenantq.engine.state import QuotaEvent
    from tenantq.journal.record import JournalRow
    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard
    from tests.verbs import Shard

ACME, Q = "acme", "work"


async def acme(shard: Shard, **quotas: Any) -> None:
    """Create or change the tenant."""
    await put_tenant(shard, ACME, quotas=quotas)


async def add(shard: Shard, count: int = 1, queue: str = Q, **fields: Any) -> list[AddResult]:
    """Add this many messages of four bytes in one batch."""
    return await shard.add(ACME, queue, [message("body", **fields) for _ in range(count)])


def refusals(added: list[AddResult]) -> list[TenantqError]:
    """Return the errors in a reply."""
    return [one.error for one in added if one.error is not None]


def whole_state(shard: Shard) -> dict[str, Any]:
    """Return every row of the store except the journal, and the tenant's usage in memory."""
    store = shard.state.store
    rows = {}
    for name in ("meta", "m", "vi", "le", "li", "gr", "ik", "re", "ex", "qc"):
        rows[name] = dict(store.scan_items(store.family(name), b"", b"\xff" * 64, 100_000))
    return {**rows, "usage": usage(shard, ACME), "queues": queues(shard, ACME)}


# ---- 46: exact ----


@pytest.mark.parametrize("quota", ["messages_per_hour", "messages_per_day", "backlog"])
async def test_46_message_above_a_quota_is_refused(shard: Shard, quota: str) -> None:
    """The typed error has quota, limit and use; a message at the limit is accepted."""
    await acme(shard, **{quota: 3})
    for _ in range(3):
        assert not refusals(await add(shard))
    (error,) = refusals(await add(shard))
    assert isinstance(error, QuotaExceeded)
    assert (error.limit, error.current, error.tenant) == (3, 3, ACME)
    assert error.message.startswith(f"quotas.{quota}: exceeded (3 of 3 used)")
    assert error.retry_after_ms >= 1
    assert usage(shard, ACME)[quota] == 3


async def test_46_byte_above_the_quota_is_refused(shard: Shard) -> None:
    """Bodies and attributes count; a smaller message may still fit."""
    await acme(shard, stored_bytes=10)
    assert not refusals(await add(shard, 2))
    (error,) = refusals(await add(shard))
    assert isinstance(error, QuotaExceeded)
    assert (error.limit, error.current) == (10, 8)
    assert not refusals(await shard.add(ACME, Q, [message("ab")]))
    assert usage(shard, ACME)["stored_bytes"] == 10
    assert refusals(await shard.add(ACME, Q, [message("a")]))
    assert not refusals(await shard.add(ACME, Q, [message("")]))


async def test_46_message_above_the_size_limit_is_too_large(shard: Shard) -> None:
    """Attributes count; others of its batch are added."""
    await acme(shard, message_bytes=10)
    added = await shard.add(
        ACME, Q, [message("x" * 10), message("x" * 11), message("", attributes={"abc": "x" * 10}), message("x")]
    )
    assert [type(one.error) for one in added] == [type(None), TooLarge, TooLarge, type(None)]
    assert "10" in refusals(added)[0].message


async def test_46_queue_above_the_quota_is_refused(shard: Shard) -> None:
    """This covers explicit and implicit creation; dead-letter queues do not count."""
    await acme(shard, queues=2)
    await put_queue(shard, ACME, "one", max_attempts=1)
    await add(shard, queue="two")
    for act in (put_queue(shard, ACME, "three"), add(shard, queue="three")):
        with pytest.raises(QuotaExceeded) as caught:
            await act
        assert (caught.value.limit, caught.value.current) == (2, 2)
        assert caught.value.message.startswith("quotas.queues: ")
    await add(shard, queue="one")
    (got,) = await shard.poll(ACME, "one")
    await shard.nack(ACME, "one", [got.receipt])
    assert set(queues(shard, ACME)) == {"one", "one-dlq", "two"}
    assert usage(shard, ACME)["queues"] == 2
    await put_queue(shard, ACME, "one", lease_ms=5)  # changing an existing queue does not count
    await delete_queue(shard, ACME, "two", force=True)
    await wait_until_idle(shard)
    await put_queue(shard, ACME, "three")


async def test_46_system_queues_are_not_counted_after_a_restart(open_shard: OpenShard) -> None:
    """Deleting one does not lower the count."""
    shard = await open_shard()
    await acme(shard, queues=1)
    await put_queue(shard, ACME, "one", max_attempts=1)
    await add(shard, queue="one")
    (got,) = await shard.poll(ACME, "one")
    await shard.nack(ACME, "one", [got.receipt])
    await shard.close()
    shard = await open_shard()
    assert usage(shard, ACME)["queues"] == 1
    await delete_queue(shard, ACME, "one-dlq", force=True)
    await wait_until_idle(shard)
    assert usage(shard, ACME)["queues"] == 1
    with pytest.raises(QuotaExceeded):
        await put_queue(shard, ACME, "two")


@pytest.mark.parametrize("quota", ["messages_per_hour", "messages_per_day", "backlog", "stored_bytes"])
async def test_46_hundred_concurrent_adds_fill_a_quota_exactly(shard: Shard, quota: str) -> None:
    """Ten of them fit, alone or in batches, to one queue or many, with duplicates or without."""
    scale = 4 if quota == "stored_bytes" else 1
    await acme(shard, **{quota: 100 * scale})
    assert not refusals(await add(shard, 89))
    (known,) = await add(shard, key="known")
    before = usage(shard, ACME)[quota]
    assert before == 90 * scale
    rng = random.Random(46)
    calls = [
        shard.add(
            ACME, rng.choice(["a", "b", Q]), [message("body", key=f"{n}-{i}") for i in range(rng.choice((1, 1, 3)))]
        )
        for n in range(100)
    ]
    again = [add(shard, key="known") for _ in range(20)]
    replies = await asyncio.gather(*calls, *again)
    fresh = [one for reply in replies[:100] for one in reply]
    assert sum(one.error is None for one in fresh) == 10
    assert {type(one) for one in refusals(fresh)} == {QuotaExceeded}
    assert all(reply[0].duplicate and reply[0].raw_id == known.raw_id for reply in replies[100:])
    assert usage(shard, ACME)[quota] == 100 * scale
    stored = sum(shard.reads.stats(ACME, name).ready for name in queues(shard, ACME))
    assert stored == 100


async def test_46_batch_across_the_limit_is_accepted_up_to_it(shard: Shard) -> None:
    """The first messages that fit are added, then errors show the use after those."""
    await acme(shard, backlog=5)
    await add(shard, 3)
    added = await add(shard, 4)
    assert [one.error is None for one in added] == [True, True, False, False]
    assert {(error.limit, error.current) for error in refusals(added) if isinstance(error, Limited)} == {(5, 5)}


async def test_46_refused_add_changes_nothing(shard: Shard) -> None:
    """No queue, key, counter or row changes, whatever the reason."""
    await acme(shard, backlog=2, queues=1)
    await add(shard, 2)
    before = whole_state(shard)
    for act in (
        add(shard, key="k"),
        add(shard, 7, key="k"),
        add(shard, queue="new", key="k"),
        add(shard, group="g", ttl_ms=5, delay_ms=7),
        put_queue(shard, ACME, "new"),
    ):
        try:
            reply = await act
            assert isinstance(reply, list)
            assert all(isinstance(one.error, QuotaExceeded) for one in reply)
        except QuotaExceeded:
            pass
    assert whole_state(shard) == before
    await acme(shard, backlog=9, queues=9)
    (added,) = await add(shard, key="k")
    assert not added.duplicate


async def test_46_refused_add_creates_no_queue(shard: Shard) -> None:
    """This holds for batches in which all messages are refused."""
    await acme(shard, backlog=0)
    assert refusals(await add(shard, 2))
    assert queues(shard, ACME) == {}
    await acme(shard, backlog=None, message_bytes=3)
    assert refusals(await add(shard, 2))
    assert queues(shard, ACME) == {}
    assert usage(shard, ACME)["queues"] == 0


async def test_46_duplicate_succeeds_with_a_full_quota(shard: Shard) -> None:
    """It needs no room."""
    await acme(shard, backlog=1, messages_per_hour=1)
    (first,) = await add(shard, key="k")
    (again,) = await add(shard, key="k")
    assert again.error is None
    assert (again.duplicate, again.raw_id) == (True, first.raw_id)
    assert usage(shard, ACME)["messages_per_hour"] == 1


async def test_46_partly_accepted_keyed_batch_can_be_retried(shard: Shard) -> None:
    """Added messages are duplicates and need no room; refused ones are tried again and counted once."""
    await acme(shard, messages_per_hour=3)
    batch = [message(f"{n}") for n in range(5)]
    first = await shard.add(ACME, Q, batch, batch_key="k")
    assert [one.error is None for one in first] == [True, True, True, False, False]
    again = await shard.add(ACME, Q, batch, batch_key="k")
    assert [one.raw_id for one in again[:3]] == [one.raw_id for one in first[:3]]
    assert [one.duplicate for one in again[:3]] == [True] * 3
    assert len(refusals(again)) == 2
    assert usage(shard, ACME)["messages_per_hour"] == 3
    await acme(shard, messages_per_hour=5)
    assert not refusals(await shard.add(ACME, Q, batch, batch_key="k"))
    assert not refusals(await shard.add(ACME, Q, batch, batch_key="k"))
    assert usage(shard, ACME)["messages_per_hour"] == usage(shard, ACME)["backlog"] == 5
    assert sorted(one.body for one in await leased(shard, 9)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_46_refused_keyed_batch_is_not_remembered(shard: Shard) -> None:
    """With room it is new."""
    await acme(shard, backlog=0)
    assert len(refusals(await shard.add(ACME, Q, [message()] * 2, batch_key="k"))) == 2
    await acme(shard, backlog=2)
    added = await shard.add(ACME, Q, [message()] * 2, batch_key="k")
    assert [(one.error, one.duplicate) for one in added] == [(None, False)] * 2


async def test_46_every_removal_frees_the_quota(shard: Shard, clock: ManualClock) -> None:
    """Covers ack, remove, purge, expiry and queue deletion; a dead letter is still stored."""
    await acme(shard, backlog=1)
    await put_queue(shard, ACME, Q, max_attempts=1)

    async def refill(**fields: Any) -> AddResult:
        (added,) = await add(shard, **fields)
        assert added.error is None
        assert refusals(await add(shard))
        return added

    await refill()
    (got,) = await shard.poll(ACME, Q)
    assert refusals(await add(shard))
    await shard.ack(ACME, Q, [got.receipt])
    added = await refill()
    await shard.remove(ACME, Q, [added.id])
    await refill()
    await purge(shard, ACME, Q)
    await refill(ttl_ms=10)
    await pass_time(shard, clock, 11)
    await refill()
    (got,) = await shard.poll(ACME, Q)
    await shard.nack(ACME, Q, [got.receipt])
    assert refusals(await add(shard))
    await delete_queue(shard, ACME, f"{Q}-dlq", force=True)
    await wait_until_idle(shard)
    await refill()


async def test_46_quota_of_zero_refuses_everything(shard: Shard) -> None:
    """Zero is a limit, not the absence of one."""
    for quota in ("messages_per_hour", "messages_per_day", "backlog"):
        await put_tenant(shard, ACME, quotas={"messages_per_hour": None, "messages_per_day": None, "backlog": None})
        await acme(shard, **{quota: 0})
        (error,) = refusals(await add(shard))
        assert isinstance(error, QuotaExceeded)
        assert (error.limit, error.current) == (0, 0)


async def test_46_quotas_of_tenants_are_independent(shard: Shard) -> None:
    """A full tenant does not affect another."""
    await acme(shard, backlog=1)
    await add(shard)
    await put_tenant(shard, "globex", quotas={"backlog": 5})
    assert not refusals(await shard.add("globex", Q, [message()] * 5))
    assert usage(shard, "globex")["backlog"] == 5
    assert usage(shard, ACME)["backlog"] == 1


async def test_46_quota_change_applies_at_once(shard: Shard) -> None:
    """It is raised, lowered below the use, and removed."""
    await acme(shard, backlog=1)
    await add(shard)
    assert refusals(await add(shard))
    await acme(shard, backlog=3)
    assert len(refusals(await add(shard, 3))) == 1
    await acme(shard, backlog=2)
    (error,) = refusals(await add(shard))
    assert isinstance(error, QuotaExceeded)
    assert (error.limit, error.current) == (2, 3)
    await acme(shard, backlog=None)
    assert not refusals(await add(shard, 5))


# ---- 46: leases ----


async def leased(shard: Shard, count: int, **options: Any) -> list[Delivery]:
    """Lease up to this many messages."""
    return await shard.poll(ACME, Q, max=count, **options)


async def test_46_lease_above_the_quota_is_not_granted(shard: Shard) -> None:
    """A poll gets what there is room for; the next one is refused with limit and use."""
    await acme(shard, in_flight=3)
    await add(shard, 9)
    got = await leased(shard, 9)
    assert len(got) == 3
    with pytest.raises(QuotaExceeded) as caught:
        await leased(shard, 1)
    assert (caught.value.limit, caught.value.current) == (3, 3)
    assert caught.value.message.startswith("quotas.in_flight: exceeded (3 of 3 used)")
    await shard.ack(ACME, Q, [got[0].receipt])
    assert len(await leased(shard, 9)) == 1


@pytest.mark.parametrize("max", [1, 2, 7])
async def test_46_concurrent_polls_never_lease_more_than_the_quota(shard: Shard, max: int) -> None:
    """Covers several queues, waiting polls and fleets; every poll gets a reply."""
    await acme(shard, in_flight=10)
    for queue in ("a", "b", "c"):
        await add(shard, 50, queue)
    polls = [shard.poll(ACME, queue, max=max) for queue in ("a", "b", "c") for _ in range(10)]
    polls += [shard.fleet_poll(queue, max=max) for queue in ("a", "b", "c") for _ in range(10)]
    random.Random(max).shuffle(polls)
    replies = await asyncio.wait_for(asyncio.gather(*polls, return_exceptions=True), 20)
    got = [one for reply in replies if isinstance(reply, list) for one in reply]
    assert {type(reply) for reply in replies} <= {list, QuotaExceeded}
    assert len(got) == len({one.raw_id for one in got}) == 10
    assert usage(shard, ACME)["in_flight"] == 10


async def test_46_poll_without_a_wait_returns_empty_if_another_took_the_last_lease(shard: Shard) -> None:
    """Two polls are in one round with room for one lease."""
    await acme(shard, in_flight=1)
    await add(shard, 5)
    replies = await asyncio.wait_for(asyncio.gather(leased(shard, 1), leased(shard, 1), return_exceptions=True), 5)
    assert sorted(len(reply) if isinstance(reply, list) else 0 for reply in replies) == [0, 1]
    await wait_until_idle(shard)


WAYS = ["ack", "nack", "release", "remove", "expiry", "raise the quota", "take it away"]


@pytest.mark.parametrize("how", WAYS)
async def test_46_end_of_a_lease_wakes_a_waiting_poll_of_its_queue(shard: Shard, clock: ManualClock, how: str) -> None:
    """The first of two polls gets the only allowed lease, the second a message when it ends."""
    await acme(shard, in_flight=1)
    await put_queue(shard, ACME, Q)
    polls = [asyncio.ensure_future(leased(shard, 1, wait_ms=60_000, lease_ms=5_000)) for _ in range(2)]
    await wait_until_idle(shard)
    await add(shard, 3)
    await wait_until_idle(shard)
    (held,) = polls[0].result()
    assert not polls[1].done()
    await _end_lease(shard, clock, how, Q, held)
    await wait_until_idle(shard)
    assert len(await asyncio.wait_for(polls[1], 5)) == 1


@pytest.mark.parametrize("fleet", [False, True], ids=["a poll", "a fleet poll"])
@pytest.mark.parametrize("how", [*WAYS, "purge", "delete by force", "dead letter"])
async def test_46_end_of_a_lease_wakes_a_waiting_poll_of_another_queue(
    shard: Shard, clock: ManualClock, how: str, *, fleet: bool
) -> None:
    """The quota belongs to the tenant, so any queue can make room."""
    await acme(shard, in_flight=1)
    await put_queue(shard, ACME, Q)
    await put_queue(shard, ACME, "other", max_attempts=1 if how == "dead letter" else 5)
    poll = shard.fleet_poll(Q, wait_ms=60_000) if fleet else leased(shard, 1, wait_ms=60_000)
    waiting = asyncio.ensure_future(poll)
    await wait_until_idle(shard)
    await add(shard, 1, "other")
    (held,) = await shard.poll(ACME, "other", lease_ms=5_000)
    await add(shard, 2)
    await wait_until_idle(shard)
    assert not waiting.done()
    await _end_lease(shard, clock, how, "other", held)
    await wait_until_idle(shard)
    (got,) = await asyncio.wait_for(waiting, 5)
    assert got.queue == Q


async def _end_lease(shard: Shard, clock: ManualClock, how: str, queue: str, held: Delivery) -> None:
    """End a lease in one of several ways, or raise the quota."""
    if how == "ack":
        await shard.ack(ACME, queue, [held.receipt])
    elif how in {"nack", "dead letter"}:
        await shard.nack(ACME, queue, [held.receipt])
    elif how == "release":
        await shard.release(ACME, queue, [held.receipt])
    elif how == "remove":
        await shard.remove(ACME, queue, [held.id])
    elif how == "expiry":
        await pass_time(shard, clock, 5_000)
    elif how == "purge":
        await purge(shard, ACME, queue)
    elif how == "delete by force":
        await delete_queue(shard, ACME, queue, force=True)
    else:
        await acme(shard, in_flight=None if how == "take it away" else 2)


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_46_tenant_at_its_lease_quota_does_not_block_a_fleet(shard: Shard, wait_ms: int) -> None:
    """A worker gets messages of others, however far behind the full tenant is."""
    await acme(shard, in_flight=1)
    await put_tenant(shard, "globex")
    await add(shard, 5)
    assert len(await leased(shard, 1)) == 1
    await shard.add("globex", Q, [message()] * 5)
    got = []
    for _ in range(5):
        got += await asyncio.wait_for(shard.fleet_poll(Q, wait_ms=wait_ms), 5)
    assert [one.tenant for one in got] == ["globex"] * 5


async def test_46_lowered_lease_quota_keeps_existing_leases(shard: Shard) -> None:
    """They may be settled; new ones need a use below the limit."""
    await acme(shard, in_flight=4)
    await add(shard, 9)
    held = await leased(shard, 4)
    await acme(shard, in_flight=2)
    for one in held[:2]:
        with pytest.raises(QuotaExceeded):
            await leased(shard, 1)
        assert (await shard.ack(ACME, Q, [one.receipt]))[0].ok
    with pytest.raises(QuotaExceeded):
        await leased(shard, 1)
    assert (await shard.extend(ACME, Q, [held[2].receipt], lease_ms=9_000))[0].ok
    assert (await shard.ack(ACME, Q, [held[2].receipt]))[0].ok
    assert len(await leased(shard, 9)) == 1


# ---- 47: windows and recounts ----


@pytest.mark.parametrize(("quota", "length_ms"), [("messages_per_hour", HOUR_MS), ("messages_per_day", DAY_MS)])
async def test_47_window_ends_with_the_hour_and_the_day(
    shard: Shard, clock: ManualClock, quota: str, length_ms: int
) -> None:
    """Adds are refused until its last millisecond, with the time to wait."""
    await acme(shard, **{quota: 2})
    for _ in range(3):
        assert len(refusals(await add(shard, 3))) == 1
        left_ms = length_ms - clock.wall_ms() % length_ms
        (error,) = refusals(await add(shard))
        assert isinstance(error, QuotaExceeded)
        assert error.retry_after_ms == left_ms
        await pass_time(shard, clock, left_ms - 1)
        assert refusals(await add(shard))
        assert usage(shard, ACME)[quota] == 2
        await pass_time(shard, clock, 1)
        assert usage(shard, ACME)[quota] == 0


async def test_47_completed_messages_still_count_in_their_window(shard: Shard) -> None:
    """The quota counts added messages, not stored ones."""
    await acme(shard, messages_per_hour=2)
    for _ in range(2):
        await add(shard)
        (got,) = await leased(shard, 1)
        await shard.ack(ACME, Q, [got.receipt])
    assert refusals(await add(shard))
    await purge(shard, ACME, Q)
    assert refusals(await add(shard))


async def test_47_dead_letters_and_redrives_do_not_count_as_adds(shard: Shard) -> None:
    """They use up no hour."""
    await acme(shard, messages_per_hour=1, backlog=1)
    await put_queue(shard, ACME, Q, max_attempts=1)
    await add(shard)
    (got,) = await leased(shard, 1)
    await shard.nack(ACME, Q, [got.receipt])
    await finished(shard, await shard.redrive(ACME, Q))
    used = usage(shard, ACME)
    assert (used["messages_per_hour"], used["backlog"]) == (1, 1)
    assert len(await leased(shard, 1)) == 1


async def test_47_setting_the_clock_back_opens_no_new_window(open_shard: OpenShard, clock: ManualClock) -> None:
    """This holds at runtime and across a restart; the old hour is still used up when it returns."""
    shard = await open_shard()
    await acme(shard, messages_per_hour=2, messages_per_day=3)
    await add(shard, 2)
    for jump_ms in (-HOUR_MS, -2 * HOUR_MS, -DAY_MS):
        clock.jump_wall(jump_ms)
        assert refusals(await add(shard))
        await shard.close()
        shard = await open_shard()
        assert refusals(await add(shard))
        clock.jump_wall(-jump_ms)
    assert refusals(await add(shard))
    assert usage(shard, ACME)["messages_per_hour"] == 2


@pytest.mark.parametrize("restarted", [False, True])
async def test_47_clock_that_was_far_ahead_does_not_block_new_windows(
    open_shard: OpenShard, clock: ManualClock, *, restarted: bool
) -> None:
    """The count moves to the current hour, and the next hour and day start on time."""
    shard = await open_shard()
    await acme(shard, messages_per_hour=2, messages_per_day=3)
    years_ms = 3_650 * DAY_MS
    clock.jump_wall(years_ms)
    assert not refusals(await add(shard, 2))
    clock.jump_wall(-years_ms)
    if restarted:
        await shard.close()
        shard = await open_shard()
    assert refusals(await add(shard))
    await pass_time(shard, clock, HOUR_MS)
    assert not refusals(await add(shard))
    assert refusals(await add(shard))  # the day's
    await pass_time(shard, clock, DAY_MS)
    assert not refusals(await add(shard, 2))


@pytest.mark.parametrize("restarted", [False, True])
async def test_47_a_clock_that_goes_far_back_and_returns_opens_no_new_window(
    open_shard: OpenShard, clock: ManualClock, *, restarted: bool
) -> None:
    """An hour or day that is used up stays used up when the clock goes back three days and returns."""
    shard = await open_shard()
    await acme(shard, messages_per_hour=50, messages_per_day=50)
    assert not refusals(await add(shard, 49))
    for refused in (0, 1, 1):
        clock.jump_wall(-3 * DAY_MS)
        assert len(refusals(await add(shard))) == refused
        if restarted:
            await shard.close()
            shard = await open_shard()
        clock.jump_wall(3 * DAY_MS)
        assert len(refusals(await add(shard, 50))) == 50
        assert usage(shard, ACME)["messages_per_day"] == 50
    await pass_time(shard, clock, DAY_MS)
    assert not refusals(await add(shard, 50))


@pytest.mark.rocksdb_only("examines a closed directory")
async def test_47_the_doctor_accepts_a_clock_far_ahead_that_was_corrected_without_an_add(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> None:
    """Between the correction and the next add a new hour and day began. The journal does not know when it was noticed."""
    shard = await open_shard("one")
    await acme(shard, messages_per_hour=2, messages_per_day=2)
    clock.jump_wall(9 * DAY_MS)
    assert not refusals(await add(shard, 2))
    clock.jump_wall(-9 * DAY_MS)
    assert refusals(await add(shard))
    await pass_time(shard, clock, DAY_MS)
    assert not refusals(await add(shard))
    await shard.close()
    assert examine(tmp_path / "one").findings == []


@pytest.mark.rocksdb_only("examines a closed directory")
async def test_47_the_doctor_accepts_a_journal_trimmed_after_a_far_jump(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> None:
    """The clock reaches the hour that it had once jumped to. The adds of that time are trimmed."""
    shard = await open_shard("one")
    await acme(shard, messages_per_hour=9, messages_per_day=9)
    clock.jump_wall(9 * DAY_MS)
    assert not refusals(await add(shard, 2))
    clock.jump_wall(-9 * DAY_MS)
    assert not refusals(await add(shard))
    await shard.journal.trim(shard.journal.span[1])
    clock.jump_wall(9 * DAY_MS)
    assert not refusals(await add(shard))
    assert usage(shard, ACME)["messages_per_day"] > 1
    await shard.close()
    assert examine(tmp_path / "one").findings == []


@pytest.mark.rocksdb_only("examines a closed directory")
async def test_47_the_doctor_accepts_windows_after_a_clock_went_back(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> None:
    """The journal's adds explain the windows after the clock went back three days and returned."""
    shard = await open_shard("one")
    await acme(shard, messages_per_hour=2)
    await add(shard, 2)
    clock.jump_wall(-3 * DAY_MS)
    assert refusals(await add(shard))
    assert usage(shard, ACME)["messages_per_hour"] == 2
    clock.jump_wall(3 * DAY_MS)
    assert refusals(await add(shard))
    await shard.close()
    assert examine(tmp_path / "one").findings == []


@pytest.mark.rocksdb_only("copies its files")
async def test_47_windows_survive_a_restart(open_shard: OpenShard, clock: ManualClock, tmp_path: Path) -> None:
    """A clean or unclean restart keeps the count; an hour that ends meanwhile has ended."""
    shard = await open_shard("one")
    await acme(shard, messages_per_hour=5, messages_per_day=7)
    await add(shard, 4)
    freeze(tmp_path / "one", tmp_path / "two")
    killed = await open_shard("two")
    assert usage(killed, ACME) == usage(shard, ACME)
    await shard.close()
    clock.advance(HOUR_MS)
    shard = await open_shard("one")
    assert usage(shard, ACME)["messages_per_hour"] == 0
    assert len(refusals(await add(shard, 5))) == 2
    assert usage(shard, ACME)["messages_per_day"] == 7


def from_journal(rows: list[JournalRow], wall_ms: int) -> dict[str, int]:
    """Return the adds of the current hour and day, from the journal."""
    added = [row.ts for row in rows if (row.tenant, row.op, row.outcome) == (ACME, "add", "ok")]
    return {
        "messages_per_hour": sum(ts // HOUR_MS == wall_ms // HOUR_MS for ts in added),
        "messages_per_day": sum(ts // DAY_MS == wall_ms // DAY_MS for ts in added),
    }


def recounted(directory: Path, wall_ms: int) -> dict[str, int]:
    """Return the use as counted from a store at rest and its journal, which must be consistent."""
    found = recount(directory, JournalTally())
    # It does not follow totals through purges and redrives, nor through recreated queues.
    drift = [one for one in found.drift if "_total is" not in one and ": ex: result of" not in one]
    assert not drift, drift
    stored = [one for one in found.messages if one.tenant == ACME]
    gone = {row.queue: (row.seq, row.n) for row in found.journal if row.op == "drop_queue"}
    made = [row for row in found.journal if row.op == "create_queue" and row.principal != "system"]
    born = {row.queue: (row.seq, row.n) for row in made}
    return {
        "backlog": len(stored),
        "stored_bytes": sum(row.size for row in _bodies(directory)),
        "in_flight": sum(one.state == "in_flight" for one in stored),
        "queues": sum(at > gone.get(queue, (0, 0)) for queue, at in born.items()),
        **from_journal(found.journal, wall_ms),
    }


def _bodies(directory: Path) -> list[Any]:
    store = RocksStore(directory, read_only=True)
    try:
        return [unpack_message(value) for _, value in store.scan_items(store.m, b"", b"\xff" * 64, 100_000)]
    finally:
        store.close()


class Traffic:
    """Random operations of one tenant that stays close to its quotas."""

    def __init__(self, shard: Shard, clock: ManualClock, seed: int) -> None:
        self.shard = shard
        self.clock = clock
        self.rng = random.Random(seed)
        self.held: list[Delivery] = []
        self.refused = 0

    async def act(self) -> None:
        """Run one operation, or several at once."""
        if self.rng.random() < 0.2:
            await asyncio.gather(*(self._one() for _ in range(self.rng.randrange(2, 8))))
        else:
            await self._one()

    async def _one(self) -> None:
        try:
            await self._random_act()
        except (QuotaExceeded, NotFound, Draining):
            self.refused += 1

    async def _random_act(self) -> None:
        shard, rng = self.shard, self.rng
        queue = rng.choice(("a", "b", "c.fifo", "d"))
        kind = rng.choice(
            [
                "add",
                "add",
                "add",
                "add",
                "poll",
                "poll",
                "poll",
                "ack",
                "ack",
                "nack",
                "release",
                "extend",
                "remove",
                "purge",
                "delete",
                "redrive",
                "put",
                "wait",
                "late",
            ]
        )
        if kind == "add":
            batch = [
                message(
                    "x" * rng.randrange(40),
                    key=rng.choice((None, None, "k1", "k2")),
                    group=rng.choice((None, "g")),
                    ttl_ms=rng.choice((None, None, None, 500)),
                    delay_ms=rng.choice((0, 0, 0, 700)),
                    attributes=rng.choice(({}, {"a": "bcd"})),
                    max_attempts=rng.choice((None, 1)),
                )
                for _ in range(rng.choice((1, 1, 2, 6)))
            ]
            self.refused += len(refusals(await shard.add(ACME, queue, batch)))
        elif kind == "poll":
            poll = shard.fleet_poll(queue, max=3) if rng.random() < 0.3 else shard.poll(ACME, queue, max=3)
            self.held += await asyncio.wait_for(poll, 10)
        elif kind in {"ack", "nack", "release", "extend", "remove"} and self.held:
            one = self.held.pop(rng.randrange(len(self.held)))
            await self._settle(kind, one)
        elif kind == "purge" and rng.random() < 0.3:
            await purge(shard, ACME, queue)
        elif kind == "delete" and rng.random() < 0.3:
            await delete_queue(shard, ACME, rng.choice((queue, "a-dlq")), force=rng.random() < 0.5)
        elif kind == "redrive":
            await finished(shard, await shard.redrive(ACME, queue, filter=RedriveFilter(limit=2)))
        elif kind == "put":
            await put_tenant(shard, ACME, quotas={"backlog": rng.choice((20, 30)), "in_flight": rng.choice((4, 9))})
        elif kind == "wait":
            self.clock.advance(rng.choice((1, 100, 1_000)))
        elif kind == "late" and rng.random() < 0.1:
            self.clock.advance(rng.choice((31_000, HOUR_MS // 2, DAY_MS // 3)))

    async def _settle(self, kind: str, one: Delivery) -> None:
        place = (one.tenant, one.queue)
        if kind == "remove":
            await self.shard.remove(*place, [one.id])
        elif kind == "extend":
            await self.shard.extend(*place, [one.receipt], lease_ms=2_000)
        elif kind == "nack":
            await self.shard.nack(*place, [one.receipt], delay_ms=self.rng.choice((0, 50)))
        else:
            await getattr(self.shard, kind)(*place, [one.receipt])


@pytest.mark.rocksdb_only("copies its files")
@pytest.mark.parametrize("seed", range(6))
async def test_47_usage_equals_a_recount_after_random_runs_restarts_and_crashes(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path, seed: int
) -> None:
    """Memory, rows and journal agree, and no limit is exceeded."""
    shard = await open_shard("live0", settings=ShardSettings(durability="os"))
    await acme(shard, backlog=30, stored_bytes=500, in_flight=9, queues=3, messages_per_hour=150, messages_per_day=400)
    traffic = Traffic(shard, clock, seed)
    for number in range(4):
        for _ in range(60):
            await traffic.act()
            used = usage(traffic.shard, ACME)
            assert used["backlog"] <= 30
            assert used["stored_bytes"] <= 500
            assert used["in_flight"] <= 9
            assert used["queues"] <= 3
            assert used["messages_per_hour"] <= 150
            assert used["messages_per_day"] <= 400
        await wait_until_idle(traffic.shard)
        live, copy = tmp_path / f"live{number}", tmp_path / f"copy{number}"
        used = usage(traffic.shard, ACME)
        freeze(live, copy)
        assert recounted(copy, clock.wall_ms()) == used
        if number % 2:
            await traffic.shard.close()
            live.rename(tmp_path / f"live{number + 1}")
        else:
            freeze(live, tmp_path / f"live{number + 1}")  # as a kill leaves it
        traffic.shard = await open_shard(f"live{number + 1}", settings=ShardSettings(durability="os"))
        assert usage(traffic.shard, ACME) == used
    assert traffic.refused > 10


# ---- 48: warnings ----


def watched(shard: Shard) -> list[QuotaEvent]:
    """Return a list that receives every quota event."""
    events: list[QuotaEvent] = []
    shard.on_quota(events.append)
    return events


async def journaled(shard: Shard) -> list[str]:
    """Return the quota events in the journal."""
    await wait_until_idle(shard)
    found = []
    for op in ("quota_warning", "quota_critical"):
        rows = await journal_rows(shard, op=op)
        found += [(row.seq, row.n, f"{row.tenant} {op} {row.details}") for row in rows]
    return [text for *_, text in sorted(found)]


async def test_48_the_soft_limit_warns_once_and_the_limit_is_critical_once(shard: Shard) -> None:
    """At 80 and 100 percent, journal and listeners get one event each."""
    await acme(shard, backlog=10)
    events = watched(shard)
    for n in range(12):
        await add(shard)
        states = [(one.quota, one.state, one.used, one.limit) for one in events]
        wanted = [("backlog", "warning", 8, 10), ("backlog", "critical", 10, 10)]
        assert states == wanted[: (n >= 7) + (n >= 9)]
    assert {one.tenant for one in events} == {ACME}
    assert await journaled(shard) == [
        "acme quota_warning backlog: 8 of 10",
        "acme quota_critical backlog: 10 of 10",
    ]


@pytest.mark.parametrize(
    "quota", ["messages_per_hour", "messages_per_day", "backlog", "stored_bytes", "in_flight", "queues"]
)
async def test_48_every_counted_quota_warns(shard: Shard, quota: str) -> None:
    """Each warns separately."""
    limit = 40 if quota == "stored_bytes" else 10
    await acme(shard, **{quota: limit})
    events = watched(shard)
    for n in range(10):
        await add(shard, queue=f"q{n}" if quota == "queues" else Q)
        if quota == "in_flight":
            await leased(shard, 1)
    assert [(one.quota, one.state) for one in events] == [(quota, "warning"), (quota, "critical")]


async def test_48_jump_past_both_limits_is_one_critical_event(shard: Shard) -> None:
    """One batch that fills a quota is one event."""
    await acme(shard, backlog=10)
    events = watched(shard)
    await add(shard, 10)
    assert [one.state for one in events] == ["critical"]


async def test_48_event_is_repeated_only_after_the_use_has_fallen(shard: Shard) -> None:
    """Small changes around a limit cause no flood; falling well below rearms it."""
    await acme(shard, backlog=100)
    events = watched(shard)
    await add(shard, 80)
    assert [one.state for one in events] == ["warning"]
    for _ in range(5):
        (got,) = await leased(shard, 1)
        await shard.ack(ACME, Q, [got.receipt])
        await add(shard)
    assert len(events) == 1
    got_many = await leased(shard, 15)
    await shard.ack(ACME, Q, [one.receipt for one in got_many])
    await add(shard, 15)
    assert [one.state for one in events] == ["warning", "warning"]
    await add(shard, 20)
    assert [one.state for one in events] == ["warning", "warning", "critical"]
    assert len(await journaled(shard)) == 3


@pytest.mark.parametrize(("quota", "length_ms"), [("messages_per_hour", HOUR_MS), ("messages_per_day", DAY_MS)])
async def test_48_each_window_warns_again(shard: Shard, clock: ManualClock, quota: str, length_ms: int) -> None:
    """This holds even if its first add fills it."""
    await acme(shard, **{quota: 10})
    events = watched(shard)
    for n in (1, 2, 3):
        await add(shard, 9)
        assert [one.state for one in events] == ["warning"] * n
        await pass_time(shard, clock, length_ms)


def test_48_window_without_adds_is_reported_once() -> None:
    """The home of a spread tenant reports windows in which only other shards have adds."""
    usage = Usage()
    usage.windows(10 * HOUR_MS)
    usage.reported["messages_per_hour"] = "warning"
    usage.windows(10 * HOUR_MS + 1)
    assert usage.reported == {"messages_per_hour": "warning"}
    usage.windows(11 * HOUR_MS)
    assert usage.reported == {}


async def test_48_restart_repeats_no_event(open_shard: OpenShard) -> None:
    """Later events are journaled."""
    shard = await open_shard()
    await acme(shard, backlog=10)
    await add(shard, 8)
    await shard.close()
    shard = await open_shard()
    events = watched(shard)
    await leased(shard, 1)
    await add(shard)
    assert events == []
    await add(shard)
    assert [one.state for one in events] == ["critical"]
    assert len(await journaled(shard)) == 2


@pytest.mark.parametrize(("quota", "length_ms"), [("messages_per_hour", HOUR_MS), ("messages_per_day", DAY_MS)])
async def test_48_reopened_home_of_a_spread_tenant_repeats_no_event_of_a_window(
    open_shard: OpenShard, clock: ManualClock, quota: str, length_ms: int
) -> None:
    """Its own last add is of an earlier window; only the other shards have added since."""
    shard = await open_shard()
    await acme(shard, **{quota: 10})
    await add(shard)
    await shard.submit(PrepareHome(shard.state.platform, SYSTEM, ACME, 0, (0, 1)))
    for wanted in (1, 2):
        await pass_time(shard, clock, length_ms)
        for _ in range(2):
            id = shard.state.catalog.tenants[ACME].id
            await shard.submit(ReportQuotas(shard.state.platform, SYSTEM, id, {quota: 9}))
            assert await journaled(shard) == [f"acme quota_warning {quota}: 9 of 10"] * wanted
            await shard.close()
            shard = await open_shard()


async def test_48_window_that_ended_before_a_restart_does_not_hide_the_next_event(
    open_shard: OpenShard, clock: ManualClock
) -> None:
    """Home has added in the next window, but has stored its part before that."""
    shard = await open_shard()
    await acme(shard, messages_per_day=10)
    await add(shard)
    await shard.submit(PrepareHome(shard.state.platform, SYSTEM, ACME, 0, (0, 1)))
    id = shard.state.catalog.tenants[ACME].id
    await shard.submit(ReportQuotas(shard.state.platform, SYSTEM, id, {"messages_per_day": 8}))
    await pass_time(shard, clock, DAY_MS)
    await add(shard)
    await shard.close()
    shard = await open_shard()
    await shard.submit(ReportQuotas(shard.state.platform, SYSTEM, id, {"messages_per_day": 8}))
    assert await journaled(shard) == ["acme quota_warning messages_per_day: 9 of 10"] * 2


def test_48_part_stored_by_an_older_version_is_loaded() -> None:
    """It does not know the windows of what was reported."""
    part = PartState(0, 0, (0, 1))
    part.reported = {"messages_per_day": "warning"}
    row = msgspec.msgpack.decode(part.pack())
    del row["reported_hour"], row["reported_day"]
    loaded = PartState.load(msgspec.msgpack.encode(row))
    assert (loaded.reported, loaded.reported_hour, loaded.reported_day) == (part.reported, 0, 0)


async def test_48_quota_set_below_the_use_is_reported(shard: Shard) -> None:
    """The event comes at once, and once."""
    await acme(shard)
    await add(shard, 9)
    events = watched(shard)
    await acme(shard, backlog=10)
    assert [one.state for one in events] == ["warning"]
    await leased(shard, 1)
    await leased(shard, 1)
    assert [one.state for one in events] == ["warning"]


async def test_48_the_soft_limit_can_be_set(shard: Shard) -> None:
    """It is a percentage per tenant."""
    await acme(shard, backlog=10, soft_percent=50)
    events = watched(shard)
    await add(shard, 4)
    assert events == []
    await add(shard)
    assert [(one.state, one.used) for one in events] == [("warning", 5)]


async def test_48_failing_listener_affects_nothing(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    """Other listeners get the event, and work continues."""

    def broken(_: QuotaEvent) -> None:
        raise RuntimeError("a bug of the listener's")

    shard.on_quota(broken)
    events = watched(shard)
    await acme(shard, backlog=1)
    await add(shard)
    assert len(events) == 1
    assert refusals(await add(shard))
    assert "a listener failed" in caplog.text
