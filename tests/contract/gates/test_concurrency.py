"""What is in flight is bounded; the excess waits its turn, then is told so; and no place is ever lost."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Self

import pytest

from tenantq.domain.access import Grant
from tenantq.errors import Busy, Forbidden, NotFound, QuotaExceeded, TenantqError, Unauthenticated
from tenantq.service.gate_settings import GateSettings
from tests.administration import put_tenant, queues, resume_queue, revoke_key
from tests.contract.gates.every_act import ACTS
from tests.shards import message
from tests.verbs import verbs

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tenantq.service.call import Call
    from tests.contract.gates.conftest import OpenHarness
    from tests.contract.gates.harness import ServiceHarness


class Gate:
    """Holds the rounds of a shard back, so that whatever is let in stays in flight."""

    def __init__(self, harness: ServiceHarness) -> None:
        self.harness = harness

    def __enter__(self) -> Self:
        self.harness.shard.loop._step_scheduled = True  # as if a round were about to run: none is scheduled
        return self

    def __exit__(self, *_: object) -> None:
        self.harness.shard.loop._step_scheduled = False
        self.harness.shard.loop._schedule()


async def turns() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a call beside others."""
    return asyncio.get_running_loop().create_task(work)


async def test_requests_of_a_tenant_beyond_its_bound_wait_and_then_go(harness: ServiceHarness) -> None:
    """In the order they came; another tenant's go by."""
    await harness.tenant("acme", concurrency={"requests": 2})
    await harness.tenant("globex")
    call, other = await harness.key("acme"), await harness.key("globex")
    await harness.wait_until_idle()
    with Gate(harness):
        tasks = [start(harness.add(call, "work", f"{n}")) for n in range(5)]
        await turns()
        slots = harness.admission.slots
        assert (slots._tenants.in_flight.get("acme", 0), slots._waiting["acme"]) == (2, 3)
        start_other = start(harness.add(other, "work"))
        await turns()
        assert slots._tenants.in_flight.get("globex", 0) == 1
    await asyncio.gather(*tasks, start_other)
    assert [one.body for one in await harness.take(call, "work", max=9)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_who_waits_too_long_for_a_place_is_told_so(harness: ServiceHarness) -> None:
    """With the name of the bound; journaled as throttled; nothing was done for it."""
    await harness.tenant("acme", concurrency={"requests": 1})
    call = await harness.key("acme")
    await harness.wait_until_idle()
    with Gate(harness):
        first = start(harness.add(call, "work", "in"))
        second = start(harness.add(call, "work", "out"))
        await turns()
        harness.clock.advance(5_000)
        await turns()
        with pytest.raises(Busy) as caught:
            await second
        assert caught.value.message.startswith("concurrency.requests: 1 ")
        assert caught.value.status == 503
    await first
    assert [one.body for one in await harness.take(call, "work", max=9)] == [b"in"]
    (row,) = await harness.rows(result="DENIED")
    assert (row.op, row.error_code) == ("add", "unavailable")


async def test_the_line_itself_is_bounded(open_harness: OpenHarness) -> None:
    """The one too many is refused at once."""
    harness = await open_harness(settings=GateSettings(waiting_per_tenant=3))
    await harness.tenant("acme", concurrency={"requests": 1})
    call = await harness.key("acme")
    await harness.wait_until_idle()
    with Gate(harness):
        tasks = [start(harness.add(call, "work")) for _ in range(4)]
        await turns()
        with pytest.raises(Busy):
            await harness.add(call, "work")
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("kind", ["adds", "polls"])
async def test_adds_and_polls_of_one_queue_are_bounded_apart(harness: ServiceHarness, kind: str) -> None:
    """Those of another queue of the tenant do not wait for them."""
    await harness.tenant("acme", concurrency={kind: 1})
    call = await harness.key("acme")
    for queue in ("one", "two"):
        await harness.add(call, queue, "a", "b", "c")
    await harness.wait_until_idle()
    with Gate(harness):
        act = harness.add if kind == "adds" else harness.take
        tasks = [start(act(call, queue)) for queue in ("one", "one", "two")]
        await turns()
        assert (
            harness.admission.slots._tenants.in_flight.get("acme", 0),
            harness.admission.slots._waiting["acme"],
        ) == (
            2,
            1,
        )
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("why", ["empty", "paused", "quota", "group", "delayed"])
async def test_polls_that_only_wait_hold_up_nobody(harness: ServiceHarness, why: str) -> None:
    """Neither other polls nor adds nor, above all, acks, whatever the polls are waiting for."""
    await harness.tenant("acme", concurrency={"requests": 2, "polls": 1})
    call = await harness.key("acme")
    await harness.service.queues.put(call, None, "work", {})
    await harness.add(call, "other", "held")
    (held,) = await harness.take(call, "other", lease_ms=60_000)
    if why == "paused":
        await harness.add(call, "work")
        await harness.service.queues.pause(call, None, "work")
    elif why == "group":
        await harness.add(call, "work", "1", "2", group="g")
        await harness.take(call, "work", lease_ms=60_000)
    elif why == "delayed":
        await harness.add(call, "work", delay_ms=90_000)
    waiting = [start(harness.take(call, "work", wait_ms=30_000)) for _ in range(4)]
    for _ in waiting:  # one after the other they look whether there is something, and then only wait
        await turns()
        await harness.wait_until_idle()
    if why == "quota":
        await harness.tenant("acme", quotas={"in_flight": 1})
        await harness.add(call, "work", "x", "y")
        await harness.wait_until_idle()
    assert harness.admission.slots._waiting["acme"] == 0
    assert harness.admission.slots._tenants.in_flight.get("acme", 0) == 0
    assert (await harness.service.settlement.ack(call, None, "other", [held.receipt]))[0].ok
    await harness.add(call, "third")
    await harness.pass_time(30_000)
    await asyncio.gather(*waiting)


async def test_polls_that_wait_for_the_rate_hold_up_nobody(harness: ServiceHarness) -> None:
    """An ack passes though every place that the tenant has would be taken by polls without tokens."""
    await harness.tenant("acme", concurrency={"requests": 2}, limits={"read": {"ops_per_sec": 1}})
    call = await harness.key("acme")
    await harness.add(call, "work", *"abcd")
    (held,) = await harness.take(call, "work", lease_ms=60_000)
    waiting = [start(harness.take(call, "work", wait_ms=30_000)) for _ in range(3)]
    await harness.wait_until_idle()
    acking = start(harness.service.settlement.ack(call, None, "work", [held.receipt]))
    await harness.wait_until_idle()
    await turns()
    assert acking.done()
    assert acking.result()[0].ok
    for _ in range(5):
        await harness.pass_time(1_000)
    await asyncio.gather(*waiting)


async def test_results_that_are_waited_for_hold_up_nobody(harness: ServiceHarness) -> None:
    """A tenant may wait for more results than it may have requests in flight."""
    await harness.tenant("acme", concurrency={"requests": 1})
    call = await harness.key("acme")
    (added,) = await harness.add(call, "work")
    waiting = [
        start(harness.service.message_reads.result(call, None, "work", added.id, wait_ms=30_000)) for _ in range(5)
    ]
    await harness.wait_until_idle()
    (got,) = await harness.take(call, "work")
    assert (await harness.service.settlement.ack(call, None, "work", [got.receipt]))[0].ok
    await harness.wait_until_idle()
    for result, _ in await asyncio.gather(*waiting):
        assert result.status == "completed"


async def test_requests_on_one_connection_are_bounded(open_harness: OpenHarness) -> None:
    """Also those that only wait: a connection is one client's."""
    harness = await open_harness(settings=GateSettings(connection_requests=2))
    await harness.tenant("acme")
    call = await harness.key("acme")
    await harness.service.queues.put(call, None, "work", {})
    mine = harness.call(call.bearer, connection="c-1")
    polls = [start(harness.take(mine, "work", wait_ms=30_000)) for _ in range(3)]
    await harness.wait_until_idle()
    assert harness.admission.slots._waiting["acme"] == 1
    await harness.add(harness.call(call.bearer, connection="c-2"), "work", "a", "b", "c")
    await harness.wait_until_idle()
    await asyncio.gather(*polls)


async def test_consumers_of_a_queue_are_bounded(harness: ServiceHarness) -> None:
    """By credential and address, or the name they give; who is gone for a minute makes room."""
    await harness.tenant("acme", quotas={"consumers_per_queue": 2})
    call = await harness.key("acme")
    await harness.add(call, "work", *"abcdefgh")
    for name in ("one", "two", "one"):
        await harness.take(call, "work", consumer=name)
    with pytest.raises(QuotaExceeded) as caught:
        await harness.take(call, "work", consumer="three")
    assert (caught.value.limit, caught.value.current) == (2, 2)
    assert caught.value.message.startswith("quotas.consumers_per_queue: 2 ")
    await harness.take(call, "work", consumer="two")
    await harness.pass_time(60_001)
    await harness.take(call, "work", consumer="three")


async def test_a_consumer_that_still_waits_is_not_gone(harness: ServiceHarness) -> None:
    """However long its poll is: nobody takes its place meanwhile."""
    await harness.tenant("acme", quotas={"consumers_per_queue": 1})
    call = await harness.key("acme")
    await harness.service.queues.put(call, None, "work", {})
    waiting = start(harness.take(call, "work", consumer="one", wait_ms=300_000))
    for _ in range(4):
        await harness.pass_time(60_000)
        with pytest.raises(QuotaExceeded):
            await harness.take(call, "work", consumer="two")
    await harness.pass_time(60_000)
    assert await waiting == []


async def test_a_fleet_poll_counts_as_a_consumer_where_consumers_are_bounded(harness: ServiceHarness) -> None:
    """There is no way around the quota by asking for many tenants at once."""
    await harness.tenant("acme", quotas={"consumers_per_queue": 1})
    call = await harness.key("acme")
    await harness.add(call, "work", *"abc")
    await harness.take(call, "work", consumer="one")
    with pytest.raises(QuotaExceeded):
        await harness.service.fleet.poll(call, "work", tenants=["acme"], consumer="two")


async def test_a_new_tenant_of_the_same_name_has_no_consumers_of_the_old(harness: ServiceHarness) -> None:
    """They went with it."""
    for _ in range(2):
        await harness.tenant("acme", quotas={"consumers_per_queue": 1})
        call = await harness.key("acme")
        await harness.add(call, "work", *"abc")
        assert await harness.take(call, "work")
        await harness.service.erasures.delete_tenant(
            harness.admin, "acme", confirm="acme", reason="because of the test"
        )


async def test_a_long_name_of_a_consumer_and_of_its_principal_fit_together(harness: ServiceHarness) -> None:
    """Each within its own bound is within the bound of both."""
    await harness.tenant("acme", quotas={"consumers_per_queue": 5})
    call = await harness.key("acme")
    await harness.add(call, "work")
    assert await harness.take(call, "work", consumer="c" * 128)


async def test_who_waits_for_a_place_is_judged_when_it_comes(harness: ServiceHarness) -> None:
    """A key revoked, or a tenant deleted and made anew, while a call waited: it is refused."""
    await harness.tenant("acme", concurrency={"requests": 1})
    owner = await harness.key("acme")
    worker, key_id = await harness.key_and_id("acme", "producer")
    await harness.wait_until_idle()
    with Gate(harness):
        first = start(harness.add(owner, "work", "first"))
        second = start(harness.add(worker, "work", "second"))
        await turns()
        assert harness.admission.slots._waiting["acme"] == 1
        revoked = start(revoke_key(harness.shard, "acme", key_id))
    await asyncio.gather(first, revoked)
    with pytest.raises(Unauthenticated):
        await second


async def test_who_waits_for_a_place_in_a_tenant_that_is_deleted_gets_none_in_its_namesake(
    harness: ServiceHarness,
) -> None:
    """What was asked of the old tenant does not happen in the new one."""
    await harness.tenant("acme", concurrency={"requests": 1})
    owner = await harness.key("acme")
    await harness.tenant("fleet")
    worker, key_id = await harness.key_and_id("fleet", "producer")
    await harness.service.access.put_grant(harness.admin, "acme", f"key:{key_id}", Grant(role="producer"))
    await harness.wait_until_idle()
    with Gate(harness):
        first = start(harness.add(owner, "work", "first"))
        second = start(harness.add(worker, "work", "second", tenant="acme"))
        await turns()
        assert harness.admission.slots._waiting["acme"] == 1
        deleted = start(harness.shard.erasure.delete_tenant("acme"))
        made = start(put_tenant(harness.shard, "acme"))
    await asyncio.gather(first, deleted, made, return_exceptions=True)
    with pytest.raises((NotFound, Forbidden)):
        await second
    assert queues(harness.shard, "acme") == {}


@pytest.mark.parametrize("seed", range(8))
async def test_no_place_is_lost_however_callers_vanish(open_harness: OpenHarness, seed: int) -> None:
    """Cancelled at any step of any call, under bounds that make many wait: all places come back, no message is lost."""
    harness = await open_harness(settings=GateSettings(server_requests=4, connection_requests=3, slot_wait_ms=200))
    rng = random.Random(seed)
    calls: list[tuple[str, Call]] = []
    for name in ("acme", "globex"):
        await harness.tenant(
            name, concurrency={"requests": 3, "adds": 2, "polls": 1}, limits={"read": {"ops_per_sec": 50}},
            quotas={"in_flight": 20, "consumers_per_queue": 3},
        )  # fmt: skip
        key = await harness.key(name)
        await harness.service.queues.put(key, None, "work", {})
        calls += [(name, harness.call(key.bearer, connection=f"{name}-{n % 2}")) for n in range(4)]
    added: set[bytes] = set()
    acking: set[bytes] = set()  # who vanished meanwhile does not know whether it was done
    acked: set[bytes] = set()

    async def act(tenant: str, call: Call) -> None:
        kind = rng.choice(["add", "add", "poll", "long", "fleet", "message_reads.result", *ACTS])
        if kind == "add":
            added.update([new.raw_id for new in await harness.service.messages.add(call, None, "work", [message()])])
        elif kind in {"poll", "long", "fleet"}:
            wait_ms = 0 if kind == "poll" else rng.choice((50, 500))
            if kind == "fleet":
                got = await harness.service.fleet.poll(call, "work", max=2, wait_ms=wait_ms)
            else:
                got = await harness.service.messages.poll(
                    call, None, "work", max=2, wait_ms=wait_ms, consumer=rng.choice((None, "a", "b"))
                )
            for one in got:
                acking.add(one.raw_id)
                (outcome,) = await harness.service.settlement.ack(call, None, "work", [one.receipt])
                if outcome.ok:
                    acked.add(one.raw_id)
        elif kind not in {
            "queues.purge",
            "queues.delete",
            "settlement.remove",
            "erasures.delete_tenant",
            "tenants.suspend",
        }:
            await ACTS[kind][1](harness.service, call, tenant)

    tasks: list[asyncio.Task[None]] = []
    for _ in range(250):
        tasks.append(start(act(*rng.choice(calls))))
        for _ in range(rng.choice((0, 0, 1, 2))):
            await asyncio.sleep(0)
        if rng.random() < 0.5:
            rng.choice(tasks).cancel()
        if rng.random() < 0.2:
            harness.clock.advance(rng.choice((1, 30, 250)))
    for _ in range(20):
        await harness.pass_time(300)
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
    wrong = [one for one in done if isinstance(one, Exception) and not isinstance(one, TenantqError)]
    assert not wrong, wrong
    slots = harness.admission.slots
    assert (slots.in_flight, slots.waiting) == (0, 0)
    assert not any(scope.in_flight or scope.queues for scope in slots._scopes())
    assert slots.reconcile() == 0
    assert harness.admission.rates.waiting("acme") + harness.admission.rates.waiting("globex") == 0
    await harness.pass_time(60_000)
    left: set[bytes] = set()
    for name in ("acme", "globex"):
        await harness.tenant(
            name, limits={"read": {"ops_per_sec": None}}, quotas={"in_flight": None, "consumers_per_queue": None}
        )
        await resume_queue(harness.shard, name, "work")
        left |= {one.raw_id for one in await verbs(harness.shard).poll(name, "work", max=1_000)}
    assert added - acking <= left  # cancelled adds may be in too: nobody was told
    assert not acked & left


async def test_fleets_of_the_platform_take_no_place_of_a_tenant(harness: ServiceHarness) -> None:
    """Not even of 'default', which may be a customer's like any other."""
    await harness.tenant("default", concurrency={"requests": 1})
    call = await harness.key("default")
    await harness.add(call, "work", "first")
    await harness.wait_until_idle()
    with Gate(harness):
        held = start(harness.add(call, "work", "second"))
        await turns()
        assert harness.admission.slots._tenants.in_flight.get("default", 0) == 1
        fleet = start(harness.service.fleet.poll(harness.admin, "work", tenants=["default"]))
        await turns()
        assert harness.admission.slots.waiting == 0
    assert [one.body for one in await fleet] == [b"first"]
    await held
