"""Containment rules: dry runs change nothing, the rest is journaled, ends on its own, and spares administrators."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.access import Grant
from tenantq.domain.containment import ContainmentRule
from tenantq.errors import Forbidden, Invalid, KeySuspended, NotFound, RateLimited, Suspended, Unauthenticated
from tenantq.gates.signals import SignalSettings
from tenantq.service.gate_settings import GateSettings
from tenantq.service.service import Service
from tests.contract.gates.harness import ServiceHarness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.service.call import Call
    from tenantq.wire.alerts import ContainmentItem
    from tests.contract.gates.conftest import OpenHarness

HOUR_MS = 3_600_000
WATCHFUL = GateSettings(
    refusal_rows_per_second=10_000,
    signals=SignalSettings(denials_per_minute=3, cross_tenant_per_minute=100_000, quiet_ms=0),
)


@pytest.fixture
async def harness(open_harness: OpenHarness) -> ServiceHarness:
    """Open one harness with two tenants, which raises an alert about the fourth denied call of a principal."""
    harness = await open_harness(settings=WATCHFUL)
    for name in ("acme", "globex"):
        await harness.tenant(name)
        await harness.key(name)  # its administrator
    return harness


def react(harness: ServiceHarness, action: str = "suspend_key", **rule: Any) -> None:
    """Have the server react to alerts."""
    rules = (ContainmentRule(**{"alert": "denials", "action": action, "dry_run": False, **rule}),)
    harness.service = Service(harness.shard, harness.admission, harness.clock, harness.encryption, containment=rules)


async def misbehave(harness: ServiceHarness, call: Call, tenant: str = "acme") -> None:
    """Make denied calls of a producer until an alert is raised."""
    for _ in range(4):
        with pytest.raises((Forbidden, RateLimited)):
            await harness.service.messages.poll(call, tenant, "mail")
    await harness.wait_until_idle()


async def listed(harness: ServiceHarness) -> Sequence[ContainmentItem]:
    return (await harness.service.containment.list(harness.admin)).containments


async def test_dry_run_is_listed_and_journaled_and_changes_nothing(harness: ServiceHarness) -> None:
    """Dry runs are the default for rules, and a repeated alert adds nothing."""
    react(harness, dry_run=ContainmentRule(alert="denials", action="suspend_key").dry_run)
    producer, key_id = await harness.key_and_id("acme", "producer")
    for _ in range(2):
        await misbehave(harness, producer)
    await harness.add(producer, "mail")
    [found] = await listed(harness)
    assert (found.action, found.principal, found.tenant, found.dry_run) == (
        "suspend_key", f"key:{key_id}", "acme", True,
    )  # fmt: skip
    [row] = [row for row in await harness.rows() if row.op == "contain"]
    assert (row.tenant, row.principal, row.outcome) == ("acme", "system", "ok")
    assert f"dry run: suspend_key key:{key_id} because of denials" in row.details


async def test_suspended_key_is_refused_until_the_containment_ends(harness: ServiceHarness) -> None:
    """It gets its own error. Other keys of the tenant work, and the end is journaled."""
    react(harness, duration_ms=HOUR_MS)
    producer, key_id = await harness.key_and_id("acme", "producer")
    other = await harness.key("acme", "producer")
    await misbehave(harness, producer)
    with pytest.raises(KeySuspended, match=f"API key {key_id} is suspended until"):
        await harness.add(producer, "mail")
    await harness.add(other, "mail")
    keys = {one.key_id: one for one in await harness.service.access.list_keys(harness.admin, "acme")}
    assert keys[key_id].suspended_until == harness.clock.wall_ms() + HOUR_MS
    await harness.pass_time(HOUR_MS - 1)
    with pytest.raises(KeySuspended):
        await harness.add(producer, "mail")
    await harness.pass_time(1_000)
    await harness.add(producer, "mail")
    assert await listed(harness) == []
    [row] = [row for row in await harness.rows() if row.op == "release_containment"]
    assert (row.principal, row.details.partition(":")[0]) == ("system", "its time is over")


async def test_waiting_poll_of_a_suspended_key_gets_nothing(harness: ServiceHarness) -> None:
    """The message stays for other consumers."""
    react(harness)
    owner = await harness.key("acme")
    consumer = await harness.key("acme", "consumer")
    await harness.service.queues.put(owner, None, "mail", {})
    waiting = asyncio.ensure_future(harness.service.messages.poll(consumer, None, "mail", wait_ms=20_000))
    for _ in range(4):
        with pytest.raises(Forbidden):
            await harness.add(consumer, "mail")
    await harness.wait_until_idle()
    await harness.add(owner, "mail")
    with pytest.raises(KeySuspended):
        await waiting
    assert len(await harness.take(owner, "mail")) == 1


async def test_administrator_releases_a_key_at_once(harness: ServiceHarness) -> None:
    """The journal says who did it, and a second release is not found."""
    react(harness)
    producer = await harness.key("acme", "producer")
    await misbehave(harness, producer)
    [found] = await listed(harness)
    assert await harness.service.containment.release(harness.admin, found.id) == found
    await harness.add(producer, "mail")
    [row] = [row for row in await harness.rows() if row.op == "release_containment"]
    assert row.principal.startswith("key:")
    assert row.details.startswith("released: ")
    with pytest.raises(NotFound, match="does not exist, or has ended"):
        await harness.service.containment.release(harness.admin, found.id)


async def test_containments_survive_a_restart(harness: ServiceHarness, open_harness: OpenHarness) -> None:
    """Keys stay suspended and principals limited, because the rows are in the store."""
    react(harness)
    producer = await harness.key("acme", "producer")
    await misbehave(harness, producer)
    react(harness, "limit_principal")
    limited = await harness.key("acme", "producer")
    await misbehave(harness, limited)
    await harness.add(limited, "mail")
    before = await listed(harness)
    await harness.close()
    await harness.shard.close()
    again = await open_harness(settings=WATCHFUL)
    assert await listed(again) == before
    with pytest.raises(KeySuspended):
        await again.add(producer, "mail")
    await again.add(limited, "mail")
    with pytest.raises(RateLimited):
        await again.add(limited, "mail")


async def test_limited_principal_gets_the_rate_of_the_rule(harness: ServiceHarness) -> None:
    """Denied calls count. Other keys do not share the limit, and acks are never delayed."""
    react(harness, "limit_principal", ops_per_sec=2)
    worker = await harness.key("acme", "consumer")
    owner = await harness.key("acme")
    await harness.add(owner, "mail", *"12345678")
    for _ in range(4):
        with pytest.raises(Forbidden):
            await harness.add(worker, "mail")
    await harness.wait_until_idle()
    got = await harness.take(worker, "mail", 8)
    assert len(got) == 2
    with pytest.raises(RateLimited, match=r"limits.read.ops_per_sec: 2 a second for this principal") as caught:
        await harness.take(worker, "mail")
    assert caught.value.tenant is None
    outcomes = await harness.service.settlement.ack(worker, None, "mail", [one.receipt for one in got])
    assert all(one.error is None for one in outcomes)
    await harness.add(owner, "mail", *"123456")
    await harness.pass_time(1_000)
    for _ in range(2):
        with pytest.raises(Forbidden):
            await harness.service.queues.list(worker, None)
    with pytest.raises(RateLimited):
        await harness.service.queues.list(worker, None)
    await harness.wait_until_idle()
    [found] = await listed(harness)
    await harness.service.containment.release(harness.admin, found.id)
    assert len(await harness.take(worker, "mail", 8)) == 8


async def test_frozen_tenant_resumes_when_the_containment_ends(harness: ServiceHarness) -> None:
    """The attacker's tenant is frozen, never the one that was attacked."""
    react(harness, "freeze_tenant", duration_ms=60_000)
    attacker = await harness.key("globex", "producer")
    await misbehave(harness, attacker, "acme")
    await harness.add(await harness.key("acme"), "mail")
    with pytest.raises(Suspended):
        await harness.add(attacker, "mail")
    await harness.pass_time(61_000)
    await harness.add(attacker, "mail")
    assert [row.tenant for row in await harness.rows() if row.op == "release_containment"] == ["globex"]


async def test_end_of_a_freeze_keeps_an_administrators_suspension(harness: ServiceHarness) -> None:
    """A tenant that was resumed and suspended by hand stays suspended."""
    react(harness, "freeze_tenant", duration_ms=60_000)
    attacker = await harness.key("globex", "producer")
    await misbehave(harness, attacker)
    await harness.service.tenants.resume(harness.admin, "globex")
    await harness.service.tenants.suspend(harness.admin, "globex", "it did not pay")
    await harness.pass_time(61_000)
    assert await listed(harness) == []
    with pytest.raises(Suspended):
        await harness.add(attacker, "mail")


async def test_suspended_tenant_is_not_frozen(harness: ServiceHarness) -> None:
    """Otherwise the end of the containment would resume it."""
    react(harness, "freeze_tenant")
    attacker = await harness.key("globex", "producer")
    await harness.service.tenants.suspend(harness.admin, "globex", "it did not pay")
    await misbehave(harness, attacker)
    assert await listed(harness) == []
    [row] = [row for row in await harness.rows() if row.op == "contain"]
    assert (row.outcome, row.error_code) == ("refused", "conflict")


@pytest.mark.parametrize("action", ["suspend_key", "limit_principal"])
@pytest.mark.parametrize("dry_run", [True, False])
async def test_last_administrator_of_a_tenant_is_never_contained(
    harness: ServiceHarness, action: str, *, dry_run: bool
) -> None:
    """This holds in dry runs too. With a second key the first is contained, and then the second is not."""
    react(harness, action, dry_run=dry_run)
    await harness.tenant("initech")
    last = await harness.key("initech")
    await harness.key("initech", expires_at=harness.clock.wall_ms())  # expired
    await misbehave(harness, last, "acme")
    assert await listed(harness) == []
    [refused] = [row for row in await harness.rows() if row.op == "contain"]
    assert refused.error_code == "conflict"
    assert f"{action} key:" in refused.details
    second = await harness.key("initech")
    await misbehave(harness, last, "acme")
    assert len(await listed(harness)) == 1
    await misbehave(harness, second, "acme")
    assert len(await listed(harness)) == (1 if action == "suspend_key" and not dry_run else 2)


async def test_platform_administrators_are_never_contained(harness: ServiceHarness) -> None:
    """This holds for any number of them. Other platform keys are contained."""
    react(harness)
    signals = harness.admission.signals
    made = await harness.service.access.create_platform_key(harness.admin, "second", Grant(role="platform-admin"))
    metrics = await harness.service.access.create_platform_key(harness.admin, "prometheus", Grant(actions=("metrics",)))
    for id in (made.key_id, metrics.key_id):
        for _ in range(4):
            signals.denied(f"key:{id}", "acme")
    for _ in range(4):
        signals.denied("jwt:root", "acme")
    await harness.wait_until_idle()
    assert [one.principal for one in await listed(harness)] == [f"key:{metrics.key_id}"]
    await harness.service.access.log_in(harness.call(made.token))
    with pytest.raises(KeySuspended):
        await harness.service.access.log_in(harness.call(metrics.token))


async def test_unauthenticated_calls_contain_nothing(harness: ServiceHarness) -> None:
    """Otherwise they could choose whom to contain."""
    react(harness)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await harness.add(harness.call("tq_nobody_knows"), "mail")
    await harness.wait_until_idle()
    assert await listed(harness) == []


async def test_exceeded_threshold_freezes_its_tenant(harness: ServiceHarness) -> None:
    """Rules work for every kind of alert that names a tenant."""
    react(harness, "freeze_tenant", alert="quota")
    await harness.tenant("acme", quotas={"backlog": 2}, alerts={"quota_percent": 90})
    owner = await harness.key("acme")
    await harness.add(owner, "mail", "1", "2")
    await harness.service.watch.evaluate()
    await harness.wait_until_idle()
    [found] = await listed(harness)
    assert (found.tenant, found.principal, found.text) == ("acme", "", "quota backlog: 2 of 2 in use (threshold 90 %)")
    with pytest.raises(Suspended):
        await harness.take(owner, "mail")


async def test_containments_are_deleted_with_their_tenant(harness: ServiceHarness) -> None:
    """A new tenant of the same name starts without any."""
    react(harness, "limit_principal")
    producer = await harness.key("acme", "producer")
    await misbehave(harness, producer)
    await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason="a test is over")
    assert await listed(harness) == []


@pytest.mark.parametrize(
    ("alert", "action"),
    [("quota", "suspend_key"), ("throttled", "limit_principal"), ("journal_lag", "freeze_tenant")],
)
def test_rule_that_could_never_apply_is_refused(alert: Any, action: Any) -> None:
    """The server does not start with it."""
    with pytest.raises(Invalid, match=f"action: {action} is not possible"):
        ContainmentRule(alert=alert, action=action)
