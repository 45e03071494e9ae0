"""What the console shows to whom, and how many requests that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from textual.widgets import Tabs

from tenantq.client import AsyncClient
from tenantq.console.app import ConsoleApp
from tenantq.console.panels import Panel
from tenantq.console.reader import REFRESH_REQUESTS_MAX, SECURITY_REQUESTS_MAX
from tenantq.errors import RateLimited, Unauthenticated
from tests.contract.console.conftest import NARROW, NEVER_MS

if TYPE_CHECKING:
    from tenantq.client import Client
    from tenantq.testing import FakeServer
    from tests.contract.console.conftest import ConsoleUser, OpenConsole


@pytest.fixture(scope="module", autouse=True)
def _tenants(server: FakeServer) -> None:
    """Create four tenants: healthy, near its quota, above it and throttled, suspended."""
    admin = server.client()
    for name, messages, settings in (
        ("calm", 1, {"quotas": {"backlog": 100}}),
        ("eager", 8, {"quotas": {"backlog": 10}, "weight": 3}),
        ("full", 5, {"quotas": {"backlog": 5}, "limits": {"read": {"ops_per_sec": 1}}}),
        ("quiet", 0, {}),
    ):
        admin.tenant(name).configure(**settings)
        admin.tenant(name).queue("mail").add_many([f'{{"secret": "of {name}"}}'] * messages)
    hasty = server.client("full", retries=0)
    with pytest.raises(RateLimited):
        _poll_often(hasty)
    admin.tenant("quiet").suspend("nobody is there")


async def test_administrator_sees_the_state_of_every_tenant(console: OpenConsole) -> None:
    """Quota health is shown in words, with backlog and throttled calls, if the terminal is wide enough."""
    async with console(size=(200, 24)) as user:
        rows = {row["tenant"]: row for row in user.rows("#tenants LiveTable")}
        assert list(rows) == ["calm", "default", "eager", "full", "quiet"]
        assert {name: row["quota"] for name, row in rows.items() if name != "default"} == {
            "calm": "● good",
            "eager": "▲ warning",
            "full": "■ critical",
            "quiet": "● good",
        }
        assert (rows["full"]["backlog"], rows["full"]["429s"]) == ("5", "1")
        assert rows["eager"]["weight"] == "3"
        assert "5 tenants, 1 critical, 1 warning, 1 suspended" in user.text()
        await user.press("s", "s")
        assert user.column("#tenants LiveTable", "tenant")[:2] == ["eager", "full"]
        await user.press("slash")
        await user.type("susp")
        assert user.column("#tenants LiveTable", "tenant") == ["quiet"]
        await user.press("escape")
        assert len(user.rows("#tenants LiveTable")) == 5


async def test_large_terminal_shows_rates_age_and_workers_whatever_has_the_focus(console: OpenConsole) -> None:
    """At 160x45 security is below the queues, so that all panels have room for their columns. A short terminal has no such room."""
    wanted = {"queue", "state", "ready", "leased", "workers", "oldest", "added/s", "done/s"}
    async with console(shown="eager", size=(160, 45)) as user:
        for panel in ("tenants", "queues", "security"):
            assert user.app.screen.active == panel  # type: ignore[attr-defined]
            assert wanted <= user.rows("#queues LiveTable")[0].keys(), panel
            assert {"tenant", "status", "quota", "backlog", "dead", "429s"} <= user.rows("#tenants LiveTable")[0].keys()
            regions = {str(one.id): one.region for one in user.app.screen.query(Panel)}
            assert regions["security"].y == regions["queues"].bottom
            assert regions["tenants"].height == regions["queues"].height + regions["security"].height
            if panel == "tenants":
                assert {"added/s", "trend"} <= user.rows("#tenants LiveTable")[0].keys()
            await user.press("tab")
        await user.press("z")
        assert [one.id for one in user.app.screen.query(Panel) if one.display] == ["tenants"]
        assert user.app.screen.query_one("#tenants").region.width == 160
    async with console(shown="eager", size=(160, 24)) as user:
        assert len({one.region.y for one in user.app.screen.query(Panel)}) == 1


async def test_tenant_is_selected_by_digit_list_and_row(console: OpenConsole) -> None:
    """Its queues, quotas and audit trail are shown from then on."""
    async with console() as user:
        await user.press("4")
        await user.until(lambda: user.app.state.tenant == "full")
        assert user.column("#queues LiveTable", "queue") == ["mail"]
        assert "100% backlog" in user.text()
        await user.until(lambda: user.app.state.security is not None)
        assert "poll" in user.column("#audit", "action")
        await user.press("t")
        await user.type("eag")
        await user.press("enter")
        await user.until(lambda: user.app.state.tenant == "eager")
        assert "Queues of eager" in user.text()
        await user.press("up", "up", "enter")
        await user.until(lambda: user.app.state.tenant == "calm")


async def test_help_lists_the_keys_of_every_panel(console: OpenConsole) -> None:
    """The texts come from the bindings, so that none is missing."""
    async with console(size=(120, 100)) as user:
        await user.press("question_mark")
        shown = user.text()
        for key, text in (
            ("T", "manage the tenant: settings, quotas"),
            ("1 … 9, Ctrl+1 … 9", "show the tenant of this number"),
            ("/", "filter the panel while you type"),
            ("Ctrl+T", "create a tenant"),
            ("S", "reverse the order"),
            ("Enter", "open: messages, dead letters, settings"),
            ("d", "redrive dead letters: counts them, then asks"),
            ("n", "next page of the queue"),
            ("v", "revoke the key or grant"),
            ("Ctrl+C", "quit"),
        ):
            assert f"  {key:18} {text}" in shown, key


async def test_narrow_terminal_has_tabs_and_a_wide_one_three_panels(console: OpenConsole) -> None:
    """The same keys lead to the same places."""

    def seen(user: ConsoleUser) -> list[str]:
        return [str(panel.id) for panel in user.app.screen.query(Panel) if panel.region.width]

    async with console() as user:
        assert seen(user) == ["tenants", "queues", "security"]
        await user.press("z")
        assert seen(user) == ["tenants"]
        await user.press("z")
        await user.pilot.resize_terminal(*NARROW)
        await user.until(lambda: len(seen(user)) == 1)
        assert user.app.screen.query_one(Tabs).region.height
        await user.press("tab")
        assert seen(user) == ["queues"]
        await user.press("shift+tab", "shift+tab")
        assert seen(user) == ["security"]
        assert all(len(line) <= NARROW[0] for line in user.text().splitlines())


async def test_42_viewer_sees_no_bodies_and_what_is_not_granted(server: FakeServer, console: OpenConsole) -> None:
    """The server decides. Refused calls are not repeated, because they would fill the audit trail."""
    async with console("eager", role="viewer") as user:
        await user.until(lambda: user.app.state.security is not None)
        assert user.column("#tenants LiveTable", "tenant") == ["eager"]
        assert "not granted" in user.text()
        await user.press("tab", "enter")
        await user.until(lambda: "(hidden)" in user.text())
        assert "secret" not in user.text()
        await user.press("enter")
        await user.until(lambda: "this role cannot read bodies" in user.text())
        assert "secret" not in user.text()
        await user.press("escape", "escape", "p")
        await user.until(lambda: any("forbidden" in text for text in user.said()))
        refused = _refused(server)
        for _ in range(6):
            await user.refresh()
        assert _refused(server) == refused
        await user.press("r")
        await user.until(lambda: _refused(server) > refused)


async def test_42_rate_limit_applies_to_the_console(console: OpenConsole) -> None:
    """A one-line notice appears, and the screen keeps its content."""
    async with console(shown="full") as user:
        await user.press("tab", "enter")
        for _ in range(3):
            await user.press("r")
        await user.until(lambda: any("rate_limited" in text and "\n" not in text for text in user.said()))
        assert "full / mail" in user.text()


async def test_producer_sees_that_nothing_is_granted(console: OpenConsole) -> None:
    """Even its tenant's name is hidden, and nothing breaks."""
    async with console("eager", role="producer") as user:
        assert user.text().count("not granted") >= 3
        await user.press("T", "e", "u", "tab", "p", "enter", "tab", "v", "enter", "o")
        assert "(own tenant)" in user.text()


async def test_granted_tenant_is_opened_by_name(server: FakeServer, console: OpenConsole) -> None:
    """A tenant without a grant shows an error and is not kept in the list."""
    key = server.client().tenant("calm").create_key("fleet", role="viewer")
    server.client().tenant("eager").grant(f"key:{key.key_id}", role="viewer")
    async with console(token=key.token) as user:
        for name, listed in (
            ("eager", ["calm", "eager"]),
            ("full", ["calm", "eager", "full"]),
            ("calm", ["calm", "eager"]),
        ):
            await user.press("t")
            await user.type(name)
            await user.press("enter")
            await user.until(lambda name=name: user.app.state.tenant == name and not user.app._busy)  # type: ignore[misc]  # bound now
            assert user.column("#tenants LiveTable", "tenant") == listed
            assert user.column("#queues LiveTable", "queue") == ([] if name == "full" else ["mail"])


async def test_refresh_takes_few_requests_for_any_number_of_tenants(server: FakeServer, console: OpenConsole) -> None:
    """It reads one list and makes three calls about the selected tenant; security is read occasionally."""
    async with console() as user:
        before = _replies(server)
        await user.refresh()  # with security
        assert _replies(server) - before <= REFRESH_REQUESTS_MAX + SECURITY_REQUESTS_MAX
        before = _replies(server)
        user.app.refresh_figures()
        await user.until(lambda: not user.app._busy)
        assert _replies(server) - before <= REFRESH_REQUESTS_MAX


async def test_enter_on_a_narrow_terminal_shows_the_queues(console: OpenConsole) -> None:
    """They are otherwise hidden behind the list of tenants."""
    async with console(size=NARROW) as user:
        await user.press("down", "enter")
        assert user.app.screen.active == "queues"  # type: ignore[attr-defined]  # the main screen


async def test_refresh_that_ends_during_close_draws_nothing(console: OpenConsole) -> None:
    """A screen loses its widgets before it leaves the stack."""
    async with console() as user:
        await user.app.screen.query("*").remove()
        user.app.draw()


async def test_console_reports_a_lost_server_and_reconnects(server: FakeServer, console: OpenConsole) -> None:
    """The last figures stay, marked as outdated."""
    async with console() as user:
        with server.outage():
            user.app.refresh_soon()
            await user.until(lambda: "cannot reach http://fake.invalid; retrying; figures from" in user.text())
            assert len(user.rows("#tenants LiveTable")) == 5
            assert user.app.screen.has_class("-old")
            await user.press("4", "tab", "enter", "escape", "p")
            await user.until(lambda: any(text.endswith("[unavailable]") for text in user.said()))
            await user.until(lambda: not user.app._busy)
        await user.refresh()
        assert "cannot reach" not in user.text()
        assert user.app.state.tenant == "full"


async def test_invalid_credential_ends_the_console_with_an_error(server: FakeServer) -> None:
    """It ends before it shows anything."""
    client = AsyncClient(settings=server.settings(token="tq_of_nobody"))  # noqa: S106  # not a real token
    app = ConsoleApp(client, url="http://fake.invalid", refresh_ms=NEVER_MS)
    async with client, app.run_test() as pilot:
        for _ in range(500):
            if app.return_value is not None:
                break
            await pilot.pause(0.01)
    assert isinstance(app.return_value, Unauthenticated)


def _poll_often(client: Client) -> None:
    for _ in range(20):
        client.queue("mail").poll()


def _replies(server: FakeServer) -> int:
    return sum(server._listener.context.metrics.replies_total.values())


def _refused(server: FakeServer) -> int:
    return server._listener.context.metrics.replies_total.get(403, 0)
