"""Templates: stored with their owner, used by those they are shared with, applied queue by queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.signup import SignupRequest, SignupSettings
from tenantq.domain.template import Template
from tenantq.errors import Forbidden, Invalid, NotFound
from tenantq.service.onboarding import approve_signup
from tenantq.service.service import Service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.service.call import Call
    from tenantq.wire.templates import AppliedItem
    from tests.contract.gates.conftest import OpenHouse
    from tests.contract.gates.house import House

MAIL = Template(queues={"mail": {"max_attempts": 3}, "bounces": {"lease_ms": 9_000}})


def outcomes(applied: Sequence[AppliedItem]) -> dict[str, str]:
    """Return what became of each queue."""
    return {one.queue: one.outcome for one in applied}


async def tenant(house: House, name: str, **changes: Any) -> Call:
    """Make a tenant, and return a request of its administrator."""
    await house.tenant(name, **changes)
    return await house.key(name)


async def test_a_template_creates_queues_and_applying_it_again_changes_nothing(house: House) -> None:
    """A dry run shows the same and does nothing. Settings that it does not name stay."""
    acme = await tenant(house, "acme")
    templates = house.service.templates
    assert await templates.put(acme, None, "mail", MAIL)
    created = {"mail": "created", "bounces": "created"}
    assert outcomes(await templates.apply(acme, None, "mail", dry_run=True)) == created
    assert await house.service.queues.list(acme, None) == []
    assert outcomes(await templates.apply(acme, None, "mail")) == created
    end = await house.journal_end()
    assert outcomes(await templates.apply(acme, None, "mail")) == {"mail": "unchanged", "bounces": "unchanged"}
    assert await house.rows(end) == []
    await house.service.queues.put(acme, None, "mail", {"max_attempts": 7, "ttl_ms": 60_000})
    [mail, _] = await templates.apply(acme, None, "mail")
    assert (mail.outcome, mail.changes) == ("changed", {"max_attempts": 3})
    config = (await house.service.queues.get(acme, None, "mail")).config
    assert (config.max_attempts, config.ttl_ms) == (3, 60_000)


async def test_queues_beyond_the_quota_are_refused_one_by_one(house: House) -> None:
    """Those before stay. The reply says which, and why."""
    acme = await tenant(house, "acme", quotas={"queues": 1})
    await house.service.templates.put(acme, None, "mail", MAIL)
    applied = await house.service.templates.apply(acme, None, "mail")
    assert outcomes(applied) == {"mail": "created", "bounces": "refused"}
    assert "queues" in applied[1].error


async def test_a_template_is_used_by_those_it_is_shared_with(house: House) -> None:
    """For others it does not exist, and neither does its owner."""
    acme, globex, initech = [await tenant(house, name) for name in ("acme", "globex", "initech")]
    templates = house.service.templates
    await templates.put(acme, None, "mail", Template(queues=MAIL.queues, shared_with=("globex",)))
    assert [(one.owner, one.name) for one in await templates.list(globex, None)] == [("acme", "mail")]
    assert outcomes(await templates.apply(globex, None, "mail", owner="acme")) == {
        "mail": "created",
        "bounces": "created",
    }
    assert await templates.list(initech, None) == []
    for owner in ("acme", "nobody-at-all", None):
        with pytest.raises(NotFound, match="does not exist, or is not shared with this tenant"):
            await templates.apply(initech, None, "mail", owner=owner)
    await templates.put(acme, None, "mail", Template(queues=MAIL.queues, shared_with=("*",)))
    assert len(await templates.list(initech, None)) == 1
    with pytest.raises(Forbidden):
        await templates.put(globex, "acme", "mail", Template())


async def test_only_administrators_store_and_share(house: House) -> None:
    """Operators apply, viewers list."""
    acme = await tenant(house, "acme")
    operator, viewer = await house.key("acme", "operator"), await house.key("acme", "viewer")
    templates = house.service.templates
    with pytest.raises(Forbidden):
        await templates.put(operator, None, "mail", MAIL)
    await templates.put(acme, None, "mail", MAIL)
    await templates.apply(operator, None, "mail")
    assert len(await templates.list(viewer, None)) == 1
    with pytest.raises(Forbidden):
        await templates.apply(viewer, None, "mail")
    with pytest.raises(Forbidden):
        await templates.list(acme, "")


async def test_the_platform_shares_settings_that_only_it_applies(house: House) -> None:
    """A tenant's own template of the same name comes first."""
    acme = await tenant(house, "acme")
    templates = house.service.templates
    platform = Template(queues={"platform": {}}, settings={"weight": 4}, shared_with=("*",))
    await templates.put(house.admin, "", "mail", platform)
    applied = await templates.apply(acme, None, "mail")
    assert outcomes(applied) == {"": "refused", "platform": "created"}
    assert outcomes(await templates.apply(house.admin, "acme", "mail")) == {"": "changed", "platform": "unchanged"}
    assert (await house.service.tenants.get(acme, None)).config.weight == 4
    await templates.put(acme, None, "mail", MAIL)
    assert set(outcomes(await templates.apply(acme, None, "mail"))) == {"mail", "bounces"}
    assert set(outcomes(await templates.apply(acme, None, "mail", owner=""))) == {"", "platform"}


@pytest.mark.parametrize(
    "template",
    [
        Template(queues={"mail": {"max_attempts": -1}}),
        Template(queues={"no such name!": {}}),
        Template(settings={"colour": "blue"}),
        Template(shared_with=("Not A Tenant",)),
    ],
)
async def test_a_template_that_could_not_be_applied_is_refused(house: House, template: Template) -> None:
    """Nothing is stored."""
    acme = await tenant(house, "acme")
    with pytest.raises(Invalid):
        await house.service.templates.put(acme, None, "mail", template)
    assert await house.service.templates.list(acme, None) == []


async def test_templates_survive_a_restart_and_leave_with_their_tenant(house: House, open_house: OpenHouse) -> None:
    """A deleted one is gone, too; what was made from it stays."""
    acme = await tenant(house, "acme")
    for name in ("mail", "other"):
        await house.service.templates.put(acme, None, name, MAIL)
    await house.service.templates.apply(acme, None, "mail")
    await house.service.templates.delete(acme, None, "mail")
    with pytest.raises(NotFound):
        await house.service.templates.delete(acme, None, "mail")
    await house.close()
    await house.shard.close()
    again = await open_house()
    assert [one.name for one in await again.service.templates.list(acme, None)] == ["other"]
    assert len(await again.service.queues.list(acme, None)) == 2
    await again.service.erasures.delete_tenant(again.admin, "acme", confirm="acme", reason="a test is over")
    assert await again.service.templates.list(again.admin, "") == []


async def test_an_approved_sign_up_gets_a_template_of_the_platform(house: House) -> None:
    """One that does not exist creates no tenant."""
    house.service = Service(
        house.shard, house.admission, house.clock, house.encryption, signups=SignupSettings(enabled=True)
    )
    await house.service.templates.put(house.admin, "", "starter", MAIL)
    asked = SignupRequest(tenant="newcomer", contact="ann")
    made = await house.service.signups.request(house.call(None), asked)
    with pytest.raises(NotFound, match="template 'gold'"):
        await approve_signup(house.service, house.admin, made.id, None, "gold")
    found = await approve_signup(house.service, house.admin, made.id, None, "starter")
    assert outcomes(found.applied) == {"mail": "created", "bounces": "created"}
    assert len(await house.service.queues.list(house.call(found.token), None)) == 2
