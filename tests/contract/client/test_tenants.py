"""Tenants, keys, grants, limits and fleets through the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.client import NO_RETRIES, Client
from tenantq.errors import Forbidden, Invalid, NotFound, QuotaExceeded, RateLimited, Unauthenticated

if TYPE_CHECKING:
    from tests.contract.client.conftest import ServerUnderTest


def test_tenant_is_created_changed_suspended_and_deleted(client: Client) -> None:
    """The platform administrator does it."""
    acme = client.tenant("acme")
    assert acme.configure(weight=3).config["weight"] == 3
    assert acme.get().name == "acme"
    assert {tenant.name for tenant in client.tenants()} == {"default", "acme"}
    assert acme.suspend("unpaid bills").status == "suspended"
    with pytest.raises(Forbidden):
        acme.queue("mail").add("x")
    assert acme.resume().status == "active"
    acme.queue("mail").add("x")
    assert [queue.name for queue in acme.queues()] == ["mail"]
    acme.delete(confirm="acme", reason="it was only a test")
    with pytest.raises((NotFound, Forbidden)):
        acme.get()


def test_reason_of_a_change_is_in_the_audit_trail(client: Client) -> None:
    """It is not a setting. A reason that is too long or not a text changes nothing."""
    acme = client.tenant("acme")
    assert "reason" not in acme.configure(weight=2, reason="their first customer").config
    assert "reason" not in acme.configure(weight=3, reason="they grow").config
    for wrong in ("x" * 100_000, 5, None):
        with pytest.raises(Invalid, match="reason"):
            acme.configure(weight=4, reason=wrong)
    assert acme.get().config["weight"] == 3
    rows = acme.audit(action="create_tenant,configure_tenant", result="SUCCESS").rows
    assert ["their first customer" in rows[0]["details"], "they grow" in rows[-1]["details"]] == [True, True]


def test_key_allows_only_what_its_role_allows(server: ServerUnderTest, client: Client) -> None:
    """A producer adds and cannot poll; a viewer sees no bodies."""
    acme = client.tenant("acme")
    with Client(settings=server.settings("acme", role="producer", retries=NO_RETRIES)) as producer:
        added = producer.queue("mail").add("secret")
        with pytest.raises(Forbidden):
            producer.queue("mail").poll()
        with pytest.raises((Forbidden, NotFound)):
            producer.tenant("default").queue("mail").add("x")
    with Client(settings=server.settings("acme", role="viewer")) as viewer:
        seen = viewer.queue("mail").get(added.id)
        assert (seen.hidden, seen.body, seen.size) == (True, b"", 6)
        assert [queue.name for queue in viewer.queues()] == ["mail"]
    keys = acme.keys()
    assert {key.role for key in keys} == {"producer", "viewer"}
    acme.revoke_key(keys[0].key_id)
    now = acme.keys()
    assert [key.revoked_at is not None for key in now if key.key_id == keys[0].key_id] == [True]


def test_invalid_token_is_unauthenticated(server: ServerUnderTest) -> None:
    """The error does not show it."""
    with Client(settings=server.settings(token="tq_wrong_token")) as client:  # noqa: S106  # not a real token
        with pytest.raises(Unauthenticated) as caught:
            client.queue("mail").add("x")
        assert "tq_wrong_token" not in str(caught.value)


def test_grant_gives_a_principal_access_to_another_tenant(server: ServerUnderTest, client: Client) -> None:
    """The access ends when the grant is deleted."""
    client.tenant("fleet").configure()
    created = client.tenant("fleet").create_key("worker", role="consumer")
    acme = client.tenant("acme")
    acme.configure()
    acme.queue("mail").add("x")
    acme.grant(f"key:{created.key_id}", role="consumer", queues=["mail"])
    assert [grant.principal for grant in acme.grants()] == [f"key:{created.key_id}"]
    with Client(settings=server.settings(token=created.token)) as worker:
        (message,) = worker.tenant("acme").queue("mail").poll()
        message.ack()
        acme.revoke_grant(f"key:{created.key_id}")
        assert acme.grants() == []


def test_fleet_serves_many_tenants_in_turns(client: Client) -> None:
    """Messages name their tenant and are settled there."""
    for name in ("acme", "bolt", "core"):
        client.tenant(name).configure()
        client.tenant(name).queue("mail").add_many([f"{name}-{n}" for n in range(3)])
    got = client.fleet("mail", tenants=["acme", "bolt"]).poll(6)
    assert sorted(message.tenant for message in got) == ["acme"] * 3 + ["bolt"] * 3
    for message in got:
        with message:
            assert message.text.startswith(message.tenant)
    assert [client.tenant(name).queue("mail").stats().acked_total for name in ("acme", "bolt", "core")] == [3, 3, 0]
    assert {message.tenant for message in client.fleet("mail").poll(10)} == {"core"}


def test_quota_error_has_its_figures(server: ServerUnderTest, client: Client) -> None:
    """Usage shows the same limit and current value."""
    acme = client.tenant("acme")
    acme.configure(quotas={"backlog": 3})
    queue = acme.queue("mail")
    added = queue.add_many(["a", "b", "c", "d"], errors="return")
    assert [type(one.error) for one in added] == [type(None)] * 3 + [QuotaExceeded]
    with Client(settings=server.settings(retries=NO_RETRIES)) as hasty:
        with pytest.raises(QuotaExceeded) as caught:
            hasty.tenant("acme").queue("mail").add("e")
        assert caught.value.limit == 3
    assert acme.usage().quotas["backlog"].used == 3


def test_client_waits_for_a_rate_limit(server: ServerUnderTest, client: Client) -> None:
    """With retries it waits as long as the limit requires; without, the caller gets the error."""
    acme = client.tenant("acme")
    acme.configure(limits={"write": {"ops_per_sec": 20, "burst": 5}})
    queue = acme.queue("mail")
    assert len(queue.add_many(["x"] * 8)) == 8
    assert queue.stats().ready == 8
    with Client(settings=server.settings(retries=NO_RETRIES)) as hasty:
        added = hasty.tenant("acme").queue("mail").add_many(["x"] * 50, errors="return")
    assert RateLimited in {type(one.error) for one in added}


def test_calls_are_in_the_audit_trail(client: Client) -> None:
    """It can be filtered and read page by page."""
    acme = client.tenant("acme")
    acme.configure()
    acme.queue("mail").add_many(["a", "b", "c"])
    page = acme.audit(action="add", limit=2)
    rows = page.rows + (acme.audit(action="add", cursor=page.cursor).rows if page.cursor else [])
    assert {row["op"] for row in rows} == {"add"}


def test_health_and_metrics(client: Client) -> None:
    """Health is public, metrics are for administrators."""
    assert client.health()["status"] == "ready"
    assert "tenantq_" in client.metrics()


def test_tenant_list_summarizes_each_tenant(server: ServerUnderTest, client: Client) -> None:
    """It has backlog, leases, dead letters, the fullest quota and refused calls, and can be limited."""
    acme = client.tenant("acme")
    acme.configure(quotas={"backlog": 4}, limits={"read": {"ops_per_sec": 2}})
    queue = acme.queue("mail")
    queue.configure(max_attempts=1, dead_letter="graveyard")
    queue.add_many(["a", "b", "c"])
    queue.poll()[0].nack()
    queue.poll()
    hasty = server.settings("acme", role="consumer", retries=NO_RETRIES)
    with Client(settings=hasty) as consumer, pytest.raises(RateLimited):
        _poll_often(consumer)
    assert [tenant.figures for tenant in client.tenants()] == [None, None]
    (figures,) = [tenant.figures for tenant in client.tenants(figures=True) if tenant.name == "acme"]
    assert figures is not None
    assert (figures.backlog, figures.dead, figures.queues) == (3, 1, 1)
    assert figures.in_flight == acme.usage().quotas["in_flight"].used >= 1
    assert (figures.state, figures.stored_bytes) == ("good", 3)
    assert (figures.added_total, figures.acked_total) == (3, 0)
    assert figures.throttled_total == acme.usage().throttled_total >= 1
    queue.add("d")
    assert [tenant.figures.state for tenant in client.tenants(figures=True) if tenant.figures] == ["critical", "good"]
    assert [tenant.name for tenant in client.tenants(limit=1)] == ["acme"]
    assert [one.name for one in acme.queues(limit=1)] == ["graveyard"]


def _poll_often(client: Client) -> None:
    for _ in range(20):
        client.queue("mail").poll()
