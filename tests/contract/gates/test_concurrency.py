"""Calls in flight are limited: excess calls wait for a slot, then get an error, and no slot is ever lost."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Self

import pytest

from tenantq.domain.access import Grant
from tenantq.errors import Busy, Forbidden, NotFound, QuotaExceeded, TenantqError, Unauthenticated
from tenantq.service.gate_settings import GateSettings
from tests.administration import put_tenant, queues, revoke_key, unpause_queue
from tests.contract.gates.service_calls import SERVICE_CALLS
from tests.shards import message
from tests.verbs import verbs

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tenantq.service.call import Call
    from tests.contract.gates.conftest import OpenHarness
    from tests.contract.gates.harness import ServiceHarness


class Gate:
    """Holds back the rounds of a shard, so that admitted calls stay in flight."""

    def __init__(self, harness: ServiceHarness) -> None:
        self.harness = harness

    def __enter__(self) -> Self:
        self.harness.shard.loop._step_scheduled = True  # as if a round was scheduled already, so none is
        return self

    def __exit__(self, *_: object) -> None:
        self.harness.shard.loop._step_scheduled = False
        self.harness.shard.loop._schedule()


async def turns() -> None:
    """Let every task run as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a call in the background."""
    return asyncio.get_running_loop().create_task(work)


async def test_calls_above_the_tenant_limit_wait_for_a_slot(harness: ServiceHarness) -> None:
    """They run in order of arrival; another tenant's calls do not wait."""
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


async def test_waiting_too_long_for_a_slot_is_an_error(harness: ServiceHarness) -> None:
    """It names the limit, is journaled as throttled, and nothing was done."""
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


async def test_number_of_waiting_calls_is_limited(open_harness: OpenHarness) -> None:
    """One call too many is refused at once."""
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
async def test_adds_and_polls_of_a_queue_have_separate_limits(harness: ServiceHarness, kind: str) -> None:
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
async def test_waiting_polls_occupy_no_slots(harness: ServiceHarness, why: str) -> None:
    """Other polls, adds and above all acks continue, whatever the polls wait for."""
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
    for _ in waiting:  # each checks the queue once, and then only waits
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


async def test_polls_waiting_for_tokens_occupy_no_slots(harness: ServiceHarness) -> None:
    """An ack succeeds even if there are as many such polls as slots."""
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


async def test_waits_for_results_occupy_no_slots(harness: ServiceHarness) -> None:
    """A tenant may wait for more results than it may have calls in flight."""
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


async def test_calls_on_one_connection_are_limited(open_harness: OpenHarness) -> None:
    """Waiting calls count too, because a connection belongs to one client."""
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


async def test_consumers_of_a_queue_are_limited(harness: ServiceHarness) -> None:
    """They are counted by credential and address, or by name; an absence of a minute frees the place."""
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


async def test_consumer_with_a_waiting_poll_keeps_its_place(harness: ServiceHarness) -> None:
    """However long the poll waits, no other consumer takes its place."""
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


async def test_fleet_poll_counts_as_a_consumer(harness: ServiceHarness) -> None:
    """Polling many tenants at once does not bypass the quota."""
    await harness.tenant("acme", quotas={"consumers_per_queue": 1})
    call = await harness.key("acme")
    await harness.add(call, "work", *"abc")
    await harness.take(call, "work", consumer="one")
    with pytest.raises(QuotaExceeded):
        await harness.service.fleet.poll(call, "work", tenants=["acme"], consumer="two")


async def test_recreated_tenant_has_no_consumers_of_the_old_one(harness: ServiceHarness) -> None:
    """They are removed with the old tenant."""
    for _ in range(2):
        await harness.tenant("acme", quotas={"consumers_per_queue": 1})
        call = await harness.key("acme")
        await harness.add(call, "work", *"abc")
        assert await harness.take(call, "work")
        await harness.service.erasures.delete_tenant(
            harness.admin, "acme", confirm="acme", reason="because of the test"
        )


async def test_longest_consumer_and_principal_names_fit_together(harness: ServiceHarness) -> None:
    """Each within its own limit is within the limit of both."""
    await harness.tenant("acme", quotas={"consumers_per_queue": 5})
    call = await harness.key("acme")
    await harness.add(call, "work")
    assert await harness.take(call, "work", consumer="c" * 128)


async def test_call_is_authorized_again_after_waiting_for_a_slot(harness: ServiceHarness) -> None:
    """If its key was revoked in the meantime, it is refused."""
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


async def test_call_waiting_for_a_deleted_tenant_does_not_run_in_its_successor(
    harness: ServiceHarness,
) -> None:
    """A new tenant of the same name is another tenant."""
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
async def test_cancelled_calls_lose_no_slot(open_harness: OpenHarness, seed: int) -> None:
    """Calls are cancelled at any step under tight limits: all slots return, and no message is lost."""
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
    acking: set[bytes] = set()  # a cancelled caller does not know the outcome
    acked: set[bytes] = set()

    async def act(tenant: str, call: Call) -> None:
        kind = rng.choice(["add", "add", "poll", "long", "fleet", "message_reads.result", *SERVICE_CALLS])
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
            await SERVICE_CALLS[kind][1](harness.service, call, tenant)

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
        await unpause_queue(harness.shard, name, "work")
        left |= {one.raw_id for one in await verbs(harness.shard).poll(name, "work", max=1_000)}
    assert added - acking <= left  # cancelled adds may have succeeded too
    assert not acked & left


async def test_platform_fleet_polls_occupy_no_tenant_slot(harness: ServiceHarness) -> None:
    """This includes the tenant 'default', which may belong to a customer."""
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
