"""Behaviour 71: what the metrics say is what happened, and no number of tenants makes them endless."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenantq.errors import Forbidden, NotFound, TenantqError
from tenantq.gates.charge import Charge
from tenantq.service.metrics import OTHER, TENANTS_MAX
from tests.administration import put_tenant
from tests.shards import message

if TYPE_CHECKING:
    from tenantq.service import Call
    from tests.contract.gates.house import House

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scraped(house: House) -> Samples:
    """Return every sample, as a Prometheus server reads them."""
    await house.settled()
    text = (await house.service.status.metrics(house.admin)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_71_counters_equal_an_oracle_after_a_run(house: House) -> None:
    """Every total of every tenant, what is stored in which state, and how many calls were let in and refused."""
    dice, oracle, calls = random.Random(71), Counter[tuple[str, str]](), Counter[str]()
    keys: dict[str, Call] = {}
    for name in ("acme", "bolt", "carl"):
        await house.tenant(name, defaults={"max_attempts": 2, "backoff_base_ms": 0})
        keys[name] = await house.key(name)
    refused = 0
    for _ in range(300):
        tenant = dice.choice(list(keys))
        call, queue = keys[tenant], dice.choice(("mail", "web"))
        act = dice.choice(("add", "add", "poll_ack", "poll_nack", "remove", "forbidden"))
        if act == "add":
            bodies = ["x" * dice.randrange(1, 50) for _ in range(dice.randrange(1, 5))]
            await house.add(call, queue, *bodies)
            oracle[tenant, "added"] += len(bodies)
            oracle[tenant, "added_bytes"] += sum(map(len, bodies))
            calls["add"] += 1
        elif act == "forbidden":
            with pytest.raises((Forbidden, NotFound)):
                await house.add(call, queue, "x", tenant=next(name for name in keys if name != tenant))
            refused += 1
        elif act == "remove":
            id = (await house.add(call, queue, "gone"))[0].id
            assert (await house.service.settlement.remove(call, None, queue, [id]))[0].error is None
            oracle[tenant, "added"] += 1
            oracle[tenant, "added_bytes"] += 4
            oracle[tenant, "removed"] += 1
            calls["add"] += 1
            calls["remove"] += 1
        else:
            calls["poll"] += 1
            try:
                got = await house.take(call, queue, 3)
            except NotFound:  # the queue was not made yet, which the engine tells behind the gates
                continue
            oracle[tenant, "delivered"] += len(got)
            receipts = [one.receipt for one in got]
            if not receipts:
                continue
            if act == "poll_ack":
                await house.service.settlement.ack(call, None, queue, receipts)
                oracle[tenant, "acked"] += len(got)
                calls["ack"] += 1
            else:
                await house.service.settlement.nack(call, None, queue, receipts, delay_ms=0)
                oracle[tenant, "nacked"] += len(got)
                oracle[tenant, "dead"] += sum(one.attempt == 2 for one in got)
                calls["nack"] += 1
    seen = await scraped(house)
    for tenant in keys:
        label = (("tenant", tenant),)
        for total in ("added", "added_bytes", "delivered", "acked", "nacked", "dead", "removed"):
            assert seen[f"tenantq_{total}_total", label] == oracle[tenant, total], (tenant, total)
        stored = sum(seen["tenantq_messages", (("state", state), ("tenant", tenant))] for state in ("ready", "delayed", "in_flight", "blocked"))  # fmt: skip
        assert stored == oracle[tenant, "added"] - oracle[tenant, "acked"] - oracle[tenant, "removed"]
    for action, count in calls.items():
        label = (("action", action),)
        assert seen["tenantq_calls_total", label] == count
        assert seen["tenantq_call_seconds_count", label] == count
        assert seen["tenantq_call_seconds_bucket", (("action", action), ("le", "+Inf"))] == count
    assert sum(count for (name, _), count in seen.items() if name == "tenantq_calls_refused_total") == refused
    assert seen["tenantq_round_seconds_count", ()] == seen["tenantq_rounds_total", ()] > 0
    assert seen["tenantq_sync_seconds_count", ()] > 0


async def test_71_tenants_beyond_the_bound_share_a_label_that_none_can_have(house: House) -> None:
    """What a label counts stays the same: a tenant keeps the one it has, also when others grow."""
    names = [f"tenant-{at:03d}" for at in range(TENANTS_MAX + 20)]
    for name in names:
        await put_tenant(house.shard, name)
    first = await scraped(house)
    labels = {dict(label)["tenant"] for family, label in first if family == "tenantq_added_total"}
    assert len(labels) == TENANTS_MAX + 1
    shared = [name for name in names if name not in labels]
    assert len(shared) == 21  # the default tenant has one of its own
    for name in shared:
        await house.shard.add(name, "work", [message() for _ in range(3)])
    second = await scraped(house)
    assert {dict(label)["tenant"] for family, label in second if family == "tenantq_added_total"} == labels
    assert second["tenantq_added_total", (("tenant", OTHER),)] == 3 * len(shared)
    with pytest.raises(TenantqError):
        await house.tenant(OTHER)


async def test_waiting_is_not_counted_as_time_that_a_call_took(house: House) -> None:
    """Neither for messages nor for a rate, which has a figure of its own."""
    await house.tenant("acme", limits={"read": {"ops_per_sec": 1, "burst": 2}})
    key = await house.key("acme")
    await house.add(key, "mail", "one")
    await house.take(key, "mail")
    waiting = asyncio.ensure_future(house.take(key, "mail", wait_ms=30_000))
    for _ in range(3):
        await house.pass_time(10_000)
    assert await waiting == []
    seen = await scraped(house)
    assert seen["tenantq_call_seconds_count", (("action", "poll"),)] == 2
    assert seen["tenantq_call_seconds_sum", (("action", "poll"),)] < 1
    assert seen["tenantq_gate_wait_seconds_count", ()] == 0
    while (
        house.admission.rates.wait_ms(Charge.of("acme", house.shard.tenant("acme").config.limits, "mail", None, "read"))
        == 0
    ):
        await house.take(key, "mail")
    late = asyncio.ensure_future(house.take(key, "mail", wait_ms=200_000))
    await house.pass_time(2_000)
    await house.add(key, "mail", "two")
    assert len(await late) == 1
    seen = await scraped(house)
    assert seen["tenantq_gate_wait_seconds_count", ()] == 1
    assert seen["tenantq_gate_wait_seconds_sum", ()] >= 0.5
    assert seen["tenantq_call_seconds_sum", (("action", "poll"),)] < 1
