"""Rules react to alerts: dry runs change nothing, the rest is journaled, ends by itself, and spares administrators."""

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
from tests.contract.gates.house import House

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.service.call import Call
    from tenantq.wire.alerts import ContainmentItem
    from tests.contract.gates.conftest import OpenHouse

HOUR_MS = 3_600_000
WATCHFUL = GateSettings(
    refusal_rows_per_second=10_000,
    signals=SignalSettings(denials_per_minute=3, cross_tenant_per_minute=100_000, quiet_ms=0),
)


@pytest.fixture
async def house(open_house: OpenHouse) -> House:
    """One house that raises an alert about the fourth denied call of a principal, with two tenants."""
    house = await open_house(settings=WATCHFUL)
    for name in ("acme", "globex"):
        await house.tenant(name)
        await house.key(name)  # its administrator
    return house


def react(house: House, action: str = "suspend_key", **rule: Any) -> None:
    """Have the server react to alerts."""
    rules = (ContainmentRule(**{"alert": "denials", "action": action, "dry_run": False, **rule}),)
    house.service = Service(house.shard, house.admission, house.clock, house.encryption, containment=rules)


async def misbehave(house: House, call: Call, tenant: str = "acme") -> None:
    """Have calls of a producer denied, until an alert is raised."""
    for _ in range(4):
        with pytest.raises((Forbidden, RateLimited)):
            await house.service.messages.poll(call, tenant, "mail")
    await house.settled()


async def listed(house: House) -> Sequence[ContainmentItem]:
    return (await house.service.containment.list(house.admin)).containments


async def test_a_dry_run_is_listed_and_journaled_and_changes_nothing(house: House) -> None:
    """It is what rules do unless they say otherwise. The same alert adds nothing."""
    react(house, dry_run=ContainmentRule(alert="denials", action="suspend_key").dry_run)
    producer, key_id = await house.key_and_id("acme", "producer")
    for _ in range(2):
        await misbehave(house, producer)
    await house.add(producer, "mail")
    [found] = await listed(house)
    assert (found.action, found.principal, found.tenant, found.dry_run) == (
        "suspend_key", f"key:{key_id}", "acme", True,
    )  # fmt: skip
    [row] = [row for row in await house.rows() if row.op == "contain"]
    assert (row.tenant, row.principal, row.outcome) == ("acme", "system", "ok")
    assert f"dry run: suspend_key key:{key_id} because of denials" in row.details


async def test_a_suspended_key_is_refused_until_its_time_is_over(house: House) -> None:
    """With an error of its own. Other keys of the tenant work, and the end is journaled."""
    react(house, duration_ms=HOUR_MS)
    producer, key_id = await house.key_and_id("acme", "producer")
    other = await house.key("acme", "producer")
    await misbehave(house, producer)
    with pytest.raises(KeySuspended, match=f"API key {key_id} is suspended until"):
        await house.add(producer, "mail")
    await house.add(other, "mail")
    keys = {one.key_id: one for one in await house.service.access.list_keys(house.admin, "acme")}
    assert keys[key_id].suspended_until == house.clock.wall_ms() + HOUR_MS
    await house.pass_time(HOUR_MS - 1)
    with pytest.raises(KeySuspended):
        await house.add(producer, "mail")
    await house.pass_time(1_000)
    await house.add(producer, "mail")
    assert await listed(house) == []
    [row] = [row for row in await house.rows() if row.op == "release_containment"]
    assert (row.principal, row.details.partition(":")[0]) == ("system", "its time is over")


async def test_a_waiting_poll_of_a_suspended_key_gets_nothing(house: House) -> None:
    """The message stays for others."""
    react(house)
    owner = await house.key("acme")
    consumer = await house.key("acme", "consumer")
    await house.service.queues.put(owner, None, "mail", {})
    waiting = asyncio.ensure_future(house.service.messages.poll(consumer, None, "mail", wait_ms=20_000))
    for _ in range(4):
        with pytest.raises(Forbidden):
            await house.add(consumer, "mail")
    await house.settled()
    await house.add(owner, "mail")
    with pytest.raises(KeySuspended):
        await waiting
    assert len(await house.take(owner, "mail")) == 1


async def test_an_administrator_releases_a_key_at_once(house: House) -> None:
    """The journal says who did. A second release finds nothing."""
    react(house)
    producer = await house.key("acme", "producer")
    await misbehave(house, producer)
    [found] = await listed(house)
    assert await house.service.containment.release(house.admin, found.id) == found
    await house.add(producer, "mail")
    [row] = [row for row in await house.rows() if row.op == "release_containment"]
    assert row.principal.startswith("key:")
    assert row.details.startswith("released: ")
    with pytest.raises(NotFound, match="does not exist, or has ended"):
        await house.service.containment.release(house.admin, found.id)


async def test_a_restart_keeps_keys_suspended(house: House, open_house: OpenHouse) -> None:
    """And principals limited: the rows are in the store."""
    react(house)
    producer = await house.key("acme", "producer")
    await misbehave(house, producer)
    react(house, "limit_principal")
    limited = await house.key("acme", "producer")
    await misbehave(house, limited)
    await house.add(limited, "mail")
    before = await listed(house)
    await house.close()
    await house.shard.close()
    again = await open_house(settings=WATCHFUL)
    assert await listed(again) == before
    with pytest.raises(KeySuspended):
        await again.add(producer, "mail")
    await again.add(limited, "mail")
    with pytest.raises(RateLimited):
        await again.add(limited, "mail")


async def test_a_limited_principal_gets_the_rate_that_the_rule_leaves(house: House) -> None:
    """Denied calls count. Other keys of the tenant do not share the limit, and acks are never delayed."""
    react(house, "limit_principal", ops_per_sec=2)
    worker = await house.key("acme", "consumer")
    owner = await house.key("acme")
    await house.add(owner, "mail", *"12345678")
    for _ in range(4):
        with pytest.raises(Forbidden):
            await house.add(worker, "mail")
    await house.settled()
    got = await house.take(worker, "mail", 8)
    assert len(got) == 2
    with pytest.raises(RateLimited, match=r"limits.read.ops_per_sec: 2 a second for this principal") as caught:
        await house.take(worker, "mail")
    assert caught.value.tenant is None
    outcomes = await house.service.settlement.ack(worker, None, "mail", [one.receipt for one in got])
    assert all(one.error is None for one in outcomes)
    await house.add(owner, "mail", *"123456")
    await house.pass_time(1_000)
    for _ in range(2):
        with pytest.raises(Forbidden):
            await house.service.queues.list(worker, None)
    with pytest.raises(RateLimited):
        await house.service.queues.list(worker, None)
    await house.settled()
    [found] = await listed(house)
    await house.service.containment.release(house.admin, found.id)
    assert len(await house.take(worker, "mail", 8)) == 8


async def test_a_frozen_tenant_resumes_after_the_time(house: House) -> None:
    """The tenant of the attacker is frozen, never the one that was attacked."""
    react(house, "freeze_tenant", duration_ms=60_000)
    attacker = await house.key("globex", "producer")
    await misbehave(house, attacker, "acme")
    await house.add(await house.key("acme"), "mail")
    with pytest.raises(Suspended):
        await house.add(attacker, "mail")
    await house.pass_time(61_000)
    await house.add(attacker, "mail")
    assert [row.tenant for row in await house.rows() if row.op == "release_containment"] == ["globex"]


async def test_the_end_of_a_freeze_leaves_the_suspension_of_an_administrator(house: House) -> None:
    """Whoever resumes and suspends the tenant by hand has decided."""
    react(house, "freeze_tenant", duration_ms=60_000)
    attacker = await house.key("globex", "producer")
    await misbehave(house, attacker)
    await house.service.tenants.resume(house.admin, "globex")
    await house.service.tenants.suspend(house.admin, "globex", "it did not pay")
    await house.pass_time(61_000)
    assert await listed(house) == []
    with pytest.raises(Suspended):
        await house.add(attacker, "mail")


async def test_a_tenant_that_is_suspended_already_is_not_frozen(house: House) -> None:
    """The end of the containment would resume it."""
    react(house, "freeze_tenant")
    attacker = await house.key("globex", "producer")
    await house.service.tenants.suspend(house.admin, "globex", "it did not pay")
    await misbehave(house, attacker)
    assert await listed(house) == []
    [row] = [row for row in await house.rows() if row.op == "contain"]
    assert (row.outcome, row.error_code) == ("refused", "conflict")


@pytest.mark.parametrize("action", ["suspend_key", "limit_principal"])
@pytest.mark.parametrize("dry_run", [True, False])
async def test_the_last_administrator_of_a_tenant_is_never_contained(
    house: House, action: str, *, dry_run: bool
) -> None:
    """Also in a dry run. With a second administrator key the first is contained, and then not the second."""
    react(house, action, dry_run=dry_run)
    await house.tenant("initech")
    last = await house.key("initech")
    await house.key("initech", expires_at=house.clock.wall_ms())  # over
    await misbehave(house, last, "acme")
    assert await listed(house) == []
    assert [row.error_code for row in await house.rows() if row.op == "contain"] == ["conflict"]
    second = await house.key("initech")
    await misbehave(house, last, "acme")
    assert len(await listed(house)) == 1
    await misbehave(house, second, "acme")
    assert len(await listed(house)) == (1 if action == "suspend_key" and not dry_run else 2)


async def test_administrators_of_the_platform_are_never_contained(house: House) -> None:
    """However many there are. Other keys of the platform are."""
    react(house)
    signals = house.admission.signals
    made = await house.service.access.create_platform_key(house.admin, "second", Grant(role="platform-admin"))
    metrics = await house.service.access.create_platform_key(house.admin, "prometheus", Grant(actions=("metrics",)))
    for id in (made.key_id, metrics.key_id):
        for _ in range(4):
            signals.denied(f"key:{id}", "acme")
    for _ in range(4):
        signals.denied("jwt:root", "acme")
    await house.settled()
    assert [one.principal for one in await listed(house)] == [f"key:{metrics.key_id}"]
    await house.service.access.log_in(house.call(made.token))
    with pytest.raises(KeySuspended):
        await house.service.access.log_in(house.call(metrics.token))


async def test_callers_without_a_valid_credential_contain_nothing(house: House) -> None:
    """They could choose whose name they use."""
    react(house)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await house.add(house.call("tq_nobody_knows"), "mail")
    await house.settled()
    assert await listed(house) == []


async def test_a_threshold_that_is_exceeded_freezes_its_tenant(house: House) -> None:
    """Rules work for every kind of alert that names a tenant."""
    react(house, "freeze_tenant", alert="quota")
    await house.tenant("acme", quotas={"backlog": 2}, alerts={"quota_percent": 90})
    owner = await house.key("acme")
    await house.add(owner, "mail", "1", "2")
    await house.service.watch.evaluate()
    await house.settled()
    [found] = await listed(house)
    assert (found.tenant, found.principal, found.text) == ("acme", "", "quota backlog: 2 of 2 in use (threshold 90 %)")
    with pytest.raises(Suspended):
        await house.take(owner, "mail")


async def test_a_deleted_tenant_takes_its_containments_along(house: House) -> None:
    """A new tenant of the same name starts without."""
    react(house, "limit_principal")
    producer = await house.key("acme", "producer")
    await misbehave(house, producer)
    await house.service.erasures.delete_tenant(house.admin, "acme", confirm="acme", reason="a test is over")
    assert await listed(house) == []


@pytest.mark.parametrize(
    ("alert", "action"),
    [("quota", "suspend_key"), ("throttled", "limit_principal"), ("journal_lag", "freeze_tenant")],
)
def test_a_rule_that_could_never_act_is_refused(alert: Any, action: Any) -> None:
    """The server does not start with it."""
    with pytest.raises(Invalid, match=f"action: {action} is not possible"):
        ContainmentRule(alert=alert, action=action)
