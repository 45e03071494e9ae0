"""Sign-ups: anyone may apply if the server allows it, administrators decide, and the reply reveals no tenants."""

from __future__ import annotations

import pytest

from tenantq.domain.plans import Plan, PlanSettings
from tenantq.domain.quotas import Quotas
from tenantq.domain.signup import SignupRequest, SignupSettings
from tenantq.errors import Conflict, Forbidden, Invalid, NotFound, QuotaExceeded, RateLimited
from tenantq.service.onboarding import approve_signup
from tenantq.service.service import Service
from tests.contract.gates.conftest import OpenHarness
from tests.contract.gates.harness import ServiceHarness

HOUR_MS = 3_600_000
REQUEST = SignupRequest(tenant="newcomer", contact="ann@newcomer.example", note="hello")


@pytest.fixture
def harness(harness: ServiceHarness) -> ServiceHarness:
    """Open one harness that accepts sign-ups, with a small plan."""
    accept(harness)
    return harness


def accept(harness: ServiceHarness, **settings: int) -> None:
    """Have the server accept sign-ups."""
    harness.service = Service(
        harness.shard, harness.admission, harness.clock, harness.encryption,
        plans=PlanSettings(custom={"small": Plan(quotas=Quotas(backlog=2))}),
        signups=SignupSettings(enabled=True, **settings),
    )  # fmt: skip


async def test_sign_ups_are_off_by_default(open_harness: OpenHarness) -> None:
    """They need no credential, so a setting must allow them."""
    harness = await open_harness()
    with pytest.raises(NotFound, match="sign-ups are disabled"):
        await harness.service.signups.request(harness.call(None), REQUEST)


async def test_approved_sign_up_becomes_a_tenant_with_a_plan_and_a_key(harness: ServiceHarness) -> None:
    """Every step is journaled, without the contact, and the sign-up is deleted."""
    made = await harness.service.signups.request(harness.call(None), REQUEST)
    [listed] = (await harness.service.signups.list(harness.admin)).signups
    assert (listed.tenant, listed.contact, listed.note, listed.remote) == (
        "newcomer", "ann@newcomer.example", "hello", "10.1.2.3",
    )  # fmt: skip
    found = await approve_signup(harness.service, harness.admin, made.id, None)
    assert (found.tenant, found.contact, found.plan) == ("newcomer", "ann@newcomer.example", "standard")
    await harness.service.queues.put(harness.call(found.token), None, "mail", {})
    assert (await harness.service.signups.list(harness.admin)).signups == []
    rows = await harness.rows()
    ops = [row.op for row in rows if row.op in {"request_signup", "create_tenant", "approve_signup", "create_key"}]
    assert ops[-4:] == ["request_signup", "create_tenant", "approve_signup", "create_key"]
    assert not any("ann@" in row.details for row in rows)
    with pytest.raises(NotFound, match="does not exist, or is already approved or rejected"):
        await approve_signup(harness.service, harness.admin, made.id, None)


async def test_administrators_plan_overrides_the_requested_one(harness: ServiceHarness) -> None:
    """An unknown plan creates nothing."""
    request = SignupRequest(tenant="newcomer", contact="ann", plan="gold")
    made = await harness.service.signups.request(harness.call(None), request)
    with pytest.raises(Invalid, match="plan: unknown plan"):
        await approve_signup(harness.service, harness.admin, made.id, None)
    found = await approve_signup(harness.service, harness.admin, made.id, "small")
    assert found.plan == "small"
    assert (await harness.service.tenants.get(harness.admin, "newcomer")).config.quotas.backlog == 2


async def test_the_reply_does_not_show_whether_a_tenant_exists(harness: ServiceHarness) -> None:
    """Only the administrator learns it, and the tenant stays as it is."""
    await harness.tenant("newcomer", weight=7)
    before = await harness.service.tenants.get(harness.admin, "newcomer")
    first = await harness.service.signups.request(harness.call(None), REQUEST)
    second = await harness.service.signups.request(harness.call(None), REQUEST)
    assert first.id != second.id
    with pytest.raises(Conflict, match="the tenant already exists"):
        await approve_signup(harness.service, harness.admin, first.id, "small")
    assert await harness.service.tenants.get(harness.admin, "newcomer") == before


async def test_contact_is_one_line(harness: ServiceHarness) -> None:
    """Administrators read it in tables, and may paste it into an e-mail."""
    with pytest.raises(Invalid, match=r"contact: .*1 to 200 characters on one line"):
        await harness.service.signups.request(
            harness.call(None), SignupRequest(tenant="newcomer", contact="a@b.example\nBcc: all@b.example")
        )


async def test_rejected_sign_up_is_deleted_and_journaled(harness: ServiceHarness) -> None:
    """The row has the reason."""
    made = await harness.service.signups.request(harness.call(None), REQUEST)
    assert await harness.service.signups.reject(harness.admin, made.id, "spam") == made
    [row] = [row for row in await harness.rows() if row.op == "reject_signup"]
    assert row.details == f"{made.id}: tenant newcomer: spam"
    with pytest.raises(NotFound):
        await harness.service.signups.reject(harness.admin, made.id)


async def test_sign_ups_per_network_and_hour_are_limited(harness: ServiceHarness) -> None:
    """Refused ones are journaled and not stored. Other networks are not affected."""
    accept(harness, per_hour=2)
    for host in (1, 2):
        await harness.service.signups.request(harness.call(None, remote=f"10.1.2.{host}"), REQUEST)
    with pytest.raises(RateLimited) as caught:
        await harness.service.signups.request(harness.call(None, remote="10.1.2.3"), REQUEST)
    assert 0 < caught.value.retry_after_ms <= HOUR_MS
    await harness.service.signups.request(harness.call(None, remote="10.1.3.1"), REQUEST)
    assert len((await harness.service.signups.list(harness.admin)).signups) == 3
    await harness.pass_time(HOUR_MS)
    await harness.service.signups.request(harness.call(None, remote="10.1.2.3"), REQUEST)
    refused = [row for row in await harness.rows() if row.op == "request_signup" and row.outcome == "throttled"]
    assert [(row.principal, row.remote, row.error_code) for row in refused] == [
        ("anonymous", "10.1.2.3", "rate_limited")
    ]


async def test_pending_sign_ups_are_limited(harness: ServiceHarness) -> None:
    """A decision makes room."""
    accept(harness, per_hour=100, waiting_max=2)
    made = [await harness.service.signups.request(harness.call(None), REQUEST) for _ in range(2)]
    with pytest.raises(QuotaExceeded, match="too many are pending"):
        await harness.service.signups.request(harness.call(None), REQUEST)
    await harness.service.signups.reject(harness.admin, made[0].id)
    await harness.service.signups.request(harness.call(None), REQUEST)


async def test_sign_ups_survive_a_restart(harness: ServiceHarness, open_harness: OpenHarness) -> None:
    """They are rows of the store."""
    await harness.service.signups.request(harness.call(None), REQUEST)
    before = await harness.service.signups.list(harness.admin)
    await harness.close()
    await harness.shard.close()
    again = await open_harness()
    assert await again.service.signups.list(again.admin) == before


async def test_tenants_cannot_decide_about_sign_ups(harness: ServiceHarness) -> None:
    """They cannot list them either."""
    await harness.tenant("acme")
    made = await harness.service.signups.request(harness.call(None), REQUEST)
    key = await harness.key("acme")
    with pytest.raises(Forbidden):
        await harness.service.signups.list(key)
    with pytest.raises(Forbidden):
        await approve_signup(harness.service, key, made.id, None)
    with pytest.raises(Forbidden):
        await harness.service.signups.reject(key, made.id)
