"""What can be done from the console, and what it asks before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.console.conftest import NARROW

if TYPE_CHECKING:
    from tenantq.client import Tenant
    from tenantq.testing import FakeServer
    from tests.contract.console.conftest import OpenConsole


@pytest.fixture
def acme(server: FakeServer) -> Tenant:
    """Make a tenant with three messages and two dead letters."""
    tenant = server.client().tenant("acme")
    tenant.configure(weight=1, quotas={"backlog": None})
    tenant.resume()
    queue = tenant.queue("mail")
    queue.configure(max_attempts=1)
    queue.resume()
    for place in (queue, tenant.queue("mail-dlq")):
        place.configure()
        place.purge(confirm=place.name, reason="for the next test")
    queue.add_many(["bad", "bad"])
    for message in queue.poll(2):
        message.nack(reason="it does not parse")
    queue.add_many(["one", "two", "three"])
    return tenant


async def test_a_queue_is_paused_and_delivers_again(acme: Tenant, console: OpenConsole) -> None:
    """With the same key."""
    async with console(shown="acme") as hands:
        await hands.press("tab", "p")
        await hands.until(lambda: acme.queue("mail").stats().status == "paused")
        await hands.until(lambda: hands.column("#queues LiveTable", "state")[0] == "paused")
        await hands.press("p")
        await hands.until(lambda: acme.queue("mail").stats().status == "active")


async def test_dead_letters_are_counted_before_they_go_back(acme: Tenant, console: OpenConsole) -> None:
    """No leaves them; yes sends them. Reason and history are shown before."""
    async with console(shown="acme", size=NARROW) as hands:
        await hands.press("tab", "enter", "right")
        await hands.until(lambda: "it does not parse" in hands.text())
        await hands.press("enter")
        await hands.until(lambda: "Trace" in hands.text())
        assert "attempt 1" in hands.text()
        await hands.press("escape", "d")
        await hands.until(lambda: "2 dead letters would go back" in hands.text())
        await hands.press("n")
        assert acme.queue("mail").stats().dead == 2
        await hands.press("d")
        await hands.until(lambda: "2 dead letters would go back" in hands.text())
        await hands.press("y")
        await hands.until(lambda: "sent back 2 dead letters" in hands.said())
        assert (acme.queue("mail").stats().dead, acme.queue("mail").stats().ready) == (0, 5)
        await hands.until(lambda: "no dead letters" in hands.text())


async def test_a_purge_wants_the_name_and_a_reason(acme: Tenant, console: OpenConsole) -> None:
    """As on the command line; what is refused changes nothing, and the reason is in the audit trail."""
    async with console(shown="acme") as hands:
        await hands.press("tab", "x")
        await hands.until(lambda: "This deletes 3 messages of queue mail" in hands.text())
        await hands.type("mall")
        await hands.press("ctrl+s")
        assert "that is not its name" in hands.text()
        await hands.press("backspace", "backspace")
        await hands.type("il")
        await hands.press("enter")
        await hands.type("too short")
        await hands.press("enter")
        assert "say why in 10 characters or more" in hands.text()
        assert acme.queue("mail").stats().ready == 3
        await hands.type(" no more")
        await hands.press("enter")
        await hands.until(lambda: "purged 3 messages of mail" in hands.said())
        assert acme.queue("mail").stats().ready == 0
        (row,) = acme.audit(action="purge", order="newest", limit=1).rows
        assert "too short no more" in row["details"]


async def test_quotas_are_edited_and_only_changes_are_sent(acme: Tenant, console: OpenConsole) -> None:
    """What is wrong is said in the form; the new figures are shown at once."""
    async with console(shown="acme", size=NARROW) as hands:
        hands.app.choose("acme")
        await hands.press("T", "e")
        await hands.until(lambda: "Settings of acme" in hands.text())
        await hands.press("enter", "enter", "enter")
        await hands.type("many")
        await hands.press("ctrl+s")
        assert "backlog: 'many' is not a number" in hands.text()
        await hands.press("ctrl+u")
        await hands.type("10")
        await hands.press("ctrl+s")
        await hands.until(lambda: "changed acme: quotas.backlog" in hands.said())
        config = acme.get().config
        assert (config["quotas"]["backlog"], config["weight"]) == (10, 1)
        await hands.until(lambda: "50%" in hands.text())
        (row,) = acme.audit(action="configure_tenant", order="newest", limit=1).rows
        assert "backlog" in row["details"]
        assert "weight" not in row["details"]


async def test_a_tenant_is_suspended_and_works_again(acme: Tenant, console: OpenConsole) -> None:
    """The reason goes into the journal."""
    async with console(shown="acme") as hands:
        hands.app.choose("acme")
        await hands.press("u")
        await hands.until(lambda: "Suspend acme" in hands.text())
        await hands.type("unpaid")
        await hands.press("enter")
        await hands.until(lambda: acme.get().status == "suspended")
        await hands.until(lambda: "1 suspended" in hands.text())
        await hands.press("u")
        await hands.until(lambda: "Resume acme" in hands.text())
        await hands.press("y")
        await hands.until(lambda: acme.get().status == "active")


async def test_a_tenant_is_made_and_shown(server: FakeServer, console: OpenConsole) -> None:
    """A name that cannot be is refused in the form, one that is taken by a notice."""
    async with console() as hands:
        await hands.press("ctrl+t")
        await hands.until(lambda: "New tenant" in hands.text())
        await hands.type("N")
        await hands.press("ctrl+s")
        assert "tenant" in str(hands.app.screen.query_one("#refusal").render())
        await hands.press("ctrl+u")
        await hands.type("newcomer")
        await hands.press("ctrl+s")
        await hands.until(lambda: hands.app.desk.tenant == "newcomer")
        await hands.press("ctrl+t")
        await hands.type("newcomer")
        await hands.press("ctrl+s")
        await hands.until(lambda: any("there is a tenant newcomer already" in text for text in hands.said()))
    server.client().tenant("newcomer").delete(confirm="newcomer", reason="it was only a test")


async def test_keys_and_grants_are_found_and_revoked(server: FakeServer, acme: Tenant, console: OpenConsole) -> None:
    """Also from the list of what one principal may do in all tenants."""
    other = server.client().tenant("other")
    other.configure()
    made = acme.create_key("contractor", role="viewer")
    principal = f"key:{made.key_id}"
    other.grant(principal, role="operator")
    async with console(shown="acme", size=(160, 24)) as hands:
        await hands.press("shift+tab", "k")
        await hands.until(lambda: "contractor" in hands.column("#keys", "name"))
        hands.app.screen.query_one("#keys").point_at(made.key_id)  # type: ignore[attr-defined]  # a LiveTable
        await hands.press("w")
        await hands.until(lambda: "2 in " in hands.text())
        assert "What contractor" in hands.text()
        await hands.press("down", "v")
        await hands.until(lambda: f"What {principal} was granted in other" in hands.text())
        await hands.press("y")
        await hands.until(lambda: other.grants() == [])
        await hands.until(lambda: "1 in " in hands.text())
        await hands.press("escape", "v", "y")
        await hands.until(lambda: hands.column("#keys", "state") == ["revoked"])
        await hands.press("a", "c")
        await hands.until(lambda: "revoke_key" in hands.column("#audit", "what"))


async def test_the_trail_is_filtered_and_read_on(server: FakeServer, acme: Tenant, console: OpenConsole) -> None:
    """By result, by principal, for the whole platform; older pages on demand."""
    acme.queue("mail").add_many([f"{n}" for n in range(3)])
    for n in range(120):
        acme.queue("mail").add(f"{n}")
    stranger = server.client("stranger", role="viewer")
    with pytest.raises(Exception, match="grant"):
        stranger.tenant("acme").get()
    async with console(shown="acme", size=(160, 24)) as hands:
        await hands.press("shift+tab")
        await hands.until(lambda: "denied" in hands.text())
        await hands.press("c", "c", "c")
        await hands.until(lambda: len(hands.app.desk.audit_rows()) == 100)
        await hands.press("m")
        await hands.until(lambda: len(hands.app.desk.audit_rows()) > 100)
        assert "stands still" in hands.text()
        await hands.press("f")
        await hands.until(lambda: "Audit trail" in hands.text())
        await hands.type("nonsense")
        await hands.press("ctrl+s")
        assert "one of SUCCESS, DENIED, ERROR" in hands.text()
        await hands.press("ctrl+u")
        await hands.type("denied")
        await hands.press("enter")
        await hands.type("2h")
        await hands.press("ctrl+s")
        await hands.until(lambda: "DENIED, last 2 h" in hands.text() and hands.app.desk.security is not None)
        await hands.until(lambda: {row["outcome"] for row in hands.app.desk.audit_rows()} <= {"denied", "throttled"})
        await hands.press("o")
        await hands.until(lambda: "Security of the platform" in hands.text())
