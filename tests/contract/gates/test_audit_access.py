"""Who sees what of the audit trail, and the platform's own keys."""

from __future__ import annotations

import pytest

from tenantq.domain.access import Grant
from tenantq.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from tenantq.service.audit_trail import AuditQuery
from tests.contract.gates.harness import REASON, ServiceHarness


async def busy(harness: ServiceHarness) -> None:
    """Create two tenants with work in several queues."""
    for name in ("acme", "globex"):
        await harness.tenant(name)
        owner = await harness.key(name)
        for queue in ("mail-in", "mail-out", "orders"):
            await harness.add(owner, queue, "a", "b")


async def test_auditor_of_some_queues_sees_only_their_rows(harness: ServiceHarness) -> None:
    """Rows of other queues and of the tenant itself stay hidden, whatever is queried."""
    await busy(harness)
    everything = await harness.key("acme", "auditor")
    narrow = await harness.key("acme", "auditor", queues=("mail-*",))
    whole, _ = await harness.service.audit.query(everything, None, AuditQuery(limit=1_000))
    assert {row.queue for row in whole} == {"", "mail-in", "mail-out", "orders"}
    for order in ("oldest", "newest"):
        seen, _ = await harness.service.audit.query(narrow, None, AuditQuery(limit=1_000, order=order))
        assert {row.queue for row in seen} == {"mail-in", "mail-out"}
        assert len(seen) == len([row for row in whole if row.queue.startswith("mail-")])
    hidden = next(row.message_id for row in whole if row.queue == "orders" and row.message_id)
    for wanted in ({"queue": "orders"}, {"action": "create_key"}, {"message": hidden}):
        assert list(await harness.service.audit.query(narrow, None, AuditQuery(**wanted))) == [[], None]


async def test_patterns_of_several_grants_add_up(harness: ServiceHarness) -> None:
    """A stored grant counts in addition to the key's own."""
    await busy(harness)
    narrow, key_id = await harness.key_and_id("acme", "auditor", queues=("mail-in",))
    await harness.service.access.put_grant(
        harness.admin, "acme", f"key:{key_id}", Grant(actions=("audit",), queues=("ord*",))
    )
    seen, _ = await harness.service.audit.query(narrow, None, AuditQuery(limit=1_000))
    assert {row.queue for row in seen} == {"mail-in", "orders"}
    await harness.service.access.put_grant(harness.admin, "acme", f"key:{key_id}", Grant(role="auditor"))
    seen, _ = await harness.service.audit.query(narrow, None, AuditQuery(limit=1_000))
    assert {row.queue for row in seen} == {"", "mail-in", "mail-out", "orders"}


async def test_query_by_several_actions_and_in_both_orders(harness: ServiceHarness) -> None:
    """Actions are separated by commas."""
    await busy(harness)
    owner = await harness.key("acme")
    action = "add,create_queue"
    up, _ = await harness.service.audit.query(owner, None, AuditQuery(action=action, limit=1_000))
    assert {row.op for row in up} == {"add", "create_queue"}
    down, _ = await harness.service.audit.query(owner, None, AuditQuery(action=action, order="newest", limit=1_000))
    assert down == up[::-1]
    page = await harness.service.audit.query(owner, None, AuditQuery(order="newest", limit=2))
    with pytest.raises(Invalid, match="other order"):
        await harness.service.audit.query(owner, None, AuditQuery(limit=2, cursor=page.cursor))


async def test_platform_audit_shows_all_tenants_and_the_platform(harness: ServiceHarness) -> None:
    """It includes deleted tenants, and only platform administrators may read it."""
    await busy(harness)
    await harness.service.erasures.delete_tenant(harness.admin, "globex", confirm="globex", reason=REASON)
    rows, _ = await harness.service.audit.query_platform(harness.admin, AuditQuery(limit=1_000))
    assert {row.tenant for row in rows} >= {"", "acme", "globex", "default"}
    gone, _ = await harness.service.audit.query_platform(harness.admin, AuditQuery(tenant="globex", limit=1_000))
    assert {row.tenant for row in gone} == {"globex"}
    assert gone[-1].op == "delete_tenant"
    assert REASON in gone[-1].details
    for role in ("tenant-admin", "auditor"):
        with pytest.raises(Forbidden):
            await harness.service.audit.query_platform(await harness.key("acme", role))


async def test_tenant_does_not_see_rows_of_its_predecessor(harness: ServiceHarness) -> None:
    """A deleted tenant of the same name is another tenant."""
    await busy(harness)
    await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON)
    await harness.tenant("acme")
    for order in ("oldest", "newest"):
        rows, _ = await harness.service.audit.query(
            await harness.key("acme"), None, AuditQuery(order=order, limit=1_000)
        )
        assert {row.op for row in rows} - {"audit"} == {"create_tenant", "create_key"}


# ---- the platform's keys ----


async def test_platform_key_is_created_listed_and_revoked(harness: ServiceHarness) -> None:
    """It allows what it names until revoked; each step is journaled without the secret."""
    made = await harness.service.access.create_platform_key(harness.admin, "prometheus", Grant(actions=("metrics",)))
    scraper = harness.call(made.token)
    assert b"tenantq_tenants" in await harness.service.status.metrics(scraper)
    for act in (harness.service.tenants.list(scraper), harness.service.access.list_platform_keys(scraper)):
        with pytest.raises(Forbidden):
            await act
    listed = {key.key_id: key for key in await harness.service.access.list_platform_keys(harness.admin)}
    assert listed[made.key_id].actions == ("metrics",)
    assert listed[made.key_id].name == "prometheus"
    await harness.service.access.revoke_platform_key(harness.admin, made.key_id)
    with pytest.raises(Unauthenticated):
        await harness.service.status.metrics(scraper)
    listed = {key.key_id: key for key in await harness.service.access.list_platform_keys(harness.admin)}
    assert listed[made.key_id].revoked_at == harness.clock.wall_ms()
    rows = [row for row in await harness.rows() if made.key_id in row.details]
    assert [(row.op, row.tenant) for row in rows] == [("create_key", ""), ("revoke_key", "")]
    assert made.secret not in repr(rows)


async def test_last_platform_administrator_cannot_be_revoked(harness: ServiceHarness) -> None:
    """With a second one, either can revoke the other."""
    (first,) = await harness.service.access.list_platform_keys(harness.admin)
    with pytest.raises(Conflict, match="Create another one first"):
        await harness.service.access.revoke_platform_key(harness.admin, first.key_id)
    made = await harness.service.access.create_platform_key(harness.admin, "second", Grant(role="platform-admin"))
    second = harness.call(made.token)
    await harness.service.access.revoke_platform_key(second, first.key_id)
    with pytest.raises(Unauthenticated):
        await harness.service.access.list_platform_keys(harness.admin)
    with pytest.raises(Conflict):
        await harness.service.access.revoke_platform_key(second, made.key_id)
    with pytest.raises(NotFound):
        await harness.service.access.revoke_platform_key(second, "nobody")


async def test_platform_key_allows_no_more_than_its_creator(harness: ServiceHarness) -> None:
    """Roles and actions of a tenant are refused, because they mean nothing there."""
    made = await harness.service.access.create_platform_key(
        harness.admin, "maker", Grant(actions=("create_platform_key", "metrics"))
    )
    maker = harness.call(made.token)
    await harness.service.access.create_platform_key(maker, "fine", Grant(actions=("metrics",)))
    for grant in (Grant(role="platform-admin"), Grant(actions=("list_tenants",))):
        with pytest.raises(Forbidden):
            await harness.service.access.create_platform_key(maker, "more", grant)
    for grant in (Grant(role="viewer"), Grant(actions=("add",))):
        with pytest.raises(Invalid):
            await harness.service.access.create_platform_key(harness.admin, "odd", grant)
