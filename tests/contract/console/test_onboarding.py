"""Sign-ups, templates and containments in the console, over a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from textual.widgets import Static

from tenantq import Client
from tenantq.console.dialogs import TokenScreen
from tenantq.console.live_table import LiveTable
from tenantq.console.onboarding_screen import ApplyScreen
from tests.acceptance.command import ADMIN_TOKEN
from tests.contract.console.conftest import NARROW
from tests.contract.console.filmstrip import Filmstrip
from tests.contract.console.scenarios import scenario_server, walking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command import Served
    from tests.contract.console.conftest import ConsoleUser

HUGE = (160, 45)
SETTINGS = """
[signups]
enabled = true

[[containment]]
alert = "cross_tenant"
action = "suspend_key"
dry_run = false

[[containment]]
alert = "cross_tenant"
action = "limit_principal"
"""
CROSS_TENANT_CALLS = 6


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve with sign-ups and containment. The alerts of these tests must not appear in the scenarios."""
    with scenario_server(tmp_path_factory.mktemp("onboarding"), SETTINGS) as served:
        yield served


def point_at(user: ConsoleUser, selector: str, key: str) -> None:
    user.app.screen.query_one(selector, LiveTable).point_at(key)


def sign_up(url: str, name: str) -> str:
    asked = {"tenant": name, "contact": f"{name}@mail.example", "note": "We send\ninvoices."}
    return str(httpx.post(f"{url}/v1/signups", json=asked, timeout=30).json()["id"])


def rows(user: ConsoleUser, selector: str) -> list[dict[str, str]] | None:
    """Return the rows of a table, or None while a dialog covers it."""
    return user.rows(selector) if user.app.screen.query(selector) else None


def waiting(user: ConsoleUser) -> set[str] | None:
    found = rows(user, "#signups")
    return None if found is None else {row.get("tenant", "") for row in found}


async def test_sign_ups_are_approved_and_rejected(served: Served) -> None:
    """The token of the first key works, and only ``y`` closes the one screen that shows it."""
    ids = [sign_up(served.url, name) for name in ("signup-ann", "signup-bob")]
    async with walking(served, Filmstrip(NARROW), NARROW) as walk:
        user, platform = walk.user, walk.admin.platform()
        platform.put_template("starter", queues={"mail": {"max_attempts": 5}})
        await walk.press("O")
        await user.until(lambda: {"signup-ann", "signup-bob"} <= (waiting(user) or set()))
        assert user.column("#signups", "note")[0] == "We send invoice…"
        point_at(user, "#signups", ids[0])
        await walk.press("a")
        await user.until(lambda: "Approve tenant signup-ann" in user.text())
        await walk.fill(template="nonsense")
        await walk.press("ctrl+s")
        await user.until(lambda: "template: must be one of" in user.text())
        await walk.fill(plan="scale", template="starter")
        await walk.press("ctrl+s")
        await user.until(lambda: isinstance(user.app.screen, TokenScreen))
        await walk.press("enter", "escape", "n")
        assert "Template: 1 created" in user.text()
        token = str(user.app.screen.query_one(Static).content).split()[-1]
        await walk.press("y")
        await user.until(lambda: "signup-ann" not in (waiting(user) or {"signup-ann"}))
        with Client(served.url, token=token) as first:
            assert (first.own_tenant().name, first.own_tenant().config["plan"]) == ("signup-ann", "scale")
            assert first.queue("mail").stats().config["max_attempts"] == 5
        point_at(user, "#signups", ids[1])
        await walk.press("j")
        await user.until(lambda: "Reject tenant signup-bob" in user.text())
        await walk.fill(reason="not a customer")
        await walk.press("ctrl+s")
        await user.until(lambda: "signup-bob" not in (waiting(user) or {"signup-bob"}))


@pytest.mark.parametrize("size", [NARROW, HUGE])
async def test_template_shows_its_changes_before_it_is_applied(served: Served, size: tuple[int, int]) -> None:
    """The dry run changes nothing, and applying it again finds nothing to change."""
    async with walking(served, Filmstrip(size), size) as walk:
        user, tenant = walk.user, walk.admin.tenant(f"templated-{size[0]}")
        tenant.configure(weight=1)
        tenant.queue("mail").configure(max_attempts=2)
        settings = {"mail": {"max_attempts": 5}, "audit": {}}
        walk.admin.platform().put_template("standard", description="Mail", queues=settings, settings={"weight": 3})
        user.app.choose(tenant.name)
        await user.until(lambda: user.app.state.tenant == tenant.name)
        await walk.press("O", "tab")
        await user.until(lambda: "standard" in user.column("#templates", "template"))
        point_at(user, "#templates", " standard")
        await walk.press("enter")
        await user.until(lambda: '"max_attempts": 5' in user.text())
        await walk.press("escape", "p")
        await user.until(lambda: "Dry run: 2 changed, 1 created. y: apply" in user.text())
        assert {"weight = 3", "max_attempts = 5"} <= set(user.column("#applied", "setting"))
        assert (tenant.get().config["weight"], tenant.queue("mail").stats().config["max_attempts"]) == (1, 2)
        await walk.press("y")
        await user.until(lambda: "Applied: 2 changed, 1 created" in user.text())
        assert (tenant.get().config["weight"], tenant.queue("mail").stats().config["max_attempts"]) == (3, 5)
        await walk.press("escape", "p")
        await user.until(lambda: "3 unchanged" in user.text())


async def test_containment_is_shown_with_its_reason_and_released(served: Served) -> None:
    """The suspended key works again, and dry runs are listed too."""
    async with walking(served, Filmstrip(HUGE), HUGE) as walk:
        user, platform, tenant = walk.user, walk.admin.platform(), walk.admin.tenant("contained")
        tenant.configure()
        walk.admin.tenant("not-theirs").configure()
        key = tenant.create_key("curious", role="viewer")

        def call(tenant: str) -> int:
            own = {"Authorization": f"Bearer {key.token}"}
            return httpx.get(f"{walk.url}/v1/tenants/{tenant}/usage", headers=own, timeout=30).status_code

        assert {call("not-theirs") for _ in range(CROSS_TENANT_CALLS)} == {403}
        principal = f"key:{key.key_id}"
        await walk.press("A")

        def shown() -> dict[str, str]:
            found = [row for row in rows(user, "#containments") or [] if row.get("principal") == principal]
            return {row["contained"]: row["state"] for row in found}

        await user.until(lambda: shown() == {"suspend key": "in force", "limit principal": "dry run"})
        assert "cross tenant: " in user.text()
        assert call("contained") == 403
        (mine,) = [one for one in platform.containments() if one.principal == principal and not one.dry_run]
        point_at(user, "#containments", f"contained {mine.id}")
        await walk.press("v")
        await user.until(lambda: f"suspend key {principal} because of" in user.text())
        await walk.press("n")
        assert call("contained") == 403
        await walk.press("v")
        await user.until(lambda: f"suspend key {principal} because of" in user.text())
        await walk.press("y")
        await user.until(lambda: shown() == {"limit principal": "dry run"})
        assert call("contained") == 200


async def test_credential_without_the_right_sees_one_line(served: Served) -> None:
    """A viewer lists templates, but cannot decide anything."""
    with Client(served.url, token=ADMIN_TOKEN) as admin:
        tenant = admin.tenant("only-viewed")
        tenant.configure()
        tenant.put_template("own", queues={"mail": {}})
        token = tenant.create_key("viewer", role="viewer").token
    async with walking(served, Filmstrip(NARROW), NARROW, token) as walk:
        user = walk.user
        await walk.press("O", "a", "j")
        await user.until(lambda: user.rows("#signups") == [{"": "not granted"}])
        await user.until(lambda: "own" in user.column("#templates", "template"))
        await walk.press("p")
        await user.until(lambda: any("action 'put_queue' is not allowed" in text for text in user.said()))
        await user.until(lambda: not isinstance(user.app.screen, ApplyScreen))
        await walk.press("escape", "A", "v")
        await user.until(lambda: user.rows("#containments") == [{"": "not granted"}])
