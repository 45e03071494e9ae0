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
    from tests.contract.gates.conftest import OpenHarness
    from tests.contract.gates.harness import ServiceHarness

MAIL = Template(queues={"mail": {"max_attempts": 3}, "bounces": {"lease_ms": 9_000}})


def outcomes(applied: Sequence[AppliedItem]) -> dict[str, str]:
    """Return the outcome for each queue."""
    return {one.queue: one.outcome for one in applied}


async def tenant(harness: ServiceHarness, name: str, **changes: Any) -> Call:
    """Create a tenant, and return a call of its administrator."""
    await harness.tenant(name, **changes)
    return await harness.key(name)


async def test_applying_a_template_is_idempotent(harness: ServiceHarness) -> None:
    """A dry run shows the same outcome and does nothing. Settings that it does not name stay."""
    acme = await tenant(harness, "acme")
    templates = harness.service.templates
    assert await templates.put(acme, None, "mail", MAIL)
    created = {"mail": "created", "bounces": "created"}
    assert outcomes(await templates.apply(acme, None, "mail", dry_run=True)) == created
    assert await harness.service.queues.list(acme, None) == []
    assert outcomes(await templates.apply(acme, None, "mail")) == created
    end = await harness.journal_end()
    assert outcomes(await templates.apply(acme, None, "mail")) == {"mail": "unchanged", "bounces": "unchanged"}
    assert await harness.rows(end) == []
    await harness.service.queues.put(acme, None, "mail", {"max_attempts": 7, "ttl_ms": 60_000})
    [mail, _] = await templates.apply(acme, None, "mail")
    assert (mail.outcome, mail.changes) == ("changed", {"max_attempts": 3})
    config = (await harness.service.queues.get(acme, None, "mail")).config
    assert (config.max_attempts, config.ttl_ms) == (3, 60_000)


async def test_queues_above_the_quota_are_refused_individually(harness: ServiceHarness) -> None:
    """Earlier queues stay, and the reply says which were refused, and why."""
    acme = await tenant(harness, "acme", quotas={"queues": 1})
    await harness.service.templates.put(acme, None, "mail", MAIL)
    applied = await harness.service.templates.apply(acme, None, "mail")
    assert outcomes(applied) == {"mail": "created", "bounces": "refused"}
    assert "queues" in applied[1].error


async def test_template_is_visible_only_to_those_it_is_shared_with(harness: ServiceHarness) -> None:
    """For others neither the template nor its owner exists."""
    acme, globex, initech = [await tenant(harness, name) for name in ("acme", "globex", "initech")]
    templates = harness.service.templates
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


async def test_only_administrators_store_and_share_templates(harness: ServiceHarness) -> None:
    """Operators apply them, viewers list them."""
    acme = await tenant(harness, "acme")
    operator, viewer = await harness.key("acme", "operator"), await harness.key("acme", "viewer")
    templates = harness.service.templates
    with pytest.raises(Forbidden):
        await templates.put(operator, None, "mail", MAIL)
    await templates.put(acme, None, "mail", MAIL)
    await templates.apply(operator, None, "mail")
    assert len(await templates.list(viewer, None)) == 1
    with pytest.raises(Forbidden):
        await templates.apply(viewer, None, "mail")
    with pytest.raises(Forbidden):
        await templates.list(acme, "")


async def test_dry_run_shows_queues_that_the_credential_may_not_change(harness: ServiceHarness) -> None:
    """It predicts what applying the template does."""
    await tenant(harness, "acme")
    templates = harness.service.templates
    await templates.put(harness.admin, "acme", "mail", MAIL)
    narrow = await harness.key("acme", None, actions=("put_queue",), queues=("m*",))
    foreseen = await templates.apply(narrow, None, "mail", dry_run=True)
    assert outcomes(foreseen) == {"mail": "created", "bounces": "refused"}
    assert outcomes(foreseen) == outcomes(await templates.apply(narrow, None, "mail"))


async def test_platform_templates_may_contain_settings_only_it_can_apply(harness: ServiceHarness) -> None:
    """A tenant's own template of the same name takes precedence."""
    acme = await tenant(harness, "acme")
    templates = harness.service.templates
    platform = Template(queues={"platform": {}}, settings={"weight": 4}, shared_with=("*",))
    await templates.put(harness.admin, "", "mail", platform)
    for dry_run in (True, False):
        applied = await templates.apply(acme, None, "mail", dry_run=dry_run)
        assert outcomes(applied) == {"": "refused", "platform": "created"}
    assert outcomes(await templates.apply(harness.admin, "acme", "mail")) == {"": "changed", "platform": "unchanged"}
    assert (await harness.service.tenants.get(acme, None)).config.weight == 4
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
async def test_template_that_could_not_be_applied_is_refused(harness: ServiceHarness, template: Template) -> None:
    """Nothing is stored."""
    acme = await tenant(harness, "acme")
    with pytest.raises(Invalid):
        await harness.service.templates.put(acme, None, "mail", template)
    assert await harness.service.templates.list(acme, None) == []


async def test_templates_survive_a_restart_and_are_deleted_with_their_tenant(
    harness: ServiceHarness, open_harness: OpenHarness
) -> None:
    """Deleting a template keeps the queues created from it."""
    acme = await tenant(harness, "acme")
    for name in ("mail", "other"):
        await harness.service.templates.put(acme, None, name, MAIL)
    await harness.service.templates.apply(acme, None, "mail")
    await harness.service.templates.delete(acme, None, "mail")
    with pytest.raises(NotFound):
        await harness.service.templates.delete(acme, None, "mail")
    await harness.close()
    await harness.shard.close()
    again = await open_harness()
    assert [one.name for one in await again.service.templates.list(acme, None)] == ["other"]
    assert len(await again.service.queues.list(acme, None)) == 2
    await again.service.erasures.delete_tenant(again.admin, "acme", confirm="acme", reason="a test is over")
    assert await again.service.templates.list(again.admin, "") == []


async def test_approved_sign_up_gets_a_platform_template(harness: ServiceHarness) -> None:
    """An unknown template creates no tenant."""
    harness.service = Service(
        harness.shard, harness.admission, harness.clock, harness.encryption, signups=SignupSettings(enabled=True)
    )
    await harness.service.templates.put(harness.admin, "", "starter", MAIL)
    asked = SignupRequest(tenant="newcomer", contact="ann")
    made = await harness.service.signups.request(harness.call(None), asked)
    with pytest.raises(NotFound, match="template 'gold'"):
        await approve_signup(harness.service, harness.admin, made.id, None, "gold")
    found = await approve_signup(harness.service, harness.admin, made.id, None, "starter")
    assert outcomes(found.applied) == {"mail": "created", "bounces": "created"}
    assert len(await harness.service.queues.list(harness.call(found.token), None)) == 2
