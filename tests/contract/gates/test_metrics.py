"""Behaviour 71: metrics equal what happened, and their number stays limited for any number of tenants."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from tenantq.engine.work_counters import TIME_BOUNDS_MS, TOTALS
from tenantq.errors import Forbidden, NotFound, TenantqError
from tenantq.gates.charge import Charge
from tenantq.service.metrics.labels import OTHER
from tenantq.service.metrics.settings import MetricsSettings
from tenantq.service.service import Service
from tests.administration import delete_queue, put_tenant
from tests.contract.gates.harness import REASON
from tests.shards import message, wait_until_idle

if TYPE_CHECKING:
    from tenantq.service.call import Call
    from tests.conftest import OpenShard
    from tests.contract.gates.conftest import OpenHarness
    from tests.contract.gates.harness import ServiceHarness

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scraped(harness: ServiceHarness, tenant: str | None = None, call: Call | None = None) -> Samples:
    """Return every sample of the server or of one tenant, as Prometheus parses them."""
    await harness.wait_until_idle()
    status = harness.service.status
    caller = call or harness.admin
    raw = await status.tenant_metrics(caller, tenant) if tenant else await status.metrics(caller)
    text = raw.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_71_counters_equal_an_oracle_after_a_run(harness: ServiceHarness) -> None:
    """Covers every total of every tenant, messages by state, and admitted and refused calls."""
    dice, oracle, calls = random.Random(71), Counter[tuple[str, str]](), Counter[str]()
    keys: dict[str, Call] = {}
    for name in ("acme", "bolt", "carl"):
        await harness.tenant(name, defaults={"max_attempts": 2, "backoff_base_ms": 0})
        keys[name] = await harness.key(name)
    refused = 0
    for _ in range(300):
        tenant = dice.choice(list(keys))
        call, queue = keys[tenant], dice.choice(("mail", "web"))
        act = dice.choice(("add", "add", "poll_ack", "poll_nack", "remove", "forbidden"))
        if act == "add":
            bodies = ["x" * dice.randrange(1, 50) for _ in range(dice.randrange(1, 5))]
            await harness.add(call, queue, *bodies)
            oracle[tenant, "added"] += len(bodies)
            oracle[tenant, "added_bytes"] += sum(map(len, bodies))
            calls["add"] += 1
        elif act == "forbidden":
            with pytest.raises((Forbidden, NotFound)):
                await harness.add(call, queue, "x", tenant=next(name for name in keys if name != tenant))
            refused += 1
        elif act == "remove":
            id = (await harness.add(call, queue, "gone"))[0].id
            assert (await harness.service.settlement.remove(call, None, queue, [id]))[0].error is None
            oracle[tenant, "added"] += 1
            oracle[tenant, "added_bytes"] += 4
            oracle[tenant, "removed"] += 1
            calls["add"] += 1
            calls["remove"] += 1
        else:
            calls["poll"] += 1
            try:
                got = await harness.take(call, queue, 3)
            except NotFound:  # the queue does not exist yet, which the engine reports, not the gates
                continue
            oracle[tenant, "delivered"] += len(got)
            receipts = [one.receipt for one in got]
            if not receipts:
                continue
            if act == "poll_ack":
                await harness.service.settlement.ack(call, None, queue, receipts)
                oracle[tenant, "acked"] += len(got)
                calls["ack"] += 1
            else:
                await harness.service.settlement.nack(call, None, queue, receipts, delay_ms=0)
                oracle[tenant, "nacked"] += len(got)
                oracle[tenant, "dead"] += sum(one.attempt == 2 for one in got)
                calls["nack"] += 1
    seen = await scraped(harness)
    for tenant in keys:
        label = (("tenant", tenant),)
        for total in ("added", "added_bytes", "delivered", "acked", "nacked", "dead", "removed"):
            assert seen[f"tenantq_{total}_total", label] == oracle[tenant, total], (tenant, total)
        stored = sum(seen["tenantq_messages", (("state", state), ("tenant", tenant))] for state in ("ready", "delayed", "in_flight", "blocked", "dead"))  # fmt: skip
        assert stored == oracle[tenant, "added"] - oracle[tenant, "acked"] - oracle[tenant, "removed"]
    for action, count in calls.items():
        label = (("action", action),)
        assert seen["tenantq_calls_total", label] == count
        assert seen["tenantq_call_seconds_count", label] == count
        assert seen["tenantq_call_seconds_bucket", (("action", action), ("le", "+Inf"))] == count
    assert sum(count for (name, _), count in seen.items() if name == "tenantq_calls_refused_total") == refused
    assert seen["tenantq_round_seconds_count", ()] == seen["tenantq_rounds_total", ()] > 0
    assert seen["tenantq_round_size_count", ()] == seen["tenantq_rounds_total", ()]
    assert seen["tenantq_round_size_sum", ()] == seen["tenantq_round_operations_total", ()] > 0
    assert seen["tenantq_round_size_bucket", (("le", "1.0"),)] > 0
    assert seen["tenantq_sync_seconds_count", ()] > 0


async def test_every_total_of_queues_and_tenants_equals_an_oracle(harness: ServiceHarness) -> None:
    """Messages are completed, failed, abandoned, dead, expired, removed, purged, or have lost their body."""
    dice, oracle = random.Random(17), Counter[tuple[str, str, str]]()
    settlement = harness.service.settlement
    for tenant in ("acme", "bolt"):
        await harness.tenant(tenant, defaults={"max_attempts": 2, "backoff_base_ms": 0})
        key = await harness.key(tenant)
        for queue in ("mail", "web"):
            fates = ["done", "failed", "lost", "dead", "too old", "removed", "purged", "orphaned"] * 2
            dice.shuffle(fates)
            for fate in fates:
                count = dice.randrange(1, 5)
                ttl: dict[str, Any] = {"ttl_ms": 1_000} if fate == "too old" else {}
                added = await harness.add(key, queue, *["body"] * count, **ttl)
                found = {"added": count, "added_bytes": 4 * count}
                if fate in {"failed", "dead", "lost"}:
                    first = await harness.take(key, queue, count, lease_ms=1_000)
                    if fate == "lost":
                        await harness.pass_time(2_000)
                    else:
                        await settlement.nack(key, None, queue, [one.receipt for one in first], delay_ms=0)
                    found["lease_expired" if fate == "lost" else "nacked"] = count
                    found["delivered"] = count
                if fate in {"done", "failed", "dead", "lost"}:
                    last = [one.receipt for one in await harness.take(key, queue, count)]
                    found["delivered"] = found.get("delivered", 0) + count
                    if fate == "dead":
                        await settlement.nack(key, None, queue, last)
                        found |= {"nacked": 2 * count, "dead": count}
                    else:
                        await settlement.ack(key, None, queue, last)
                        found["acked"] = count
                elif fate == "too old":
                    await harness.pass_time(2_000)
                    found["expired"] = count
                elif fate == "removed":
                    await settlement.remove(key, None, queue, [one.id for one in added])
                    found["removed"] = count
                elif fate == "purged":
                    await harness.service.queues.purge(key, None, queue, confirm=queue, reason=REASON)
                    found["removed"] = count
                else:
                    lost, store = harness.shard.state.store.new_batch(), harness.shard.state.store
                    for one in added:
                        lost.delete(harness.shard.tenant(tenant).queues[queue].prefix + one.raw_id, store.m.handle)
                    store.write(lost)
                    assert await harness.take(key, queue, count) == []
                    found["healed"] = count
                oracle.update({(tenant, queue, total): value for total, value in found.items()})
    seen = await scraped(harness)
    for tenant in ("acme", "bolt"):
        for total in TOTALS:
            for queue in ("mail", "web"):
                shown = seen[f"tenantq_queue_{total}_total", queue_label(tenant, queue)]
                assert shown == oracle[tenant, queue, total] > 0, (tenant, queue, total)
            together = oracle[tenant, "mail", total] + oracle[tenant, "web", total]
            assert seen[f"tenantq_{total}_total", (("tenant", tenant),)] == together, (tenant, total)


def labelled(seen: Samples, family: str, label: str) -> set[str]:
    """Return the values of a label in a family."""
    return {dict(labels)[label] for name, labels in seen if name == family}


def queue_label(tenant: str, queue: str, **more: str) -> tuple[tuple[str, str], ...]:
    """Return the labels of a queue's sample."""
    return tuple(sorted({"tenant": tenant, "queue": queue, **more}.items()))


def limit_labels(harness: ServiceHarness, **settings: int) -> None:
    """Allow fewer labels."""
    harness.service = Service(
        harness.shard, harness.admission, harness.clock, harness.encryption, metrics=MetricsSettings(**settings)
    )


async def test_71_tenants_above_the_limit_share_one_label(harness: ServiceHarness) -> None:
    """No tenant can have that name. The default tenant has its own label, and all labels add up."""
    limit_labels(harness, tenants=10)
    names = [f"tenant-{at:03d}" for at in range(30)]
    for name in names:
        await put_tenant(harness.shard, name)
        await harness.shard.add(name, "work", [message() for _ in range(3)])
    seen = await scraped(harness)
    labels = labelled(seen, "tenantq_added_total", "tenant")
    assert len(labels) == 11
    assert OTHER in labels
    assert sum(value for (name, _), value in seen.items() if name == "tenantq_added_total") == 90
    with pytest.raises(TenantqError):
        await harness.tenant(OTHER)


async def test_queue_that_becomes_busy_gets_its_label_within_a_minute(harness: ServiceHarness) -> None:
    """This holds even if formerly busy queues have all labels. No counter decreases, and nothing is lost."""
    limit_labels(harness, queues=5)
    await harness.tenant("acme")
    for at in range(12):
        await harness.shard.add("acme", f"old-{at:02d}", [message() for _ in range(1 + at)])
    before = await scraped(harness)
    assert len(labelled(before, "tenantq_queue_added_total", "queue")) == 6
    for _ in range(4):
        await harness.shard.add("acme", "hot", [message() for _ in range(20)])
        await harness.shard.add("acme", "old-11", [message()])
        await harness.pass_time(15_000)
        after = await scraped(harness)
        others = ("tenantq_queue_added_total", queue_label(OTHER, OTHER))
        assert after[others] >= before[others]
        before = after
    assert {"hot", "old-11"} <= labelled(after, "tenantq_queue_added_total", "queue")
    assert after["tenantq_queue_added_total", queue_label("acme", "hot")] == 80
    for name in ("hot", "old-11", "old-00"):
        await harness.service.queues.delete(harness.admin, "acme", name, confirm=name, reason=REASON, force=True)
    last = await scraped(harness)
    assert last["tenantq_queue_added_total", queue_label(OTHER, OTHER)] >= after[others]
    assert last["tenantq_added_total", (("tenant", "acme"),)] == sum(range(1, 13)) + 84


class Follower:
    """A scraper that adds up the increases of the series of one family, as ``sum(increase(...))`` does."""

    def __init__(self, family: str) -> None:
        self._family = family
        self._last: dict[tuple[str, ...], float] = {}
        self._existing: set[tuple[str, ...]] = set()  # at its last scrape
        self.counted = 0.0

    def follow(self, seen: Samples, existing: set[tuple[str, ...]]) -> None:
        """Count the increases since the last scrape. ``existing``: the labels of all tenants or queues."""
        found = {tuple(v for _, v in labels): value for (name, labels), value in seen.items() if name == self._family}
        for labels, value in found.items():
            if labels in self._last:
                assert value >= self._last[labels], labels
                self.counted += value - self._last[labels]
            elif labels not in self._existing:  # it is new; the others were part of _other
                self.counted += value
        self._last, self._existing = found, existing.copy()


@pytest.mark.parametrize("seed", range(5))
async def test_every_reader_finds_all_work_in_its_own_series(harness: ServiceHarness, seed: int) -> None:
    """Labels change, and queues and tenants are deleted, between the scrapes of readers that scrape at different times."""
    dice = random.Random(seed)
    limit_labels(harness, tenants=2, queues=3)
    readers = [replace(harness.admin, remote=f"192.0.2.{at}") for at in range(3)]
    followers = [(Follower("tenantq_queue_added_total"), Follower("tenantq_added_total")) for _ in readers]
    added, tenants, queues = 0, set[tuple[str, ...]](), set[tuple[str, ...]]()
    for step in range(150):
        act = dice.choice(("new queue", "add", "add", "wait", "delete queue", "delete tenant", "scrape", "scrape"))
        if act == "new queue":
            (tenant,) = dice.choice([*sorted(tenants), (f"tenant-{step}",)])
            if (tenant,) not in tenants:
                await harness.tenant(tenant)
                tenants.add((tenant,))
            queues.add((f"queue-{step}", tenant))
        if act in {"add", "new queue"} and queues:
            queue, tenant = dice.choice(sorted(queues))
            count = dice.randrange(1, 30)
            await harness.shard.add(tenant, queue, [message() for _ in range(count)])
            added += count
        elif act == "wait":
            await harness.pass_time(dice.randrange(1, 40_000))
        elif act == "delete queue" and queues:
            queue, tenant = dice.choice(sorted(queues))
            if queue in harness.shard.tenant(tenant).queues:
                await delete_queue(harness.shard, tenant, queue, force=True)
            queues.remove((queue, tenant))
        elif act == "delete tenant" and len(tenants) > 3:
            (tenant,) = dice.choice(sorted(tenants))
            await harness.service.erasures.delete_tenant(harness.admin, tenant, confirm=tenant, reason=REASON)
            tenants.remove((tenant,))
            queues = {one for one in queues if one[1] != tenant}
        elif act == "scrape":
            at = dice.randrange(len(readers))
            seen = await scraped(harness, call=readers[at])
            existing = {one for one in queues if one[0] in harness.shard.tenant(one[1]).queues}
            by_queue, by_tenant = followers[at]
            by_queue.follow(seen, existing)
            by_tenant.follow(seen, tenants)
            assert (step, by_queue.counted, by_tenant.counted) == (step, added, added)


async def test_tenant_totals_keep_deleted_queues_across_a_restart(
    open_shard: OpenShard, open_harness: OpenHarness
) -> None:
    """To Prometheus, a smaller counter looks like a restart and gives a wrong rate."""
    shard = await open_shard("data")
    await put_tenant(shard, "acme")
    await shard.add("acme", "gone", [message() for _ in range(7)])
    await shard.add("acme", "kept", [message()])
    await delete_queue(shard, "acme", "gone", force=True)
    await wait_until_idle(shard)
    await shard.close()
    harness = await open_harness("data")
    assert list(harness.shard.tenant("acme").queues) == ["kept"]
    assert (await scraped(harness))["tenantq_added_total", (("tenant", "acme"),)] == 8


async def test_figures_of_a_queue_equal_an_oracle(harness: ServiceHarness) -> None:
    """Covers depth by state, dead letters, oldest message, all totals, and waiting and processing times."""
    await harness.tenant("acme", defaults={"max_attempts": 1, "backoff_base_ms": 0})
    key = await harness.key("acme")
    await harness.add(key, "mail", *["x"] * 5)
    await harness.add(key, "mail", "later", delay_ms=60_000)
    await harness.pass_time(3_000)
    first, second, third = await harness.take(key, "mail", 3)
    await harness.pass_time(20)
    await harness.service.settlement.ack(key, None, "mail", [first.receipt])
    await harness.service.settlement.nack(key, None, "mail", [second.receipt])
    await harness.pass_time(1_000)
    seen = await scraped(harness)
    mail = queue_label("acme", "mail")
    states = {s: seen["tenantq_queue_messages", queue_label("acme", "mail", state=s)] for s in ("ready", "delayed", "in_flight", "blocked")}  # fmt: skip
    assert states == {"ready": 2, "delayed": 1, "in_flight": 1, "blocked": 0}
    assert seen["tenantq_queue_dead_letters", mail] == 1
    assert seen["tenantq_queue_oldest_age_seconds", mail] == 4.02
    totals = {total: seen[f"tenantq_queue_{total}_total", mail] for total in TOTALS}
    assert totals == {
        "added": 6, "added_bytes": 10, "delivered": 3, "acked": 1, "nacked": 1, "lease_expired": 0, "dead": 1,
        "expired": 0, "removed": 0, "healed": 0,
    }  # fmt: skip
    for family, count, total_s, bound in (("wait", 3, 9, "4.096"), ("processing", 2, 0.04, "0.064")):
        name = f"tenantq_queue_{family}_seconds"
        assert (seen[f"{name}_count", mail], seen[f"{name}_sum", mail]) == (count, total_s)
        bins = {dict(labels)["le"]: value for (found, labels), value in seen.items() if found == f"{name}_bucket" and ("queue", "mail") in labels}  # fmt: skip
        assert len(bins) == len(TIME_BOUNDS_MS) + 1
        assert {le: value for le, value in bins.items() if le != "+Inf" and float(le) < float(bound)} == dict.fromkeys([le for le in bins if le != "+Inf" and float(le) < float(bound)], 0)  # fmt: skip
        assert bins[bound] == bins["+Inf"] == count
    assert third.attempt == 1


async def test_dead_letters_are_not_ready_messages_of_their_tenant(harness: ServiceHarness) -> None:
    """They have their own state."""
    await harness.tenant("acme", defaults={"max_attempts": 1})
    key = await harness.key("acme")
    await harness.add(key, "mail", "one", "two", "three")
    (taken,) = await harness.take(key, "mail", 1)
    await harness.service.settlement.nack(key, None, "mail", [taken.receipt])
    seen = await scraped(harness)
    states = {dict(labels)["state"]: value for (name, labels), value in seen.items() if name == "tenantq_messages" and ("tenant", "acme") in labels}  # fmt: skip
    assert states == {"ready": 2, "delayed": 0, "in_flight": 0, "blocked": 0, "dead": 1}
    assert seen["tenantq_queue_messages", queue_label("acme", "mail-dlq", state="ready")] == 1
    await delete_queue(harness.shard, "acme", "mail", force=True)
    seen = await scraped(harness)
    assert seen["tenantq_messages", (("state", "ready"), ("tenant", "acme"))] == 0
    assert seen["tenantq_messages", (("state", "dead"), ("tenant", "acme"))] == 1
    [listed] = [one for one in await harness.service.tenants.list(harness.admin, figures=True) if one.name == "acme"]
    assert listed.figures is not None
    assert listed.figures.dead == 1


async def test_decisions_about_a_tenant_equal_an_oracle(harness: ServiceHarness) -> None:
    """Rate limits, quotas, denials and calls to other tenants are counted for the tenant that they concern."""
    await harness.tenant("acme", limits={"write": {"ops_per_sec": 1, "burst": 3}}, quotas={"backlog": 2})
    await harness.tenant("bolt")
    key, thief = await harness.key("acme"), await harness.key("bolt")
    await harness.add(key, "mail", "one")
    results = await harness.add(key, "mail", "two", "three")
    assert [one.error is None for one in results] == [True, False]
    with pytest.raises(TenantqError):
        await harness.add(key, "mail", "four", "five")  # the refused message was refunded, so one token remains
    with pytest.raises((Forbidden, NotFound)):
        await harness.add(thief, "mail", "x", tenant="acme")
    seen = await scraped(harness)

    def value(name: str, tenant: str, **labels: str) -> float:
        return seen[name, tuple(sorted({"tenant": tenant, **labels}.items()))]

    assert value("tenantq_tenant_rate_limit_total", "acme", decision="allowed") == 2
    assert value("tenantq_tenant_rate_limit_total", "acme", decision="refused") == 1
    assert value("tenantq_tenant_quota_refused_total", "acme", quota="backlog") == 1
    assert value("tenantq_tenant_quota_used_ratio", "acme", quota="backlog") == 1
    assert value("tenantq_tenant_refused_total", "acme", code="rate_limited") == 1
    denied = [
        labels for name, labels in seen if name == "tenantq_tenant_refused_total" and ("tenant", "acme") in labels
    ]
    assert len(denied) == 2
    assert value("tenantq_tenant_cross_tenant_total", "bolt") == 1
    assert value("tenantq_tenant_call_seconds_count", "acme", action="add") == 2
    assert value("tenantq_tenant_turn_wait_seconds_count", "acme") == 3  # its key was created in its turn, too


async def test_tenant_reads_only_its_own_metrics(harness: ServiceHarness) -> None:
    """Every role that may read its settings may, but sees only the queues that the credential allows."""
    for name in ("acme", "bolt"):
        await harness.tenant(name)
        key = await harness.key(name)
        await harness.add(key, "mail", "x")
        await harness.add(key, "web", "x", "y")
    viewer = await harness.key("acme", "viewer")
    seen = await scraped(harness, "acme", viewer)
    assert {dict(labels).get("tenant") for _, labels in seen} == {"acme"}
    assert labelled(seen, "tenantq_queue_added_total", "queue") == {"mail", "web"}
    assert seen["tenantq_queue_added_total", queue_label("acme", "web")] == 2
    narrow = await harness.key("acme", None, actions=("get_metrics", "get_queue"), queues=("m*",))
    assert labelled(await scraped(harness, "acme", narrow), "tenantq_queue_added_total", "queue") == {"mail"}
    with pytest.raises((Forbidden, NotFound)):
        await scraped(harness, "bolt", viewer)
    with pytest.raises(Forbidden):
        await scraped(harness, "acme", await harness.key("acme", "producer"))


async def test_scrape_yields_to_other_work(harness: ServiceHarness) -> None:
    """The loop takes turns while 2,000 queues are read."""
    await harness.tenant("acme")
    for at in range(2_000):
        await harness.shard.add("acme", f"queue-{at}", [message()])
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count_turns())
    await harness.service.status.metrics(harness.admin)
    counting.cancel()
    assert turns > 2_000 / 64


@pytest.mark.rocksdb_only("counts objects of the whole process, and threads of remote stores make some")
async def test_scrape_keeps_few_objects(harness: ServiceHarness) -> None:
    """New objects start the garbage collector, which blocks the loop longer than any slice of a scrape."""
    await harness.tenant("acme")
    for at in range(500):
        await harness.shard.add("acme", f"queue-{at}", [message()])
    most = 0

    async def count_objects() -> None:
        nonlocal most
        while True:
            most = max(most, gc.get_count()[0])
            await asyncio.sleep(0)

    await harness.service.status.metrics(harness.admin)  # a new reader gets memory for what it has seen
    gc.collect()
    gc.disable()
    try:
        counting = asyncio.ensure_future(count_objects())
        await harness.service.status.metrics(harness.admin)
        counting.cancel()
    finally:
        gc.enable()
    assert 0 < most < 1_000  # two for each labelled queue


async def test_call_leaves_nothing_for_the_garbage_collector(harness: ServiceHarness) -> None:
    """The task of a request is freed as soon as it ends, with everything that the call used."""
    await harness.tenant("acme")
    key = await harness.key("acme")

    async def work() -> None:
        await harness.add(key, "mail", "one")
        (got,) = await harness.take(key, "mail")
        await harness.service.settlement.ack(key, None, "mail", [got.receipt])

    gc.disable()
    try:
        task = asyncio.ensure_future(work())
        await task
        await harness.wait_until_idle()
        is_alive = weakref.ref(task)
        del task
        assert is_alive() is None
    finally:
        gc.enable()


async def test_call_duration_excludes_waiting(harness: ServiceHarness) -> None:
    """Waiting for messages does not count; waiting for a rate has its own metric."""
    await harness.tenant("acme", limits={"read": {"ops_per_sec": 1, "burst": 2}})
    key = await harness.key("acme")
    await harness.add(key, "mail", "one")
    await harness.take(key, "mail")
    waiting = asyncio.ensure_future(harness.take(key, "mail", wait_ms=30_000))
    for _ in range(3):
        await harness.pass_time(10_000)
    assert await waiting == []
    seen = await scraped(harness)
    assert seen["tenantq_call_seconds_count", (("action", "poll"),)] == 2
    assert seen["tenantq_call_seconds_sum", (("action", "poll"),)] < 1
    assert seen["tenantq_gate_wait_seconds_count", ()] == 0
    while (
        harness.admission.rates.wait_ms(
            Charge.of("acme", harness.shard.tenant("acme").config.limits, "mail", None, "read")
        )
        == 0
    ):
        await harness.take(key, "mail")
    late = asyncio.ensure_future(harness.take(key, "mail", wait_ms=200_000))
    await harness.pass_time(2_000)
    await harness.add(key, "mail", "two")
    assert len(await late) == 1
    seen = await scraped(harness)
    assert seen["tenantq_gate_wait_seconds_count", ()] == 1
    assert seen["tenantq_tenant_rate_limit_total", (("decision", "waited"), ("tenant", "acme"))] == 1
    assert seen["tenantq_gate_wait_seconds_sum", ()] >= 0.5
    assert seen["tenantq_call_seconds_sum", (("action", "poll"),)] < 1
