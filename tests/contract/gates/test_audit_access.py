"""Who sees what of the audit trail, and the platform's own keys."""

from __future__ import annotations

import pytest

from tenantq.domain.access import Grant
from tenantq.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from tenantq.service.audit_trail import AuditQuery
from tests.contract.gates.house import REASON, House


async def busy(house: House) -> None:
    """Have two tenants with work in several queues."""
    for name in ("acme", "globex"):
        await house.tenant(name)
        owner = await house.key(name)
        for queue in ("mail-in", "mail-out", "orders"):
            await house.add(owner, queue, "a", "b")


async def test_an_auditor_of_some_queues_sees_rows_of_those_only(house: House) -> None:
    """Not those of other queues, nor those about the tenant itself, whatever is asked for."""
    await busy(house)
    everything = await house.key("acme", "auditor")
    narrow = await house.key("acme", "auditor", queues=("mail-*",))
    whole, _ = await house.service.audit.query(everything, None, AuditQuery(limit=1_000))
    assert {row.queue for row in whole} == {"", "mail-in", "mail-out", "orders"}
    for order in ("oldest", "newest"):
        seen, _ = await house.service.audit.query(narrow, None, AuditQuery(limit=1_000, order=order))
        assert {row.queue for row in seen} == {"mail-in", "mail-out"}
        assert len(seen) == len([row for row in whole if row.queue.startswith("mail-")])
    hidden = next(row.message_id for row in whole if row.queue == "orders" and row.message_id)
    for wanted in ({"queue": "orders"}, {"action": "create_key"}, {"message": hidden}):
        assert list(await house.service.audit.query(narrow, None, AuditQuery(**wanted))) == [[], None]


async def test_patterns_of_several_grants_add_up(house: House) -> None:
    """A stored one counts beside the key's own."""
    await busy(house)
    narrow, key_id = await house.key_and_id("acme", "auditor", queues=("mail-in",))
    await house.service.access.put_grant(
        house.admin, "acme", f"key:{key_id}", Grant(actions=("audit",), queues=("ord*",))
    )
    seen, _ = await house.service.audit.query(narrow, None, AuditQuery(limit=1_000))
    assert {row.queue for row in seen} == {"mail-in", "orders"}
    await house.service.access.put_grant(house.admin, "acme", f"key:{key_id}", Grant(role="auditor"))
    seen, _ = await house.service.audit.query(narrow, None, AuditQuery(limit=1_000))
    assert {row.queue for row in seen} == {"", "mail-in", "mail-out", "orders"}


async def test_several_actions_and_both_orders(house: House) -> None:
    """As a list, or with commas between."""
    await busy(house)
    owner = await house.key("acme")
    for action in ("add,create_queue", ["add", "create_queue"]):
        up, _ = await house.service.audit.query(owner, None, AuditQuery(action=action, limit=1_000))
        assert {row.op for row in up} == {"add", "create_queue"}
        down, _ = await house.service.audit.query(owner, None, AuditQuery(action=action, order="newest", limit=1_000))
        assert down == up[::-1]
    page = await house.service.audit.query(owner, None, AuditQuery(order="newest", limit=2))
    with pytest.raises(Invalid, match="other order"):
        await house.service.audit.query(owner, None, AuditQuery(limit=2, cursor=page.cursor))


async def test_the_platforms_audit_shows_all_tenants_and_the_platform(house: House) -> None:
    """Also a tenant that is gone; and only to the platform's administrators."""
    await busy(house)
    await house.service.erasures.delete_tenant(house.admin, "globex", confirm="globex", reason=REASON)
    rows, _ = await house.service.audit.query_platform(house.admin, AuditQuery(limit=1_000))
    assert {row.tenant for row in rows} >= {"", "acme", "globex", "default"}
    gone, _ = await house.service.audit.query_platform(house.admin, AuditQuery(tenant="globex", limit=1_000))
    assert {row.tenant for row in gone} == {"globex"}
    assert gone[-1].op == "delete_tenant"
    assert REASON in gone[-1].details
    for role in ("tenant-admin", "auditor"):
        with pytest.raises(Forbidden):
            await house.service.audit.query_platform(await house.key("acme", role))


async def test_a_tenant_does_not_see_its_predecessors_rows(house: House) -> None:
    """One that was deleted and made again under the same name."""
    await busy(house)
    await house.service.erasures.delete_tenant(house.admin, "acme", confirm="acme", reason=REASON)
    await house.tenant("acme")
    for order in ("oldest", "newest"):
        rows, _ = await house.service.audit.query(await house.key("acme"), None, AuditQuery(order=order, limit=1_000))
        assert {row.op for row in rows} - {"audit"} == {"create_tenant", "create_key"}


# ---- the platform's keys ----


async def test_a_key_of_the_platform_is_made_listed_and_revoked(house: House) -> None:
    """It can do what it names, and nothing once it is revoked; each act is journaled without the secret."""
    made = await house.service.access.create_platform_key(house.admin, "prometheus", Grant(actions=("metrics",)))
    scraper = house.call(made.token)
    assert b"tenantq_tenants" in await house.service.status.metrics(scraper)
    for act in (house.service.tenants.list(scraper), house.service.access.list_platform_keys(scraper)):
        with pytest.raises(Forbidden):
            await act
    listed = {key.key_id: key for key in await house.service.access.list_platform_keys(house.admin)}
    assert listed[made.key_id].actions == ("metrics",)
    assert listed[made.key_id].name == "prometheus"
    await house.service.access.revoke_platform_key(house.admin, made.key_id)
    with pytest.raises(Unauthenticated):
        await house.service.status.metrics(scraper)
    listed = {key.key_id: key for key in await house.service.access.list_platform_keys(house.admin)}
    assert listed[made.key_id].revoked_at == house.clock.wall_ms()
    rows = [row for row in await house.rows() if made.key_id in row.details]
    assert [(row.op, row.tenant) for row in rows] == [("create_key", ""), ("revoke_key", "")]
    assert made.secret not in repr(rows)


async def test_the_last_administrator_cannot_be_revoked(house: House) -> None:
    """A second one can, and then the first, from the second's hand."""
    (first,) = await house.service.access.list_platform_keys(house.admin)
    with pytest.raises(Conflict, match="Create another one first"):
        await house.service.access.revoke_platform_key(house.admin, first.key_id)
    made = await house.service.access.create_platform_key(house.admin, "second", Grant(role="platform-admin"))
    second = house.call(made.token)
    await house.service.access.revoke_platform_key(second, first.key_id)
    with pytest.raises(Unauthenticated):
        await house.service.access.list_platform_keys(house.admin)
    with pytest.raises(Conflict):
        await house.service.access.revoke_platform_key(second, made.key_id)
    with pytest.raises(NotFound):
        await house.service.access.revoke_platform_key(second, "nobody")


async def test_a_key_of_the_platform_holds_no_more_than_its_maker(house: House) -> None:
    """And no role or action of a tenant, which would mean nothing there."""
    made = await house.service.access.create_platform_key(
        house.admin, "maker", Grant(actions=("create_platform_key", "metrics"))
    )
    maker = house.call(made.token)
    await house.service.access.create_platform_key(maker, "fine", Grant(actions=("metrics",)))
    for grant in (Grant(role="platform-admin"), Grant(actions=("list_tenants",))):
        with pytest.raises(Forbidden):
            await house.service.access.create_platform_key(maker, "more", grant)
    for grant in (Grant(role="viewer"), Grant(actions=("add",))):
        with pytest.raises(Invalid):
            await house.service.access.create_platform_key(house.admin, "odd", grant)
