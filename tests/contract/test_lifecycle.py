"""Tenants and queues: created, paused, purged and deleted; messages read, counted and expired."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.domain.message import Caller, Result
from tenantq.engine.round import Round
from tenantq.engine.settings import ShardSettings
from tenantq.errors import Busy, Closed, Conflict, DiskFull, Draining, Invalid, NotFound, StoreFailed, StoreLocked
from tenantq.runtime.clock import ManualClock
from tenantq.store.keys import QUEUE_FAMILIES, after, queue_prefix, tenant_prefix
from tests.administration import delete_queue, pause_queue, purge, put_queue, put_tenant, queues, tenants, unpause_queue
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time, wait_until_idle
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Awaitable


def left(shard: Shard, prefix: bytes) -> dict[str, int]:
    """Return how many rows of each queue family start with ``prefix``, without empty families."""
    store = shard.state.store
    counts = {name: len(store.scan(store.family(name), prefix, after(prefix), 10_000)) for name in QUEUE_FAMILIES}
    return {name: count for name, count in counts.items() if count}


async def fill(shard: Shard, tenant: str = T, queue: str = Q) -> str:
    """Add rows to every family of a queue, and return the receipt of the one message in flight."""
    await put_queue(shard, tenant, queue, max_attempts=1)
    messages = [message("held"), message("done"), message("dead")]
    messages += [message(key="k", ttl_ms=9_000), message(group="g"), message(group="g"), message(delay_ms=9_000)]
    await shard.add(tenant, queue, messages)
    held, done, dead = await shard.poll(tenant, queue, max=3, lease_ms=5_000)
    await shard.ack(tenant, queue, [done.receipt], results=[Result("completed", b"r")])
    await shard.nack(tenant, queue, [dead.receipt])
    assert set(left(shard, prefix_of(shard, tenant, queue))) == set(QUEUE_FAMILIES)
    return held.receipt


def prefix_of(shard: Shard, tenant: str = T, queue: str = Q) -> bytes:
    """Return the bytes that all keys of a queue start with."""
    return shard.state.catalog.tenant(tenant).queues[queue].prefix


# ---- queues ----


async def test_51_a_draining_queue_refuses_adds_and_polls_while_leases_settle(shard: Shard) -> None:
    """Then no row with its prefix is left on disk."""
    receipt = await fill(shard)
    prefix = prefix_of(shard)
    await delete_queue(shard, T, Q, reason="moved away")
    assert shard.reads.stats(T, Q).status == "draining"
    for call in (shard.add(T, Q, [message()]), shard.poll(T, Q), put_queue(shard, T, Q, lease_ms=1)):
        with pytest.raises(Draining):
            await call
    for change in (pause_queue(shard, T, Q), unpause_queue(shard, T, Q)):
        with pytest.raises(Draining):
            await change
    assert (await shard.extend(T, Q, [receipt], lease_ms=9_000))[0].ok
    assert left(shard, prefix)
    assert (await shard.ack(T, Q, [receipt]))[0].ok
    await wait_until_idle(shard)
    assert left(shard, prefix) == {}
    assert Q not in queues(shard, T)
    with pytest.raises(NotFound):
        shard.reads.stats(T, Q)


@pytest.mark.parametrize("end", ["nack", "release", "remove", "expiry"])
async def test_51_queue_is_deleted_when_its_last_lease_ends(shard: Shard, clock: ManualClock, end: str) -> None:
    """An expired lease counts too."""
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    prefix = prefix_of(shard)
    await delete_queue(shard, T, Q)
    await wait_until_idle(shard)
    assert Q in queues(shard, T)
    if end == "nack":
        await shard.nack(T, Q, [got.receipt])
    elif end == "release":
        await shard.release(T, Q, [got.receipt])
    elif end == "remove":
        await shard.remove(T, Q, [added.id])
    await pass_time(shard, clock, 1_000)
    assert Q not in queues(shard, T)
    assert left(shard, prefix) == {}


async def test_51_force_does_not_wait_for_leases(shard: Shard) -> None:
    """It works after a waiting delete has started."""
    receipt = await fill(shard)
    prefix = prefix_of(shard)
    await delete_queue(shard, T, Q)
    await wait_until_idle(shard)
    assert left(shard, prefix)
    await delete_queue(shard, T, Q, force=True)
    await wait_until_idle(shard)
    assert left(shard, prefix) == {}
    with pytest.raises(NotFound):
        await shard.ack(T, Q, [receipt])


async def test_51_delete_continues_after_a_restart(open_shard: OpenShard, clock: ManualClock) -> None:
    """The draining state is stored."""
    shard = await open_shard()
    await fill(shard)
    prefix = prefix_of(shard)
    await delete_queue(shard, T, Q)
    await shard.close()
    shard = await open_shard()
    with pytest.raises(Draining):
        await shard.add(T, Q, [message()])
    await pass_time(shard, clock, 5_000)
    assert left(shard, prefix) == {}
    assert Q not in queues(shard, T)


async def test_51_recreated_queue_is_another_queue(open_shard: OpenShard) -> None:
    """It has a new ID and no old message, key or result, also after a restart."""
    shard = await open_shard()
    (old,) = await shard.add(T, Q, [message("old", key="k")])
    before = prefix_of(shard)
    await delete_queue(shard, T, Q)
    await wait_until_idle(shard)
    await shard.close()
    shard = await open_shard()
    (new,) = await shard.add(T, Q, [message("new", key="k")])
    assert prefix_of(shard) > before
    assert not new.duplicate
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"new"]
    with pytest.raises(NotFound):
        await shard.reads.get(T, Q, old.id)


async def test_51_neighbours_of_a_deleted_queue_keep_everything(shard: Shard) -> None:
    """Covers queues with adjacent IDs, and another tenant's queue of the same name."""
    await put_tenant(shard, "other")
    for tenant, queue in ((T, "a"), (T, Q), (T, "z"), ("other", Q)):
        await fill(shard, tenant, queue)
    kept = {(t, q): left(shard, prefix_of(shard, t, q)) for t, q in ((T, "a"), (T, "z"), ("other", Q))}
    await delete_queue(shard, T, Q, force=True)
    await wait_until_idle(shard)
    assert {(t, q): left(shard, prefix_of(shard, t, q)) for t, q in kept} == kept


async def test_deleting_an_unknown_queue_is_not_found(shard: Shard) -> None:
    """The attempt creates nothing."""
    with pytest.raises(NotFound):
        await delete_queue(shard, T, "nowhere")
    assert queues(shard, T) == {}


async def test_paused_queue_accepts_messages_and_delivers_none(open_shard: OpenShard) -> None:
    """Leases continue, a restart keeps the pause, and waiting polls are served on resume."""
    shard = await open_shard()
    await shard.add(T, Q, [message("a")])
    (held,) = await shard.poll(T, Q)
    await pause_queue(shard, T, Q)
    await shard.add(T, Q, [message("b")])
    assert await shard.poll(T, Q) == []
    assert await shard.fleet_poll(Q) == []
    assert (await shard.ack(T, Q, [held.receipt]))[0].ok
    await shard.close()
    shard = await open_shard()
    assert shard.reads.stats(T, Q).status == "paused"
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=10_000))
    await wait_until_idle(shard)
    assert not waiting.done()
    await unpause_queue(shard, T, Q)
    assert [one.body for one in await waiting] == [b"b"]


async def test_resuming_a_queue_wakes_a_waiting_fleet_poll(shard: Shard) -> None:
    """It has the same effect as an add."""
    await shard.add(T, Q, [message()])
    await pause_queue(shard, T, Q)
    waiting = asyncio.create_task(shard.fleet_poll(Q, wait_ms=10_000))
    await wait_until_idle(shard)
    assert not waiting.done()
    await unpause_queue(shard, T, Q)
    assert len(await waiting) == 1


async def test_purge_empties_a_queue_and_leaves_it_working(shard: Shard, clock: ManualClock) -> None:
    """Messages, leases, keys and results are deleted; later messages are delivered."""
    receipt = await fill(shard)
    count = shard.reads.stats(T, Q)
    assert await purge(shard, T, Q, reason="test data") == count.ready + count.delayed + count.in_flight
    assert set(left(shard, prefix_of(shard))) == {"qc"}
    assert not (await shard.ack(T, Q, [receipt]))[0].ok
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.in_flight, stats.blocked, stats.bytes) == (0, 0, 0, 0, 0)
    await shard.add(T, Q, [message("new", group="g"), message("later", delay_ms=100)])
    await pass_time(shard, clock, 20_000)
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"new", b"later"]
    assert shard.reads.stats(T, Q).healed_total == 0


async def test_adds_in_the_same_round_as_a_purge_survive_it(shard: Shard) -> None:
    """The purge runs first; groups, keys and TTLs of the adds are intact."""
    await fill(shard)
    purging = asyncio.create_task(purge(shard, T, Q))
    adding = asyncio.create_task(shard.add(T, Q, [message("x", key="k", group="g", ttl_ms=1_000)]))
    await purging
    (added,) = await adding
    assert not added.duplicate
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"x"]


async def test_tenant_may_forbid_implicit_queues(shard: Shard) -> None:
    """Queues must then be created explicitly."""
    await put_tenant(shard, "strict", create_queues=False)
    with pytest.raises(NotFound):
        await shard.add("strict", Q, [message()])
    assert await put_queue(shard, "strict", Q)
    assert not await put_queue(shard, "strict", Q, lease_ms=5_000)
    assert (await shard.add("strict", Q, [message()]))[0].error is None
    assert queues(shard, "strict")[Q].lease_ms == 5_000


async def test_queue_lease_time_is_the_default_of_polls(shard: Shard, clock: ManualClock) -> None:
    """A change applies from the next poll on."""
    await put_queue(shard, T, Q, lease_ms=7_000)
    await shard.add(T, Q, [message(), message()])
    assert (await shard.poll(T, Q))[0].lease_until == clock.wall_ms() + 7_000
    await put_queue(shard, T, Q, lease_ms=9_000)
    assert (await shard.poll(T, Q))[0].lease_until == clock.wall_ms() + 9_000


async def test_refused_change_has_no_effect(shard: Shard) -> None:
    """Other valid fields are not applied, and no new queue is created."""
    await put_queue(shard, T, Q, lease_ms=5_000)
    with pytest.raises(Invalid, match="max_attempts"):
        await put_queue(shard, T, Q, lease_ms=6_000, max_attempts=-1)
    with pytest.raises(Invalid, match="unknown field"):
        await put_queue(shard, T, "new", colour="red")
    assert queues(shard, T)[Q].lease_ms == 5_000
    assert "new" not in queues(shard, T)
    with pytest.raises(Invalid, match="weight"):
        await put_tenant(shard, "newcomer", weight=0)
    assert "newcomer" not in tenants(shard)


# ---- tenants ----


async def test_50_deleting_a_tenant_leaves_none_of_its_keys(shard: Shard) -> None:
    """Every key of its neighbours stays."""
    for tenant in ("before", "doomed", "behind"):
        await put_tenant(shard, tenant)
        for queue in ("a", "b"):
            await fill(shard, tenant, queue)
    ids = {name: shard.state.catalog.tenant(name).id for name in ("before", "doomed", "behind")}
    kept = {name: left(shard, tenant_prefix(ids[name])) for name in ("before", "behind")}
    await shard.erasure.delete_tenant("doomed", reason="contract ended")
    assert left(shard, tenant_prefix(ids["doomed"])) == {}
    assert {name: left(shard, tenant_prefix(ids[name])) for name in kept} == kept
    assert "doomed" not in tenants(shard)
    with pytest.raises(NotFound):
        await shard.add("doomed", "a", [message()])


@pytest.mark.parametrize("restart", [False, True])
async def test_50_ids_of_deleted_tenants_are_never_reused(open_shard: OpenShard, *, restart: bool) -> None:
    """This includes a tenant of the same name, and holds across a restart."""
    shard = await open_shard()
    seen = set()
    for _ in range(3):
        await put_tenant(shard, "comet")
        await shard.add("comet", Q, [message()])
        seen.add(shard.state.catalog.tenant("comet").id)
        await shard.erasure.delete_tenant("comet")
        if restart:
            await shard.close()
            shard = await open_shard()
    assert len(seen) == 3


async def test_50_waiting_calls_of_a_deleted_tenant_get_an_error(shard: Shard, clock: ManualClock) -> None:
    """Covers long polls, results, and queued operations."""
    await put_tenant(shard, "doomed")
    (added,) = await shard.add("doomed", Q, [message()])
    await shard.poll("doomed", Q, lease_ms=1_000)
    poll = asyncio.create_task(shard.poll("doomed", Q, wait_ms=60_000))
    result = asyncio.create_task(shard.reads.result("doomed", Q, added.id, wait_ms=60_000))
    await wait_until_idle(shard)
    delete = asyncio.create_task(shard.erasure.delete_tenant("doomed"))
    add = asyncio.create_task(shard.add("doomed", Q, [message()]))
    await delete
    for task in (poll, result, add):
        with pytest.raises((Draining, NotFound)):
            await asyncio.wait_for(task, 5)
    await pass_time(shard, clock, 10_000)
    assert shard.failure is None


async def test_50_the_default_tenant_always_exists(shard: Shard) -> None:
    """It cannot be deleted."""
    assert list(tenants(shard)) == ["default"]
    with pytest.raises(Conflict):
        await shard.erasure.delete_tenant("default")


async def test_tenant_configuration_survives_a_restart(open_shard: OpenShard) -> None:
    """So does that of its queues."""
    shard = await open_shard()
    assert await put_tenant(shard, "acme", weight=7)
    assert not await put_tenant(shard, "acme", create_queues=False)
    await put_queue(shard, "acme", Q, ttl_ms=1_234, dead_letter="grave")
    await shard.close()
    shard = await open_shard()
    assert (tenants(shard)["acme"].weight, tenants(shard)["acme"].create_queues) == (7, False)
    assert (queues(shard, "acme")[Q].ttl_ms, queues(shard, "acme")[Q].dead_letter) == (1_234, "grave")


@pytest.mark.parametrize("what", ["purge", "delete_queue", "delete_tenant"])
@pytest.mark.parametrize("reason", ["\ud800", "x" * 100_000], ids=["surrogate", "long"])
async def test_reason_that_cannot_be_journaled_is_refused(shard: Shard, what: str, reason: str) -> None:
    """It must not stop the shard."""
    await put_tenant(shard, "acme")
    await shard.add("acme", Q, [message()])
    call: Awaitable[object]
    if what == "purge":
        call = purge(shard, "acme", Q, reason=reason)
    elif what == "delete_queue":
        call = delete_queue(shard, "acme", Q, reason=reason)
    else:
        call = shard.erasure.delete_tenant("acme", reason=reason)
    with pytest.raises(Invalid, match="reason"):
        await call
    assert shard.failure is None
    assert shard.reads.stats("acme", Q).ready == 1


async def test_a_caller_that_cannot_be_journaled_does_not_stop_the_shard(shard: Shard) -> None:
    """The caller is untrusted input too."""
    (added,) = await shard.add(T, Q, [message()], caller=Caller("eve\ud800"))
    assert [row.principal for row in await shard.reads.trace(T, Q, added.id)] == ["eve?"]
    assert shard.failure is None


# ---- TTLs ----


async def test_message_expires_its_ttl_after_it_became_visible(shard: Shard, clock: ManualClock) -> None:
    """A delay does not count; body, index and expiry rows are deleted."""
    await shard.add(T, Q, [message(delay_ms=1_000, ttl_ms=500)])
    await pass_time(shard, clock, 1_499)
    assert shard.reads.stats(T, Q).ready == 1
    await pass_time(shard, clock, 1)
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.expired_total, stats.bytes) == (0, 1, 0)
    assert set(left(shard, prefix_of(shard))) == {"qc"}


async def test_message_past_its_ttl_is_not_delivered_before_the_sweep(shard: Shard, clock: ManualClock) -> None:
    """The time counts, not the sweeper."""
    await shard.add(T, Q, [message("short", ttl_ms=500), message("long")])
    clock._pass(500)
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"long"]


async def test_message_in_flight_does_not_expire(shard: Shard, clock: ManualClock) -> None:
    """Its consumer may finish."""
    await shard.add(T, Q, [message(ttl_ms=1_000)])
    (got,) = await shard.poll(T, Q, lease_ms=10_000)
    await pass_time(shard, clock, 5_000)
    assert (await shard.ack(T, Q, [got.receipt]))[0].ok
    assert set(left(shard, prefix_of(shard))) == {"qc"}
    assert shard.reads.stats(T, Q).expired_total == 0


@pytest.mark.parametrize("at_ms", [1_000, 2_000])
@pytest.mark.parametrize("end", ["nack", "release", "expiry"])
async def test_message_that_returns_past_its_ttl_is_discarded(
    shard: Shard, clock: ManualClock, end: str, at_ms: int
) -> None:
    """This includes the very end of its TTL; without polls, nothing is left behind."""
    await shard.add(T, Q, [message(ttl_ms=1_000)])
    (got,) = await shard.poll(T, Q, lease_ms=at_ms if end == "expiry" else 5_000)
    await pass_time(shard, clock, at_ms)
    if end == "nack":
        await shard.nack(T, Q, [got.receipt], delay_ms=0)
    elif end == "release":
        await shard.release(T, Q, [got.receipt])
    await pass_time(shard, clock, 0)
    assert set(left(shard, prefix_of(shard))) == {"qc"}
    stats = shard.reads.stats(T, Q)
    assert (stats.expired_total, stats.ready, stats.bytes) == (1, 0, 0)


async def test_ack_deletes_the_expiry_entry(shard: Shard) -> None:
    """A completed message leaves no expiry behind."""
    await shard.add(T, Q, [message(ttl_ms=86_400_000)])
    (got,) = await shard.poll(T, Q)
    await shard.ack(T, Q, [got.receipt])
    assert set(left(shard, prefix_of(shard))) == {"qc"}


async def test_nacked_message_hidden_beyond_its_ttl_is_discarded_on_time(shard: Shard, clock: ManualClock) -> None:
    """The TTL counts from the first visibility."""
    await shard.add(T, Q, [message(ttl_ms=1_000)])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt], delay_ms=60_000)
    await pass_time(shard, clock, 1_000)
    assert shard.reads.stats(T, Q).expired_total == 1
    assert set(left(shard, prefix_of(shard))) == {"qc"}


async def test_queue_ttl_is_the_default_of_messages(shard: Shard, clock: ManualClock) -> None:
    """It applies to messages added from then on."""
    await shard.add(T, Q, [message("eternal")])
    await put_queue(shard, T, Q, ttl_ms=1_000)
    await shard.add(T, Q, [message("queue's"), message("own", ttl_ms=5_000)])
    await pass_time(shard, clock, 1_000)
    assert [one.body for one in (await shard.reads.peek(T, Q)).messages] == [b"eternal", b"own"]


# ---- figures ----


async def test_stats_count_ready_delayed_in_flight_dead_and_bytes(open_shard: OpenShard, clock: ManualClock) -> None:
    """They follow every transition, and are the same after a restart."""
    shard = await open_shard()
    await put_queue(shard, T, Q, max_attempts=1)
    await shard.add(T, Q, [message("12345"), message("123", delay_ms=1_000), message("1"), message("12")])
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.in_flight, stats.dead, stats.bytes) == (3, 1, 0, 0, 11)
    first, second = await shard.poll(T, Q, max=2, lease_ms=5_000)
    await shard.nack(T, Q, [first.receipt])
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.in_flight, stats.dead, stats.bytes) == (1, 1, 1, 1, 6)
    clock._pass(1_000)  # due, and no timer has run
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.in_flight) == (2, 0, 1)
    await pass_time(shard, clock, 0)
    before = shard.reads.stats(T, Q)
    assert (before.ready, before.delayed, before.in_flight) == (2, 0, 1)
    await shard.close()
    shard = await open_shard()
    await wait_until_idle(shard)
    assert shard.reads.stats(T, Q) == before
    await shard.ack(T, Q, [second.receipt])
    got = await shard.poll(T, Q, max=9)
    await shard.ack(T, Q, [one.receipt for one in got])
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.in_flight, stats.bytes) == (0, 0, 0, 0)
    assert (stats.added_total, stats.added_bytes_total, stats.delivered_total) == (4, 11, 4)
    assert (stats.acked_total, stats.nacked_total, stats.dead_total) == (3, 1, 1)


async def test_oldest_age_is_the_time_since_the_oldest_ready_message_became_visible(
    shard: Shard, clock: ManualClock
) -> None:
    """It covers all priorities; without ready messages there is no age."""
    await put_queue(shard, T, Q)
    assert shard.reads.stats(T, Q).oldest_age_ms == 0
    await shard.add(T, Q, [message("low", delay_ms=1_000)])
    await pass_time(shard, clock, 1_000)
    assert shard.reads.stats(T, Q).oldest_age_ms == 0
    await pass_time(shard, clock, 2_000)
    await shard.add(T, Q, [message("high", priority=9)])
    assert shard.reads.stats(T, Q).oldest_age_ms == 2_000
    await pass_time(shard, clock, 500)
    await shard.poll(T, Q)
    assert shard.reads.stats(T, Q).oldest_age_ms == 2_500
    await shard.poll(T, Q)
    assert shard.reads.stats(T, Q).oldest_age_ms == 0


# ---- reads ----


async def test_peek_pages_through_everything_that_waits_in_order_of_delivery(shard: Shard) -> None:
    """Each message appears once, across priorities and pages, without a lease."""
    await shard.add(T, Q, [message(f"{n}", priority=n % 3, delay_ms=1_000 * (n % 2)) for n in range(11)])
    whole = [one.id for one in (await shard.reads.peek(T, Q, limit=100)).messages]
    paged: list[str] = []
    cursor = None
    while True:
        page = await shard.reads.peek(T, Q, limit=4, cursor=cursor)
        paged += [one.id for one in page.messages]
        cursor = page.cursor
        if cursor is None:
            break
    assert paged == whole
    assert len(set(whole)) == 11
    assert shard.reads.stats(T, Q).in_flight == 0


async def test_peek_refuses_an_invalid_cursor(shard: Shard) -> None:
    """A page size above the limit is refused too."""
    await put_queue(shard, T, Q)
    for cursor in ("", "zz", "00", "00" * 26):
        with pytest.raises(Invalid, match="cursor"):
            await shard.reads.peek(T, Q, cursor=cursor)
    for limit in (0, 1_001, True):
        with pytest.raises(Invalid, match="limit"):
            await shard.reads.peek(T, Q, limit=limit)


async def test_get_returns_all_facts_in_every_state(shard: Shard, clock: ManualClock) -> None:
    """Covers ready, delayed, blocked and in flight; times are wall time."""
    start = clock.wall_ms()
    batch = [message("r", attributes={"a": "1"}), message("d", delay_ms=1_000, ttl_ms=500)]
    batch += [message("g", group="x"), message("b", group="x", max_attempts=3)]
    ready, delayed, head, blocked = await shard.add(T, Q, batch)
    states = [(await shard.reads.get(T, Q, one.id)).state for one in (ready, delayed, head, blocked)]
    assert states == ["ready", "delayed", "ready", "blocked"]
    facts = await shard.reads.get(T, Q, delayed.raw_id)
    assert (facts.added_at, facts.visible_at, facts.expires_at) == (start, start + 1_000, start + 1_500)
    assert (await shard.reads.get(T, Q, ready.id)).attributes == {"a": "1"}
    assert [(await shard.reads.get(T, Q, one.id)).max_attempts for one in (ready, blocked)] == [5, 3]
    await shard.poll(T, Q, lease_ms=700)
    facts = await shard.reads.get(T, Q, ready.id)
    assert (facts.state, facts.attempts, facts.lease_until) == ("in_flight", 1, start + 700)
    for unknown in (bytes(16), "00000000-0000-7000-8000-000000000000"):
        with pytest.raises(NotFound):
            await shard.reads.get(T, Q, unknown)
    with pytest.raises(Invalid, match="id"):
        await shard.reads.get(T, Q, "nonsense")


# ---- opening, closing, limits ----


async def test_a_directory_belongs_to_one_shard_at_a_time(open_shard: OpenShard) -> None:
    """The second is refused and changes nothing."""
    shard = await open_shard()
    with pytest.raises(StoreLocked):
        await open_shard()
    await shard.add(T, Q, [message()])
    await shard.close()
    again = await open_shard()
    assert again.reads.stats(T, Q).ready == 1


async def test_closed_shard_refuses_everything_and_can_be_closed_again(shard: Shard) -> None:
    """The error says that it is closed."""
    await shard.add(T, Q, [message()])
    await shard.close()
    await shard.close()
    for call in (shard.add(T, Q, [message()]), shard.poll(T, Q), shard.reads.get(T, Q, bytes(16))):
        with pytest.raises(Closed):
            await call


async def test_close_finishes_queued_operations(open_shard: OpenShard) -> None:
    """Every accepted add gets a reply and is stored."""
    shard = await open_shard()
    adds = [asyncio.create_task(shard.add(T, Q, [message()])) for _ in range(50)]
    await asyncio.sleep(0)
    await shard.close()
    assert [one.error for reply in await asyncio.gather(*adds) for one in reply] == [None] * 50
    shard = await open_shard()
    assert shard.reads.stats(T, Q).ready == 50


async def test_full_line_refuses_only_work_of_its_tenant(open_shard: OpenShard) -> None:
    """Refused work has no effect."""
    shard = await open_shard(settings=ShardSettings(line_ops_max=3))
    await put_tenant(shard, "other")
    tasks = [asyncio.create_task(shard.add(T, Q, [message()])) for _ in range(5)]
    calm = asyncio.create_task(shard.add("other", Q, [message()]))
    replies = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(reply, Busy) for reply in replies] == [False] * 3 + [True] * 2
    assert (await calm)[0].error is None
    assert shard.reads.stats(T, Q).ready == 3


async def test_adds_are_refused_below_the_disk_reserve(open_shard: OpenShard) -> None:
    """Stored work can be finished on a full disk."""
    shard = await open_shard()
    await shard.add(T, Q, [message()])
    await shard.close()
    shard = await open_shard(settings=ShardSettings(disk_reserve_bytes=1 << 60))
    with pytest.raises(DiskFull):
        await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    assert (await shard.ack(T, Q, [got.receipt]))[0].ok
    assert shard.failure is None


async def test_store_failure_fails_waiting_polls_at_once(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody keeps waiting for a stopped shard."""
    await put_queue(shard, T, Q)
    waiting = asyncio.create_task(shard.poll(T, Q, wait_ms=60_000))
    await wait_until_idle(shard)

    def broken(*_: object) -> None:
        raise StoreFailed("disk on fire")

    monkeypatch.setattr(type(shard.state.store), "get_many", broken)
    monkeypatch.setattr(type(shard.state.store), "scan_items", broken)
    adding = asyncio.create_task(shard.add(T, Q, [message()]))
    done, _ = await asyncio.wait([waiting, adding], timeout=2)
    assert done == {waiting, adding}
    assert isinstance(waiting.exception(), StoreFailed)
    assert adding.exception() is None or isinstance(adding.exception(), StoreFailed)
    with pytest.raises(StoreFailed):
        await shard.add(T, Q, [message()])
    assert shard.loop.stopped.is_set()


async def test_close_syncs_with_durability_os(open_shard: OpenShard) -> None:
    """A clean close gives the full guarantee."""
    points: list[str] = []
    shard = await open_shard(settings=ShardSettings(durability="os"), probe=points.append)
    await shard.add(T, Q, [message()])
    await shard.close()
    assert "after_sync" in points[len(points) - 1 - points[::-1].index("after_write") :]


async def test_heart_is_never_ahead_of_the_sync(shard: Shard) -> None:
    """A synced round without effects proves nothing about a later round."""
    await put_queue(shard, T, Q)
    await put_queue(shard, T, "empty")
    await wait_until_idle(shard)
    handed: list[Round] = []

    class Held:
        """A committer that never syncs on its own."""

        is_quick = False

        def hand_over(self, round: Round) -> None:
            handed.append(round)

    real, shard.loop._committer = shard.loop._committer, Held()  # type: ignore[assignment]
    try:
        first = asyncio.create_task(shard.add(T, Q, [message("first")]))
        await _until(handed, 1)
        nothing = [asyncio.create_task(shard.poll(T, "empty")) for _ in range(64)]  # enough for their own round
        await _until(handed, 2)
        synced = shard.journal.span[1]
        shard.loop._synced([handed[0]], None)  # the first add is on disk
        second = asyncio.create_task(shard.add(T, Q, [message("second")] * 64))
        await _until(handed, 3)
        shard.loop._synced([handed[1]], None)  # the empty poll is reported; the second add is not on disk yet
        beat = shard.state.store.last_beat()
        shard.loop._synced([handed[2]], None)
        assert beat is not None
        assert beat.seq <= synced
        await asyncio.gather(first, second, *nothing)
    finally:
        shard.loop._committer = real


async def _until(handed: list[Round], count: int) -> None:
    for _ in range(20):
        if len(handed) >= count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(handed)} rounds were handed over, not {count}")


async def test_queue_prefix_format(shard: Shard) -> None:
    """It is tenant ID and queue ID, big-endian, counted from one."""
    await put_queue(shard, T, "a")
    await put_queue(shard, T, "b")
    assert [prefix_of(shard, T, name) for name in ("a", "b")] == [queue_prefix(1, 1), queue_prefix(1, 2)]
