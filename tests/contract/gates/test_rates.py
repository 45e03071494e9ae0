"""Behaviours 44 and 45: rate limits belong to the tenant, act at once, and use up nothing when they refuse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.access import Grant
from tenantq.engine.disk_space import MEASURE_MS
from tenantq.errors import DiskFull, Invalid, QuotaExceeded, RateLimited, StoreFailed, Suspended, TenantqError, TooLarge
from tenantq.service.audit_trail import AuditQuery
from tests.administration import usage
from tests.shards import message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.service.call import Call
    from tests.contract.gates.house import House


async def limited(house: House, name: str = "acme", **limits: Any) -> Call:
    """Return a request of a tenant's administrator, and have the tenant limited."""
    await house.tenant(name, limits=limits)
    return await house.key(name)


async def refused_for(asked: Awaitable[Any]) -> int:
    """Return after how many milliseconds a refused call may come again."""
    with pytest.raises(RateLimited) as caught:
        await asked
    assert (caught.value.code, caught.value.status) == ("rate_limited", 429)
    assert caught.value.retry_after_ms >= 1
    return caught.value.retry_after_ms


async def test_44_two_keys_of_one_tenant_share_the_limit_and_two_tenants_do_not(house: House) -> None:
    """Whoever of the tenant comes when it is used up is refused; the other tenant notices nothing."""
    first = await limited(house, write={"ops_per_sec": 10})
    second = await house.key("acme")
    other = await limited(house, "globex", write={"ops_per_sec": 10})
    for n in range(10):
        await house.add((first, second)[n % 2], "work")
    for call in (first, second):
        await refused_for(house.add(call, "work"))
        await refused_for(house.add(call, "another-queue"))
        await refused_for(house.add(house.admin, "work", tenant="acme"))
    for _ in range(10):
        await house.add(other, "work")
    await refused_for(house.add(other, "work"))


async def test_44_after_waiting_as_long_as_was_said_it_succeeds(house: House) -> None:
    """Not a millisecond earlier; the refusal names limit, what is left, and when."""
    call = await limited(house, write={"ops_per_sec": 4, "burst": 2})
    await house.add(call, "work", "a", "b")
    for _ in range(5):
        wait_ms = await refused_for(house.add(call, "work"))
        assert wait_ms == 250
        await house.pass_time(wait_ms - 1)
        await refused_for(house.add(call, "work"))
        await house.pass_time(1)
        await house.add(call, "work")
    with pytest.raises(RateLimited) as caught:
        await house.add(call, "work")
    assert caught.value.limit == 4
    assert caught.value.message.startswith("limits.write.ops_per_sec: 4 a second for this tenant")


async def test_44_a_limit_acts_as_soon_as_it_is_set_or_changed(house: House) -> None:
    """Online: set, raised, lowered, taken away."""
    await house.tenant("acme")
    call = await house.key("acme")
    await house.add(call, "work", *["x"] * 100)
    await house.tenant("acme", limits={"write": {"ops_per_sec": 5}})
    await house.add(call, "work", *["x"] * 5)
    await refused_for(house.add(call, "work"))
    await house.tenant("acme", limits={"write": {"ops_per_sec": 100}})
    await house.pass_time(1_000)
    await house.add(call, "work", *["x"] * 100)
    await refused_for(house.add(call, "work"))
    await house.tenant("acme", limits={"write": {"ops_per_sec": None}})
    await house.add(call, "work", *["x"] * 500)


async def measured(house: House, act: Callable[[], Awaitable[Any]], amount: Callable[[Any], int]) -> int:
    """Return how much passes in ten seconds, asked for every ten milliseconds, after the burst is used up."""
    while True:
        try:
            if not amount(await act()):
                break
        except RateLimited:
            break
    passed = 0
    for _ in range(1_000):
        house.clock.advance(10)
        try:
            passed += amount(await act())
        except RateLimited:
            continue
    await house.settled()
    return passed


@pytest.mark.parametrize("rate", [7, 50])
async def test_44_the_rate_of_adds_over_ten_seconds_is_the_limit(house: House, rate: int) -> None:
    """Within ten percent, by tenant and by queue."""
    call = await limited(house, write={"ops_per_sec": rate})
    passed = await measured(house, lambda: house.add(call, "work"), len)
    assert abs(passed - 10 * rate) <= rate
    await house.tenant("globex")
    other = await house.key("globex")
    await house.service.queues.put(other, None, "work", {"limits": {"write": {"ops_per_sec": rate}}})
    passed = await measured(house, lambda: house.add(other, "work"), len)
    assert abs(passed - 10 * rate) <= rate
    await house.add(other, "unlimited", *["x"] * 1_000)


async def test_44_the_rate_of_bytes_over_ten_seconds_is_the_limit(house: House) -> None:
    """Within ten percent."""
    call = await limited(house, write={"bytes_per_sec": 5_000})
    passed = await measured(house, lambda: house.add(call, "work", "x" * 100), len)
    assert abs(passed * 100 - 50_000) <= 5_000


@pytest.mark.parametrize("max", [1, 10, 100])
@pytest.mark.parametrize("fleet", [False, True], ids=["poll", "fleet poll"])
async def test_44_the_rate_of_deliveries_over_ten_seconds_is_the_limit(house: House, max: int, *, fleet: bool) -> None:
    """Within ten percent and one burst, however many a poll asks for, and by fleet polls alike."""
    rate = 20
    call = await limited(house, read={"ops_per_sec": rate})
    for _ in range(3):
        await house.add(call, "work", *["x"] * 1_000)

    async def poll() -> list[Any]:
        if fleet:
            return await house.service.fleet.poll(call, "work", max=max)
        return await house.take(call, "work", max=max)

    passed = await measured(house, poll, len)
    assert 10 * rate * 0.9 <= passed <= 10 * rate * 1.1 + rate


@pytest.mark.parametrize("wait_ms", [0, 5_000])
async def test_44_no_poll_gets_more_at_once_than_the_burst(house: House, wait_ms: int) -> None:
    """However much it asks for: what is there beyond the limit stays there, unleased."""
    call = await limited(house, read={"ops_per_sec": 20})
    await house.add(call, "work", *["x"] * 100)
    assert len(await house.take(call, "work", max=100, wait_ms=wait_ms)) == 20
    await refused_for(house.take(call, "work", max=100))
    await house.pass_time(500)
    assert len(await house.take(call, "work", max=100, wait_ms=wait_ms)) == 10


async def test_44_polls_at_once_share_what_is_left(house: House) -> None:
    """Ten that ask for everything get one burst together."""
    call = await limited(house, read={"ops_per_sec": 20})
    await house.add(call, "work", *["x"] * 100)
    replies = await asyncio.gather(*(house.take(call, "work", max=100) for _ in range(10)), return_exceptions=True)
    assert sum(len(reply) for reply in replies if isinstance(reply, list)) == 20
    assert {type(reply) for reply in replies} == {list, RateLimited}


async def test_44_a_fleet_leaves_out_tenants_that_have_used_up_their_rate(house: House) -> None:
    """And goes on with the others; one that waits gets theirs when the rate allows it again."""
    await limited(house, read={"ops_per_sec": 2})
    await house.tenant("globex")
    for name in ("acme", "globex"):
        await house.add(house.admin, "work", *["x"] * 10, tenant=name)
    got = []
    for _ in range(20):
        got += await house.service.fleet.poll(house.admin, "work", max=1)
    taken = [one.tenant for one in got]
    assert taken.count("globex") == 10
    assert 2 <= taken.count("acme") <= 3
    waiting = asyncio.ensure_future(house.service.fleet.poll(house.admin, "work", wait_ms=10_000))
    await house.settled()
    assert not waiting.done()
    for _ in range(20):
        await house.pass_time(100)
    assert [one.tenant for one in await waiting] == ["acme"]


async def test_44_a_waiting_poll_waits_for_the_rate_too(house: House) -> None:
    """It is answered when the tokens are there, not refused; and in turn with others of the tenant."""
    call = await limited(house, read={"ops_per_sec": 1})
    await house.add(call, "work", "a", "b", "c")
    await house.take(call, "work")
    waiting = [asyncio.ensure_future(house.take(call, "work", wait_ms=5_000)) for _ in range(2)]
    for n in range(2):
        await house.pass_time(999)
        assert [one.done() for one in waiting] == [n > 0, False]
        await house.pass_time(1)
        assert waiting[n].done()
    assert [one.body for poll in waiting for one in poll.result()] == [b"b", b"c"]


async def test_44_a_wait_that_cannot_succeed_is_refused_at_once(house: House) -> None:
    """With the time that it would take."""
    call = await limited(house, read={"ops_per_sec": 1})
    await house.add(call, "work")
    await house.take(call, "work")
    assert await refused_for(house.take(call, "work", wait_ms=500)) == 1_000


async def test_44_more_than_could_ever_pass_is_too_large(house: House) -> None:
    """Waiting would not help, so it is another error."""
    call = await limited(house, write={"ops_per_sec": 5, "bytes_per_sec": 10})
    for bodies in (["x"] * 6, ["x" * 11]):
        with pytest.raises(TooLarge) as caught:
            await house.add(call, "work", *bodies)
        assert caught.value.message.startswith("limits.write.")
    await house.add(call, "work", *["x"] * 5)


async def test_44_settling_is_never_held_up(house: House) -> None:
    """Ack, nack, extend and release pass whatever the limits: they would use up attempts."""
    call = await limited(house, write={"ops_per_sec": 10}, read={"ops_per_sec": 10})
    await house.add(call, "work", *"abcdef")
    held = await house.take(call, "work", max=6)
    await house.tenant("acme", limits={"write": {"ops_per_sec": 1}, "read": {"ops_per_sec": 1}})
    for act in (house.service.settlement.ack, house.service.settlement.nack, house.service.settlement.release):
        one = held.pop()
        assert (await house.service.settlement.extend(call, None, "work", [one.receipt], lease_ms=9_000))[0].ok
        assert (await act(call, None, "work", [one.receipt]))[0].ok


async def test_44_limited_work_uses_up_no_attempt(house: House) -> None:
    """A poll that is refused leases nothing."""
    call = await limited(house, read={"ops_per_sec": 1})
    await house.add(call, "work")
    queue = house.shard.reads.stats("acme", "work")
    await house.service.message_reads.peek(call, None, "work")
    for _ in range(5):
        await refused_for(house.take(call, "work"))
    assert house.shard.reads.stats("acme", "work") == queue
    await house.pass_time(1_000)
    (got,) = await house.take(call, "work")
    assert got.attempt == 1


@pytest.mark.parametrize("why", ["quota", "suspended", "invalid", "queues", "draining", "conflict"])
async def test_44_what_the_engine_refuses_has_used_up_no_tokens(house: House, why: str) -> None:
    """As many adds as before can follow."""
    call = await limited(house, write={"ops_per_sec": 3, "bytes_per_sec": 30})
    await house.service.queues.put(call, None, "work", {})
    await house.add(call, "work", "0123456789", key="k")
    (held,) = await house.take(call, "work")
    await house.pass_time(1_000)
    queue, body, key = "work", "x" * 10, None
    if why == "quota":
        await house.tenant("acme", quotas={"backlog": 1})
    elif why == "suspended":
        await house.service.tenants.suspend(house.admin, "acme")
    elif why == "queues":
        await house.tenant("acme", quotas={"queues": 1})
        queue = "new"
    elif why == "draining":
        await house.service.queues.delete(call, None, "work", confirm="work", reason="because of the test")
    elif why == "conflict":
        key = "k"
    for _ in range(8):
        try:
            added = await house.add(call, queue, body, key=key, priority=99 if why == "invalid" else 0)
            assert added[0].error is not None
        except (QuotaExceeded, Suspended, TenantqError) as error:
            assert not isinstance(error, RateLimited)  # noqa: PT017  # it is about what the error is not
    if why == "suspended":
        await house.service.tenants.resume(house.admin, "acme")
    await house.tenant("acme", quotas={"backlog": None, "queues": None})
    for _ in range(3):
        assert (await house.add(call, "fresh", "x" * 10))[0].error is None
    await refused_for(house.add(call, "fresh", ""))
    assert held


@pytest.mark.parametrize(
    "options", [{"max": 0}, {"max": 10**9}, {"lease_ms": -1}, {"wait_ms": -5}, {"max": "1"}, {"lease_ms": "soon"}]
)
async def test_44_a_poll_that_makes_no_sense_uses_up_no_tokens(house: House, options: dict[str, Any]) -> None:
    """It is refused as invalid, before or after the limit, and the next one still passes."""
    call = await limited(house, read={"ops_per_sec": 1})
    await house.add(call, "work")
    for _ in range(3):
        with pytest.raises(Invalid):
            await house.service.messages.poll(call, None, "work", **options)
    assert len(await house.take(call, "work")) == 1


async def test_44_a_refused_call_is_journaled_as_throttled(house: House) -> None:
    """With the queue and who it was; the audit finds it under DENIED."""
    call = await limited(house, write={"ops_per_sec": 1})
    await house.add(call, "work")
    await refused_for(house.add(call, "work"))
    await house.settled()
    (row,), _ = await house.service.audit.query(call, None, AuditQuery(result="DENIED"))
    assert (row.op, row.outcome, row.error_code, row.queue) == ("add", "throttled", "rate_limited", "work")


async def test_44_a_deleted_tenant_leaves_no_debt_to_one_of_its_name(house: House) -> None:
    """A new one starts with a full bucket."""
    call = await limited(house, write={"ops_per_sec": 1})
    await house.add(call, "work")
    await house.service.erasures.delete_tenant(house.admin, "acme", confirm="acme", reason="because of the test")
    again = await limited(house, write={"ops_per_sec": 1})
    await house.add(again, "work")


async def test_44_buckets_of_idle_tenants_are_collected(house: House) -> None:
    """By the housekeeping, once they are full again."""
    call = await limited(house, write={"ops_per_sec": 5})
    await house.add(call, "work")
    assert len(house.admission.rates) == 1
    for _ in range(3):
        await house.pass_time(1_000)
    assert len(house.admission.rates) == 0


async def test_45_when_the_shard_has_failed_nothing_is_let_in_and_nothing_is_promised(house: House) -> None:
    """Limits and quotas live in this process: rates go on without a store, quotas fail closed with it, as all work does."""
    await house.tenant("acme", quotas={"backlog": 5}, limits={"write": {"ops_per_sec": 1_000}})
    call = await house.key("acme")
    await house.add(call, "work")
    await house.settled()
    house.shard.loop._fail(StoreFailed("the disk went away"))
    for act in (
        house.add(call, "work"),
        house.take(call, "work"),
        house.service.tenants.usage(call, None),
        house.service.message_reads.peek(call, None, "work"),
        house.service.access.create_key(call, None, "k", Grant(role="viewer")),
    ):
        with pytest.raises(StoreFailed) as caught:
            await act
        assert caught.value.status == 503
    ready = house.service.status.readiness()
    assert (ready["ready"], ready["status"]) == (False, "failed")
    assert StoreFailed().message in ready["reason"]
    assert "the disk went away" not in ready["reason"]  # the log has it: whoever asks need not show a credential
    with pytest.raises(StoreFailed):
        await house.shard.add("acme", "work", [message()])
    house.failures.clear()
    house.admission.authenticator.last_used.clear()


async def test_44_looking_at_bodies_is_reading_too(house: House) -> None:
    """Peek, facts and results pay for the bytes and messages that they show; for who sees no body there are none."""
    call = await limited(house, read={"bytes_per_sec": 1_000})
    viewer = await house.key("acme", "viewer")
    added = await house.add(call, "work", *["x" * 900] * 3)
    for _ in range(5):
        await house.service.message_reads.peek(viewer, None, "work", limit=10)
        await house.service.message_reads.get(viewer, None, "work", added[0].id)
    await house.service.message_reads.peek(call, None, "work", limit=10)
    for look in (
        house.service.message_reads.peek(call, None, "work"),
        house.service.message_reads.get(call, None, "work", added[0].id),
    ):
        assert await refused_for(look) > 1_000
    await house.pass_time(10_000)
    for _ in range(2):
        await house.service.message_reads.get(call, None, "work", added[0].id)
    await refused_for(house.take(call, "work"))


async def test_46_quotas_through_the_service_are_as_exact_and_use_up_no_rate(house: House) -> None:
    """A hundred calls at once with ten places left, of several keys: ten are in, and ninety tokens are still there."""
    await house.tenant("acme", quotas={"backlog": 100}, limits={"write": {"ops_per_sec": 200, "burst": 200}})
    calls = [await house.key("acme", "producer") for _ in range(4)]
    await house.add(calls[0], "work", *["x"] * 90)
    await house.pass_time(1_000)
    replies = await asyncio.gather(*(house.add(calls[n % 4], f"q{n % 3}") for n in range(100)))
    assert sum(reply[0].error is None for reply in replies) == 10
    assert {type(reply[0].error) for reply in replies} == {type(None), QuotaExceeded}
    assert usage(house.shard, "acme")["backlog"] == 100
    await house.tenant("acme", quotas={"backlog": None})
    await house.add(calls[0], "work", *["x"] * 190)
    await refused_for(house.add(calls[0], "work"))


@pytest.mark.rocksdb_only("its space is a disk's")
async def test_13_adds_and_readiness_agree_while_free_space_is_unknown(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When statfs fails, adds get 503, readiness says why, polls continue, and both recover with the disk."""
    await house.tenant("acme")
    call = await house.key("acme")
    await house.add(call, "work", "x")

    def broken(_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("tenantq.store.rocks.os.statvfs", broken)
        await house.pass_time(MEASURE_MS)
        with pytest.raises(DiskFull, match="cannot be measured") as caught:
            await house.add(call, "work", "x")
        assert caught.value.status == 503
        ready = house.service.status.readiness()
        assert (ready["ready"], ready["status"]) == (False, "failed")
        assert ready["reason"] == caught.value.message
        assert len(await house.take(call, "work")) == 1
    assert house.service.status.readiness()["ready"]
    await house.add(call, "work", "x")
