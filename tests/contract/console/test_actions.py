"""Actions of the console, and the confirmations they ask for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from textual.widgets import Input

from tenantq.console.report_screen import ReportScreen
from tests.contract.console.conftest import NARROW

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.client import Tenant
    from tenantq.testing import FakeServer
    from tests.contract.console.conftest import OpenConsole


@pytest.fixture
def acme(server: FakeServer) -> Tenant:
    """Create a tenant with three messages and two dead letters."""
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


async def test_queue_is_paused_and_resumed(acme: Tenant, console: OpenConsole) -> None:
    """The same key does both."""
    async with console(shown="acme") as user:
        await user.press("tab", "p")
        await user.until(lambda: acme.queue("mail").stats().status == "paused")
        await user.until(lambda: user.column("#queues LiveTable", "state")[0] == "paused")
        await user.press("p")
        await user.until(lambda: acme.queue("mail").stats().status == "active")


async def test_dead_letters_are_counted_before_a_redrive(acme: Tenant, console: OpenConsole) -> None:
    """No keeps them, yes redrives them. Reason and history are shown first."""
    async with console(shown="acme", size=NARROW) as user:
        await user.press("tab", "enter", "right")
        await user.until(lambda: "it does not parse" in user.text())
        await user.press("enter")
        await user.until(lambda: "Trace" in user.text())
        assert "attempt 1" in user.text()
        await user.press("escape", "d")
        await user.until(lambda: "Moves 2 dead letters back" in user.text())
        await user.press("n")
        assert acme.queue("mail").stats().dead == 2
        await user.press("d")
        await user.until(lambda: "Moves 2 dead letters back" in user.text())
        await user.press("y")
        await user.until(lambda: "moved 2 dead letters" in user.said())
        assert (acme.queue("mail").stats().dead, acme.queue("mail").stats().ready) == (0, 5)
        await user.until(lambda: "no dead letters" in user.text())


async def test_purge_needs_the_name_and_a_reason(acme: Tenant, console: OpenConsole) -> None:
    """Refused input changes nothing, and the reason is in the audit trail."""
    async with console(shown="acme") as user:
        await user.press("tab", "x")
        await user.until(lambda: "This deletes 3 messages of queue mail" in user.text())
        await user.type("mall")
        await user.press("ctrl+s")
        assert "the name does not match" in user.text()
        await user.press("backspace", "backspace")
        await user.type("il")
        await user.press("enter")
        await user.type("too short")
        await user.press("enter")
        assert "must have at least 10 characters" in user.text()
        assert acme.queue("mail").stats().ready == 3
        await user.type(" no more")
        await user.press("enter")
        await user.until(lambda: "purged 3 messages of mail" in user.said())
        assert acme.queue("mail").stats().ready == 0
        (row,) = acme.audit(action="purge", order="newest", limit=1).rows
        assert "too short no more" in row["details"]


async def test_quotas_are_edited_and_only_changes_are_sent(acme: Tenant, console: OpenConsole) -> None:
    """The form shows errors, and the new figures appear at once."""
    async with console(shown="acme", size=NARROW) as user:
        user.app.choose("acme")
        await user.press("T", "e")
        await user.until(lambda: "Settings of acme" in user.text())
        await user.press("enter", "enter", "enter")
        await user.type("many")
        await user.press("ctrl+s")
        assert "backlog: 'many' is not a number" in user.text()
        await user.press("ctrl+u")
        await user.type("10")
        await user.press("ctrl+s")
        assert "reason: must not be empty" in user.text()
        user.app.screen.query(Input).last().focus()
        await user.pilot.pause()
        await user.type("a smaller plan")
        await user.press("ctrl+s")
        await user.until(lambda: "changed acme: quotas.backlog" in user.said())
        config = acme.get().config
        assert (config["quotas"]["backlog"], config["weight"]) == (10, 1)
        await user.until(lambda: "50%" in user.text())
        (row,) = acme.audit(action="configure_tenant", order="newest", limit=1).rows
        assert row["details"].endswith('{"quotas":{"backlog":10},"reason":"a smaller plan"}')


async def test_message_is_found_by_id_and_deleted(acme: Tenant, console: OpenConsole) -> None:
    """It is in the queue or among its dead letters; an unknown ID is reported."""
    queue = acme.queue("mail")
    first, letter = queue.peek(1).messages[0].id, acme.queue("mail-dlq").peek(1).messages[0].id
    async with console(shown="acme", size=NARROW) as user:
        await user.press("tab", "enter")
        await user.until(lambda: first[-12:] in user.text())
        for id in ("nonsense", first):
            await user.press("i")
            await user.until(lambda: "Find a message of mail" in user.text())
            await user.type(id)
            await user.press("ctrl+s")
            if id == "nonsense":
                assert "must be a UUID" in user.text()
                await user.press("escape")
        await user.until(lambda: "Trace" in user.text() and first in user.text())
        await user.press("x")
        await user.until(lambda: f"Deletes {first}" in user.text())
        await user.press("y")
        await user.until(lambda: f"deleted {first}" in user.said())
        assert queue.stats().ready == 2
        for id in (first, letter):
            await user.until(lambda: "Messages, page 1" in user.text())
            await user.press("i")
            await user.type(id)
            await user.press("ctrl+s")
            if id == first:
                await user.until(lambda: any("no such message" in text for text in user.said()))
        await user.until(lambda: "it does not parse" in user.text())
        await user.press("d")
        await user.until(lambda: "Moves 1 dead letters back" in user.text())
        await user.press("y")
        await user.until(lambda: queue.stats().dead == 1)


async def test_workers_are_shown_by_queue(acme: Tenant, console: OpenConsole) -> None:
    """The queue list shows their number, and the queue shows each of them."""
    async with console(shown="acme", size=(160, 45)) as user:
        await user.press("tab")
        await user.until(lambda: user.column("#queues LiveTable", "workers")[:1] == ["1"])
        await user.press("enter", "right", "right")
        await user.until(lambda: len(user.column("#workers-table", "worker")) == 1)
        assert user.column("#workers-table", "principal")[0].startswith("key:")


async def test_tenant_is_suspended_and_resumed(acme: Tenant, console: OpenConsole) -> None:
    """The reason is journaled."""
    async with console(shown="acme") as user:
        user.app.choose("acme")
        await user.press("u")
        await user.until(lambda: "Suspend acme" in user.text())
        await user.type("unpaid")
        await user.press("enter")
        await user.until(lambda: acme.get().status == "suspended")
        await user.until(lambda: "1 suspended" in user.text())
        await user.press("u")
        await user.until(lambda: "Resume acme" in user.text())
        await user.press("y")
        await user.until(lambda: acme.get().status == "active")


async def test_tenant_is_created_and_shown(server: FakeServer, console: OpenConsole) -> None:
    """The form refuses an invalid name, and a notice reports a duplicate."""
    async with console() as user:
        await user.press("ctrl+t")
        await user.until(lambda: "New tenant" in user.text())
        await user.type("N")
        await user.press("ctrl+s")
        assert "tenant" in str(user.app.screen.query_one("#refusal").render())
        await user.press("ctrl+u")
        await user.type("newcomer")
        await user.press("ctrl+s")
        await user.until(lambda: user.app.state.tenant == "newcomer")
        [created] = server.client().tenant("newcomer").audit(action=["create_tenant"]).rows
        assert list(json.loads(created["details"])) == ["plan"]  # empty fields leave the plan's values alone
        await user.press("ctrl+t")
        await user.type("newcomer")
        await user.press("ctrl+s")
        await user.until(lambda: any("tenant newcomer already exists" in text for text in user.said()))
    server.client().tenant("newcomer").delete(confirm="newcomer", reason="it was only a test")


async def test_keys_and_grants_are_found_and_revoked(server: FakeServer, acme: Tenant, console: OpenConsole) -> None:
    """This also works from the list of one principal's rights in all tenants."""
    other = server.client().tenant("other")
    other.configure()
    made = acme.create_key("contractor", role="viewer")
    principal = f"key:{made.key_id}"
    other.grant(principal, role="operator")
    async with console(shown="acme", size=(160, 24)) as user:
        await user.press("shift+tab", "k")
        await user.until(lambda: "contractor" in user.column("#keys", "name"))
        user.app.screen.query_one("#keys").point_at(made.key_id)  # type: ignore[attr-defined]  # a LiveTable
        await user.press("w")
        await user.until(lambda: "2 rights in " in user.text())
        assert "Rights of contractor" in user.text()
        await user.press("down", "v")
        await user.until(lambda: f"{principal} loses its grant in other" in user.text())
        await user.press("y")
        await user.until(lambda: other.grants() == [])
        await user.until(lambda: "1 right in " in user.text())
        await user.press("escape", "v", "y")
        await user.until(lambda: user.column("#keys", "state") == ["revoked"])
        await user.press("a", "c")
        await user.until(lambda: "revoke_key" in user.column("#audit", "action"))


async def test_compliance_controls_are_shown_with_their_failures(acme: Tenant, console: OpenConsole) -> None:
    """The head of the panel counts failures in every view; the details of a control say what failed."""
    acme.configure(encryption={"enabled": False})
    acme.create_key("fresh", role="viewer")
    async with console(shown="acme", size=(160, 45)) as user:
        await user.until(lambda: "l compliance ■ 1 failed" in user.text())
        await user.press("shift+tab", "l")
        rows = user.rows("#controls")
        assert (rows[0]["status"], rows[0]["control"], rows[0]["failed"]) == (
            "■ fail",
            "Messages are encrypted at rest",
            "1",
        )
        assert {row["status"] for row in rows[1:]} == {"● pass", "does not apply"}
        assert "encryption: messages are stored as plaintext" in user.text()
        await user.press("v", "w", "enter")
        assert "select a key (k) or a grant (g) to revoke" in user.said()
    async with console("acme", role="viewer", size=(160, 45)) as user:
        await user.press("shift+tab", "l")
        assert "not granted" in user.text()
        assert "failed" not in user.text()


async def test_audit_trail_is_filtered_and_paged(server: FakeServer, acme: Tenant, console: OpenConsole) -> None:
    """Filters are result and principal, also for the whole platform; older pages load on demand."""
    acme.queue("mail").add_many([f"{n}" for n in range(3)])
    for n in range(120):
        acme.queue("mail").add(f"{n}")
    stranger = server.client("stranger", role="viewer")
    with pytest.raises(Exception, match="grant"):
        stranger.tenant("acme").get()
    async with console(shown="acme", size=(160, 24)) as user:
        await user.press("shift+tab")
        await user.until(lambda: "denied" in user.text())
        await user.press("c", "c", "c")
        await user.until(lambda: len(user.app.state.audit_rows()) == 100)
        await user.press("m")
        await user.until(lambda: len(user.app.state.audit_rows()) > 100)
        assert "not refreshed" in user.text()
        await user.press("f")
        await user.until(lambda: "Audit trail" in user.text())
        await user.type("nonsense")
        await user.press("ctrl+s")
        assert "must be SUCCESS, DENIED, ERROR or empty" in user.text()
        await user.press("ctrl+u")
        await user.type("denied")
        await user.press("enter")
        await user.type("2h")
        await user.press("ctrl+s")
        await user.until(lambda: "DENIED, last 2 h" in user.text() and user.app.state.security is not None)
        await user.until(lambda: {row["outcome"] for row in user.app.state.audit_rows()} <= {"denied", "throttled"})
        await user.press("o")
        await user.until(lambda: "Security of the platform" in user.text())


async def test_compliance_is_reported_for_a_tenant_and_the_platform(
    acme: Tenant, console: OpenConsole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows controls and failed evidence; a role without the right gets a message."""
    monkeypatch.chdir(tmp_path)
    acme.grant("jwt:eve", role="viewer")
    async with console(shown="acme", size=(120, 60)) as user:
        await user.press("y")
        await user.until(lambda: "Compliance of acme" in user.text() and "fail" in user.text())
        await user.press("s")
        await user.until((tmp_path / "compliance-acme.md").exists)
        await user.until(lambda: any(text.startswith("saved ") for text in user.said()))
        report = (tmp_path / "compliance-acme.md").read_text()
        assert "- ■ fail: **Messages are encrypted at rest**" in report
        assert "| jwt:eve | viewer |" in report
        await user.press("escape", "tab", "tab", "o")
        await user.until(lambda: "Security of the platform" in user.text())
        await user.press("y")
        await user.until(lambda: "Compliance of the platform" in user.text())
    async with console("acme", role="producer") as user:
        await user.press("y")
        await user.until(lambda: bool(user.said()))
        await user.until(lambda: not isinstance(user.app.screen, ReportScreen))
