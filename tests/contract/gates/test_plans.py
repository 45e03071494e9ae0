"""Plans: new tenants get one, and a plan's values replace the tenant's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.domain.plans import BUILT_IN, Plan, PlanSettings
from tenantq.domain.quotas import Quotas
from tenantq.domain.rates import Limits, Rate
from tenantq.errors import Forbidden, Invalid, QuotaExceeded
from tenantq.service.service import Service

if TYPE_CHECKING:
    from tests.contract.gates.harness import ServiceHarness

SMALL = Plan(quotas=Quotas(backlog=2), limits=Limits(write=Rate(ops_per_sec=100)), weight=3)


def with_plans(harness: ServiceHarness, **custom: Plan) -> None:
    """Define plans on the server."""
    plans = PlanSettings(custom=custom)
    harness.service = Service(harness.shard, harness.admission, harness.clock, harness.encryption, plans=plans)


async def test_new_tenants_get_the_default_plan(harness: ServiceHarness) -> None:
    """A tenant that names no plan is limited."""
    await harness.tenant("acme")
    found = (await harness.service.tenants.get(harness.admin, "acme")).config
    assert (found.plan, found.quotas) == ("standard", BUILT_IN["standard"].quotas)


async def test_the_tenant_default_has_no_plan(harness: ServiceHarness) -> None:
    """The server itself creates it, for callers without a tenant."""
    assert (await harness.service.tenants.get(harness.admin, "default")).config.plan is None


async def test_a_change_of_another_setting_applies_no_plan(harness: ServiceHarness) -> None:
    """Only tenants that are new get the default plan."""
    await harness.tenant("acme", plan=None)
    await harness.tenant("acme", weight=2)
    found = (await harness.service.tenants.get(harness.admin, "acme")).config
    assert (found.plan, found.quotas, found.weight) == (None, Quotas(), 2)


async def test_plan_limits_its_tenants(harness: ServiceHarness) -> None:
    """The quotas of the plan apply like the tenant's own."""
    with_plans(harness, small=SMALL)
    await harness.tenant("acme", plan="small")
    key = await harness.key("acme")
    await harness.add(key, "mail", "one", "two")
    [third] = await harness.add(key, "mail", "three")
    assert isinstance(third.error, QuotaExceeded)


async def test_another_plan_replaces_the_values_of_the_first(harness: ServiceHarness) -> None:
    """Nothing of the old plan remains. Settings that no plan has stay."""
    with_plans(harness, small=SMALL, large=Plan(quotas=Quotas(in_flight=9)))
    await harness.tenant("acme", plan="small", create_queues=False)
    await harness.tenant("acme", plan="large")
    found = (await harness.service.tenants.get(harness.admin, "acme")).config
    assert (found.plan, found.quotas, found.limits, found.weight) == ("large", Quotas(in_flight=9), Limits(), 1)
    assert not found.create_queues


async def test_settings_of_the_same_call_win_over_the_plan(harness: ServiceHarness) -> None:
    """An exception for one customer needs no plan."""
    with_plans(harness, small=SMALL)
    await harness.tenant("acme", plan="small", quotas={"backlog": 7})
    found = (await harness.service.tenants.get(harness.admin, "acme")).config
    assert (found.quotas.backlog, found.weight) == (7, 3)


async def test_an_unknown_plan_is_refused_by_name(harness: ServiceHarness) -> None:
    """Nothing is created."""
    with pytest.raises(Invalid, match=r"plan: unknown plan \('gold', allowed: standard, unlimited\)"):
        await harness.tenant("acme", plan="gold")
    with pytest.raises(Invalid, match="plan: must be text"):
        await harness.tenant("acme", plan=7)
    assert "acme" not in harness.shard.state.catalog.tenants


async def test_the_journal_keeps_the_values_of_the_plan(harness: ServiceHarness) -> None:
    """The plan may be changed later; the row says what the tenant got."""
    with_plans(harness, small=SMALL)
    await harness.tenant("acme", plan="small")
    [row] = [row for row in await harness.rows() if row.op == "create_tenant" and row.tenant == "acme"]
    assert '"backlog":2' in row.details
    assert '"name":"small"' in row.details


async def test_only_the_platform_lists_plans(harness: ServiceHarness) -> None:
    """A tenant sees only the name of its own plan."""
    await harness.tenant("acme")
    found = await harness.service.tenants.plans(harness.admin)
    assert [(one.name, one.is_default) for one in found.plans] == [("standard", True), ("unlimited", False)]
    with pytest.raises(Forbidden):
        await harness.service.tenants.plans(await harness.key("acme"))


async def test_a_plan_never_turns_encryption_off(harness: ServiceHarness) -> None:
    """Encryption is a promise to the tenant."""
    plans = PlanSettings(custom={"safe": Plan(encrypted=True)})
    encrypted = plans.change((await harness.service.tenants.get(harness.admin, "default")).config, {"plan": "safe"})
    assert encrypted.encryption.enabled
    assert plans.change(encrypted, {"plan": "standard"}).encryption.enabled


def test_a_default_plan_that_does_not_exist_is_refused() -> None:
    """The server does not start with it."""
    with pytest.raises(Invalid, match=r"default: unknown plan \('gold', allowed: standard, unlimited\)"):
        PlanSettings(default="gold")
