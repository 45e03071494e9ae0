"""Behaviours 44 and 45: rate limits belong to the tenant, apply at once, and charge nothing for refused calls."""

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
    from tests.contract.gates.harness import ServiceHarness


async def limited(harness: ServiceHarness, name: str = "acme", **limits: Any) -> Call:
    """Limit a tenant, and return a call of its administrator."""
    await harness.tenant(name, limits=limits)
    return await harness.key(name)


async def refused_for(asked: Awaitable[Any]) -> int:
    """Return the milliseconds after which a refused call may be retried."""
    with pytest.raises(RateLimited) as caught:
        await asked
    assert (caught.value.code, caught.value.status) == ("rate_limited", 429)
    assert caught.value.retry_after_ms >= 1
    return caught.value.retry_after_ms


async def test_44_two_keys_of_one_tenant_share_the_limit_and_two_tenants_do_not(harness: ServiceHarness) -> None:
    """Once it is used up, every key of the tenant is refused; the other tenant is not affected."""
    first = await limited(harness, write={"ops_per_sec": 10})
    second = await harness.key("acme")
    other = await limited(harness, "globex", write={"ops_per_sec": 10})
    for n in range(10):
        await harness.add((first, second)[n % 2], "work")
    for call in (first, second):
        await refused_for(harness.add(call, "work"))
        await refused_for(harness.add(call, "another-queue"))
        await refused_for(harness.add(harness.admin, "work", tenant="acme"))
    for _ in range(10):
        await harness.add(other, "work")
    await refused_for(harness.add(other, "work"))


async def test_44_call_succeeds_after_the_announced_wait(harness: ServiceHarness) -> None:
    """It does not succeed a millisecond earlier; the refusal names the limit, the rest and the wait."""
    call = await limited(harness, write={"ops_per_sec": 4, "burst": 2})
    await harness.add(call, "work", "a", "b")
    for _ in range(5):
        wait_ms = await refused_for(harness.add(call, "work"))
        assert wait_ms == 250
        await harness.pass_time(wait_ms - 1)
        await refused_for(harness.add(call, "work"))
        await harness.pass_time(1)
        await harness.add(call, "work")
    with pytest.raises(RateLimited) as caught:
        await harness.add(call, "work")
    assert caught.value.limit == 4
    assert caught.value.message.startswith("limits.write.ops_per_sec: 4 a second for this tenant")


async def test_44_limit_applies_as_soon_as_it_is_set_or_changed(harness: ServiceHarness) -> None:
    """It can be set, raised, lowered and removed online."""
    await harness.tenant("acme")
    call = await harness.key("acme")
    await harness.add(call, "work", *["x"] * 100)
    await harness.tenant("acme", limits={"write": {"ops_per_sec": 5}})
    await harness.add(call, "work", *["x"] * 5)
    await refused_for(harness.add(call, "work"))
    await harness.tenant("acme", limits={"write": {"ops_per_sec": 100}})
    await harness.pass_time(1_000)
    await harness.add(call, "work", *["x"] * 100)
    await refused_for(harness.add(call, "work"))
    await harness.tenant("acme", limits={"write": {"ops_per_sec": None}})
    await harness.add(call, "work", *["x"] * 500)


async def measured(harness: ServiceHarness, act: Callable[[], Awaitable[Any]], amount: Callable[[Any], int]) -> int:
    """Return how much passes in ten seconds with a call every ten milliseconds, after the burst is used up."""
    while True:
        try:
            if not amount(await act()):
                break
        except RateLimited:
            break
    passed = 0
    for _ in range(1_000):
        harness.clock.advance(10)
        try:
            passed += amount(await act())
        except RateLimited:
            continue
    await harness.wait_until_idle()
    return passed


@pytest.mark.parametrize("rate", [7, 50])
async def test_44_the_rate_of_adds_over_ten_seconds_is_the_limit(harness: ServiceHarness, rate: int) -> None:
    """The tolerance is ten percent, for tenant and queue limits."""
    call = await limited(harness, write={"ops_per_sec": rate})
    passed = await measured(harness, lambda: harness.add(call, "work"), len)
    assert abs(passed - 10 * rate) <= rate
    await harness.tenant("globex")
    other = await harness.key("globex")
    await harness.service.queues.put(other, None, "work", {"limits": {"write": {"ops_per_sec": rate}}})
    passed = await measured(harness, lambda: harness.add(other, "work"), len)
    assert abs(passed - 10 * rate) <= rate
    await harness.add(other, "unlimited", *["x"] * 1_000)


async def test_44_the_rate_of_bytes_over_ten_seconds_is_the_limit(harness: ServiceHarness) -> None:
    """The tolerance is ten percent."""
    call = await limited(harness, write={"bytes_per_sec": 5_000})
    passed = await measured(harness, lambda: harness.add(call, "work", "x" * 100), len)
    assert abs(passed * 100 - 50_000) <= 5_000


@pytest.mark.parametrize("max", [1, 10, 100])
@pytest.mark.parametrize("fleet", [False, True], ids=["poll", "fleet poll"])
async def test_44_the_rate_of_deliveries_over_ten_seconds_is_the_limit(
    harness: ServiceHarness, max: int, *, fleet: bool
) -> None:
    """The tolerance is ten percent and one burst, for polls of any size and fleet polls."""
    rate = 20
    call = await limited(harness, read={"ops_per_sec": rate})
    for _ in range(3):
        await harness.add(call, "work", *["x"] * 1_000)

    async def poll() -> list[Any]:
        if fleet:
            return await harness.service.fleet.poll(call, "work", max=max)
        return await harness.take(call, "work", max=max)

    passed = await measured(harness, poll, len)
    assert 10 * rate * 0.9 <= passed <= 10 * rate * 1.1 + rate


@pytest.mark.parametrize("wait_ms", [0, 5_000])
async def test_44_no_poll_gets_more_at_once_than_the_burst(harness: ServiceHarness, wait_ms: int) -> None:
    """Messages above the limit stay ready, not leased."""
    call = await limited(harness, read={"ops_per_sec": 20})
    await harness.add(call, "work", *["x"] * 100)
    assert len(await harness.take(call, "work", max=100, wait_ms=wait_ms)) == 20
    await refused_for(harness.take(call, "work", max=100))
    await harness.pass_time(500)
    assert len(await harness.take(call, "work", max=100, wait_ms=wait_ms)) == 10


async def test_44_concurrent_polls_share_the_remaining_tokens(harness: ServiceHarness) -> None:
    """Ten polls that ask for everything get one burst together."""
    call = await limited(harness, read={"ops_per_sec": 20})
    await harness.add(call, "work", *["x"] * 100)
    replies = await asyncio.gather(*(harness.take(call, "work", max=100) for _ in range(10)), return_exceptions=True)
    assert sum(len(reply) for reply in replies if isinstance(reply, list)) == 20
    assert {type(reply) for reply in replies} == {list, RateLimited}


async def test_44_fleet_skips_tenants_without_tokens(harness: ServiceHarness) -> None:
    """It serves the others; a waiting fleet poll gets their messages when the rate allows."""
    await limited(harness, read={"ops_per_sec": 2})
    await harness.tenant("globex")
    for name in ("acme", "globex"):
        await harness.add(harness.admin, "work", *["x"] * 10, tenant=name)
    got = []
    for _ in range(20):
        got += await harness.service.fleet.poll(harness.admin, "work", max=1)
    taken = [one.tenant for one in got]
    assert taken.count("globex") == 10
    assert 2 <= taken.count("acme") <= 3
    waiting = asyncio.ensure_future(harness.service.fleet.poll(harness.admin, "work", wait_ms=10_000))
    await harness.wait_until_idle()
    assert not waiting.done()
    for _ in range(20):
        await harness.pass_time(100)
    assert [one.tenant for one in await waiting] == ["acme"]


async def test_44_waiting_poll_also_waits_for_the_rate(harness: ServiceHarness) -> None:
    """It is not refused, and takes its turn with other polls of the tenant."""
    call = await limited(harness, read={"ops_per_sec": 1})
    await harness.add(call, "work", "a", "b", "c")
    await harness.take(call, "work")
    waiting = [asyncio.ensure_future(harness.take(call, "work", wait_ms=5_000)) for _ in range(2)]
    for n in range(2):
        await harness.pass_time(999)
        assert [one.done() for one in waiting] == [n > 0, False]
        await harness.pass_time(1)
        assert waiting[n].done()
    assert [one.body for poll in waiting for one in poll.result()] == [b"b", b"c"]


async def test_44_poll_whose_wait_is_too_short_is_refused_at_once(harness: ServiceHarness) -> None:
    """The error has the time that it would take."""
    call = await limited(harness, read={"ops_per_sec": 1})
    await harness.add(call, "work")
    await harness.take(call, "work")
    assert await refused_for(harness.take(call, "work", wait_ms=500)) == 1_000


async def test_44_call_above_the_burst_is_too_large(harness: ServiceHarness) -> None:
    """Waiting would not help, so it is another error."""
    call = await limited(harness, write={"ops_per_sec": 5, "bytes_per_sec": 10})
    for bodies in (["x"] * 6, ["x" * 11]):
        with pytest.raises(TooLarge) as caught:
            await harness.add(call, "work", *bodies)
        assert caught.value.message.startswith("limits.write.")
    await harness.add(call, "work", *["x"] * 5)


async def test_44_settling_is_never_rate_limited(harness: ServiceHarness) -> None:
    """Delaying ack, nack, extend and release would use up attempts."""
    call = await limited(harness, write={"ops_per_sec": 10}, read={"ops_per_sec": 10})
    await harness.add(call, "work", *"abcdef")
    held = await harness.take(call, "work", max=6)
    await harness.tenant("acme", limits={"write": {"ops_per_sec": 1}, "read": {"ops_per_sec": 1}})
    for act in (harness.service.settlement.ack, harness.service.settlement.nack, harness.service.settlement.release):
        one = held.pop()
        assert (await harness.service.settlement.extend(call, None, "work", [one.receipt], lease_ms=9_000))[0].ok
        assert (await act(call, None, "work", [one.receipt]))[0].ok


async def test_44_rate_limited_poll_uses_no_attempt(harness: ServiceHarness) -> None:
    """A refused poll leases nothing."""
    call = await limited(harness, read={"ops_per_sec": 1})
    await harness.add(call, "work")
    queue = harness.shard.reads.stats("acme", "work")
    await harness.service.message_reads.peek(call, None, "work")
    for _ in range(5):
        await refused_for(harness.take(call, "work"))
    assert harness.shard.reads.stats("acme", "work") == queue
    await harness.pass_time(1_000)
    (got,) = await harness.take(call, "work")
    assert got.attempt == 1


@pytest.mark.parametrize("why", ["quota", "suspended", "invalid", "queues", "draining", "conflict"])
async def test_44_calls_refused_by_the_engine_use_no_tokens(harness: ServiceHarness, why: str) -> None:
    """As many adds as before can follow."""
    call = await limited(harness, write={"ops_per_sec": 3, "bytes_per_sec": 30})
    await harness.service.queues.put(call, None, "work", {})
    await harness.add(call, "work", "0123456789", key="k")
    (held,) = await harness.take(call, "work")
    await harness.pass_time(1_000)
    queue, body, key = "work", "x" * 10, None
    if why == "quota":
        await harness.tenant("acme", quotas={"backlog": 1})
    elif why == "suspended":
        await harness.service.tenants.suspend(harness.admin, "acme")
    elif why == "queues":
        await harness.tenant("acme", quotas={"queues": 1})
        queue = "new"
    elif why == "draining":
        await harness.service.queues.delete(call, None, "work", confirm="work", reason="because of the test")
    elif why == "conflict":
        key = "k"
    for _ in range(8):
        try:
            added = await harness.add(call, queue, body, key=key, priority=99 if why == "invalid" else 0)
            assert added[0].error is not None
        except (QuotaExceeded, Suspended, TenantqError) as error:
            assert not isinstance(error, RateLimited)  # noqa: PT017  # it is about what the error is not
    if why == "suspended":
        await harness.service.tenants.resume(harness.admin, "acme")
    await harness.tenant("acme", quotas={"backlog": None, "queues": None})
    for _ in range(3):
        assert (await harness.add(call, "fresh", "x" * 10))[0].error is None
    await refused_for(harness.add(call, "fresh", ""))
    assert held


@pytest.mark.parametrize(
    "options", [{"max": 0}, {"max": 10**9}, {"lease_ms": -1}, {"wait_ms": -5}, {"max": "1"}, {"lease_ms": "soon"}]
)
async def test_44_invalid_poll_uses_no_tokens(harness: ServiceHarness, options: dict[str, Any]) -> None:
    """The next valid poll still succeeds."""
    call = await limited(harness, read={"ops_per_sec": 1})
    await harness.add(call, "work")
    for _ in range(3):
        with pytest.raises(Invalid):
            await harness.service.messages.poll(call, None, "work", **options)
    assert len(await harness.take(call, "work")) == 1


async def test_44_rate_limited_call_is_journaled_as_throttled(harness: ServiceHarness) -> None:
    """The row has the queue and the caller; the audit query finds it under DENIED."""
    call = await limited(harness, write={"ops_per_sec": 1})
    await harness.add(call, "work")
    await refused_for(harness.add(call, "work"))
    await harness.wait_until_idle()
    (row,), _ = await harness.service.audit.query(call, None, AuditQuery(result="DENIED"))
    assert (row.op, row.outcome, row.error_code, row.queue) == ("add", "throttled", "rate_limited", "work")


async def test_44_recreated_tenant_starts_with_a_full_bucket(harness: ServiceHarness) -> None:
    """It inherits no debt from the deleted tenant of the same name."""
    call = await limited(harness, write={"ops_per_sec": 1})
    await harness.add(call, "work")
    await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason="because of the test")
    again = await limited(harness, write={"ops_per_sec": 1})
    await harness.add(again, "work")


async def test_44_buckets_of_idle_tenants_are_collected(harness: ServiceHarness) -> None:
    """Housekeeping removes them once they are full again."""
    call = await limited(harness, write={"ops_per_sec": 5})
    await harness.add(call, "work")
    assert len(harness.admission.rates) == 1
    for _ in range(3):
        await harness.pass_time(1_000)
    assert len(harness.admission.rates) == 0


async def test_45_failed_shard_refuses_all_work(harness: ServiceHarness) -> None:
    """Quotas fail closed with the store, as all work does, and readiness says so."""
    await harness.tenant("acme", quotas={"backlog": 5}, limits={"write": {"ops_per_sec": 1_000}})
    call = await harness.key("acme")
    await harness.add(call, "work")
    await harness.wait_until_idle()
    harness.shard.loop._fail(StoreFailed("the disk went away"))
    for act in (
        harness.add(call, "work"),
        harness.take(call, "work"),
        harness.service.tenants.usage(call, None),
        harness.service.message_reads.peek(call, None, "work"),
        harness.service.access.create_key(call, None, "k", Grant(role="viewer")),
    ):
        with pytest.raises(StoreFailed) as caught:
            await act
        assert caught.value.status == 503
    ready = harness.service.status.readiness()
    assert (ready["ready"], ready["status"]) == (False, "failed")
    assert StoreFailed().message in ready["reason"]
    assert "the disk went away" not in ready["reason"]  # only in the log: readiness needs no credential
    with pytest.raises(StoreFailed):
        await harness.shard.add("acme", "work", [message()])
    harness.failures.clear()
    harness.admission.authenticator.last_used.clear()


async def test_44_reads_of_bodies_are_charged(harness: ServiceHarness) -> None:
    """Peek, facts and results are charged for bytes and messages; callers who see no bodies pay nothing for them."""
    call = await limited(harness, read={"bytes_per_sec": 1_000})
    viewer = await harness.key("acme", "viewer")
    added = await harness.add(call, "work", *["x" * 900] * 3)
    for _ in range(5):
        await harness.service.message_reads.peek(viewer, None, "work", limit=10)
        await harness.service.message_reads.get(viewer, None, "work", added[0].id)
    await harness.service.message_reads.peek(call, None, "work", limit=10)
    for look in (
        harness.service.message_reads.peek(call, None, "work"),
        harness.service.message_reads.get(call, None, "work", added[0].id),
    ):
        assert await refused_for(look) > 1_000
    await harness.pass_time(10_000)
    for _ in range(2):
        await harness.service.message_reads.get(call, None, "work", added[0].id)
    await refused_for(harness.take(call, "work"))


async def test_46_quotas_through_the_service_are_exact_and_use_no_tokens(harness: ServiceHarness) -> None:
    """Of a hundred concurrent calls with ten places left, ten succeed, and ninety tokens remain."""
    await harness.tenant("acme", quotas={"backlog": 100}, limits={"write": {"ops_per_sec": 200, "burst": 200}})
    calls = [await harness.key("acme", "producer") for _ in range(4)]
    await harness.add(calls[0], "work", *["x"] * 90)
    await harness.pass_time(1_000)
    replies = await asyncio.gather(*(harness.add(calls[n % 4], f"q{n % 3}") for n in range(100)))
    assert sum(reply[0].error is None for reply in replies) == 10
    assert {type(reply[0].error) for reply in replies} == {type(None), QuotaExceeded}
    assert usage(harness.shard, "acme")["backlog"] == 100
    await harness.tenant("acme", quotas={"backlog": None})
    await harness.add(calls[0], "work", *["x"] * 190)
    await refused_for(harness.add(calls[0], "work"))


@pytest.mark.rocksdb_only("its space is a disk's")
async def test_13_adds_and_readiness_agree_while_free_space_is_unknown(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When statfs fails, adds get 503, readiness says why, polls continue, and both recover with the disk."""
    await harness.tenant("acme")
    call = await harness.key("acme")
    await harness.add(call, "work", "x")

    def broken(_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("tenantq.store.rocks_files.os.statvfs", broken)
        await harness.pass_time(MEASURE_MS)
        with pytest.raises(DiskFull, match="cannot be measured") as caught:
            await harness.add(call, "work", "x")
        assert caught.value.status == 503
        ready = harness.service.status.readiness()
        assert (ready["ready"], ready["status"]) == (False, "failed")
        assert ready["reason"] == caught.value.message
        assert len(await harness.take(call, "work")) == 1
    assert harness.service.status.readiness()["ready"]
    await harness.add(call, "work", "x")
