"""Sign-ups: anyone may ask if the server allows it, administrators decide, and the reply says nothing about tenants."""

from __future__ import annotations

import pytest

from tenantq.domain.plans import Plan, PlanSettings
from tenantq.domain.quotas import Quotas
from tenantq.domain.signup import SignupRequest, SignupSettings
from tenantq.errors import Conflict, Forbidden, Invalid, NotFound, QuotaExceeded, RateLimited
from tenantq.service.onboarding import approve_signup
from tenantq.service.service import Service
from tests.contract.gates.conftest import OpenHouse
from tests.contract.gates.house import House

HOUR_MS = 3_600_000
REQUEST = SignupRequest(tenant="newcomer", contact="ann@newcomer.example", note="hello")


@pytest.fixture
def house(house: House) -> House:
    """One house that accepts sign-ups, with a small plan."""
    accept(house)
    return house


def accept(house: House, **settings: int) -> None:
    """Have the server accept sign-ups."""
    house.service = Service(
        house.shard, house.admission, house.clock, house.encryption,
        plans=PlanSettings(custom={"small": Plan(quotas=Quotas(backlog=2))}),
        signups=SignupSettings(enabled=True, **settings),
    )  # fmt: skip


async def test_a_server_accepts_no_sign_ups_unless_its_settings_say_so(open_house: OpenHouse) -> None:
    """They need no credential."""
    house = await open_house()
    with pytest.raises(NotFound, match="sign-ups are disabled"):
        await house.service.signups.request(house.call(None), REQUEST)


async def test_an_approved_sign_up_becomes_a_tenant_with_a_plan_and_a_key(house: House) -> None:
    """Every step is journaled, without the contact. The sign-up is gone."""
    made = await house.service.signups.request(house.call(None), REQUEST)
    [listed] = (await house.service.signups.list(house.admin)).signups
    assert (listed.tenant, listed.contact, listed.note, listed.remote) == (
        "newcomer", "ann@newcomer.example", "hello", "10.1.2.3",
    )  # fmt: skip
    found = await approve_signup(house.service, house.admin, made.id, None)
    assert (found.tenant, found.contact, found.plan) == ("newcomer", "ann@newcomer.example", "standard")
    await house.service.queues.put(house.call(found.token), None, "mail", {})
    assert (await house.service.signups.list(house.admin)).signups == []
    rows = await house.rows()
    ops = [row.op for row in rows if row.op in {"request_signup", "create_tenant", "approve_signup", "create_key"}]
    assert ops[-4:] == ["request_signup", "create_tenant", "approve_signup", "create_key"]
    assert not any("ann@" in row.details for row in rows)
    with pytest.raises(NotFound, match="does not exist, or is already approved or rejected"):
        await approve_signup(house.service, house.admin, made.id, None)


async def test_the_plan_of_the_administrator_wins_over_the_requested_one(house: House) -> None:
    """A plan that does not exist creates nothing."""
    request = SignupRequest(tenant="newcomer", contact="ann", plan="gold")
    made = await house.service.signups.request(house.call(None), request)
    with pytest.raises(Invalid, match="plan: unknown plan"):
        await approve_signup(house.service, house.admin, made.id, None)
    found = await approve_signup(house.service, house.admin, made.id, "small")
    assert found.plan == "small"
    assert (await house.service.tenants.get(house.admin, "newcomer")).config.quotas.backlog == 2


async def test_the_reply_does_not_show_whether_a_tenant_exists(house: House) -> None:
    """Only the administrator learns it, and the tenant stays as it is."""
    await house.tenant("newcomer", weight=7)
    before = await house.service.tenants.get(house.admin, "newcomer")
    first = await house.service.signups.request(house.call(None), REQUEST)
    second = await house.service.signups.request(house.call(None), REQUEST)
    assert first.id != second.id
    with pytest.raises(Conflict, match="the tenant already exists"):
        await approve_signup(house.service, house.admin, first.id, "small")
    assert await house.service.tenants.get(house.admin, "newcomer") == before


async def test_a_rejected_sign_up_is_gone_and_journaled(house: House) -> None:
    """With the reason."""
    made = await house.service.signups.request(house.call(None), REQUEST)
    assert await house.service.signups.reject(house.admin, made.id, "spam") == made
    [row] = [row for row in await house.rows() if row.op == "reject_signup"]
    assert row.details == f"{made.id}: tenant newcomer: spam"
    with pytest.raises(NotFound):
        await house.service.signups.reject(house.admin, made.id)


async def test_each_network_has_its_sign_ups_per_hour(house: House) -> None:
    """Refused ones are journaled and not stored. Another network is not affected."""
    accept(house, per_hour=2)
    for host in (1, 2):
        await house.service.signups.request(house.call(None, remote=f"10.1.2.{host}"), REQUEST)
    with pytest.raises(RateLimited) as caught:
        await house.service.signups.request(house.call(None, remote="10.1.2.3"), REQUEST)
    assert 0 < caught.value.retry_after_ms <= HOUR_MS
    await house.service.signups.request(house.call(None, remote="10.1.3.1"), REQUEST)
    assert len((await house.service.signups.list(house.admin)).signups) == 3
    await house.pass_time(HOUR_MS)
    await house.service.signups.request(house.call(None, remote="10.1.2.3"), REQUEST)
    refused = [row for row in await house.rows() if row.op == "request_signup" and row.outcome == "throttled"]
    assert [(row.principal, row.remote, row.error_code) for row in refused] == [
        ("anonymous", "10.1.2.3", "rate_limited")
    ]


async def test_sign_ups_that_wait_are_bounded(house: House) -> None:
    """A decision makes room."""
    accept(house, per_hour=100, waiting_max=2)
    made = [await house.service.signups.request(house.call(None), REQUEST) for _ in range(2)]
    with pytest.raises(QuotaExceeded, match="too many are pending"):
        await house.service.signups.request(house.call(None), REQUEST)
    await house.service.signups.reject(house.admin, made[0].id)
    await house.service.signups.request(house.call(None), REQUEST)


async def test_a_restart_keeps_sign_ups(house: House, open_house: OpenHouse) -> None:
    """They are rows of the store."""
    await house.service.signups.request(house.call(None), REQUEST)
    before = await house.service.signups.list(house.admin)
    await house.close()
    await house.shard.close()
    again = await open_house()
    assert await again.service.signups.list(again.admin) == before


async def test_tenants_do_not_decide(house: House) -> None:
    """Nor do they see who asks."""
    await house.tenant("acme")
    made = await house.service.signups.request(house.call(None), REQUEST)
    key = await house.key("acme")
    with pytest.raises(Forbidden):
        await house.service.signups.list(key)
    with pytest.raises(Forbidden):
        await approve_signup(house.service, key, made.id, None)
    with pytest.raises(Forbidden):
        await house.service.signups.reject(key, made.id)
