"""The three scenarios of the console, run with key presses against a real server.

``python -m tests.contract.console.scenarios`` records them as pictures of the docs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jwt
from textual.widgets import Input

from tenantq import AsyncClient, Client
from tenantq.client import NO_RETRIES
from tenantq.console.app import ConsoleApp
from tenantq.errors import TenantqError
from tests.acceptance.command import ADMIN_TOKEN, Served, serving
from tests.contract.console.conftest import ConsoleUser
from tests.contract.console.filmstrip import Filmstrip

if TYPE_CHECKING:
    from tenantq.client import Tenant

IMAGES = Path(__file__).parents[3] / "docs" / "images"
SIZE = (124, 28)
REFRESH_MS = 500
SECRET = "a-secret-of-forty-characters-for-the-tests"  # noqa: S105  # valid for this test only
SETTINGS = """
[alerts]
every_ms = 1000

[plans.custom.starter]
description = "For trials."
quotas = {backlog = 1000, messages_per_day = 10000}
limits = {write = {ops_per_sec = 1}}

[plans.custom.scale]
description = "For large customers."
encrypted = true
weight = 4
quotas = {backlog = 1000000, messages_per_day = 5000000}
limits = {write = {ops_per_sec = 2000}}

[jwt]
secret_file = "SECRET_FILE"
"""

Scenario = Callable[["Walk"], Awaitable[None]]


@contextlib.contextmanager
def scenario_server(home: Path, settings_more: str = "") -> Iterator[Served]:
    """Run a server with plans, quick alerts and JSON web tokens."""
    secret, settings = home / "jwt-secret", home / "tenantq.toml"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    settings.write_text(SETTINGS.replace("SECRET_FILE", str(secret)) + settings_more)
    with serving(home / "data", "--config", settings) as served:
        yield served


class Walk:
    """A user who goes through a scenario, and the strip of what the user saw."""

    def __init__(self, user: ConsoleUser, admin: Client, url: str, strip: Filmstrip) -> None:
        self.user, self.admin, self.url, self._strip = user, admin, url, strip

    async def see(self, caption: str, *texts: str) -> None:
        """Wait until all texts are on the screen, and record it."""
        await self.user.until(lambda: all(text in self.user.text() for text in texts))
        self._strip.add(caption, self.user.app)

    async def press(self, *keys: str) -> None:
        await self.user.press(*keys)

    async def fill(self, **fields: str) -> None:
        """Type into fields of the open form."""
        for name, text in fields.items():
            inputs = self.user.app.screen.query(Input)
            field = next(one for one in inputs if str(one.name).rpartition(".")[2] == name)
            field.focus()
            field.value = text
            await self.user.pilot.pause()


@contextlib.asynccontextmanager
async def walking(
    served: Served, strip: Filmstrip, size: tuple[int, int] = SIZE, token: str = ADMIN_TOKEN
) -> AsyncIterator[Walk]:
    """Open a console, by default for the platform administrator."""
    with Client(served.url, token=ADMIN_TOKEN) as admin:
        async with AsyncClient(served.url, token=token, retries=NO_RETRIES) as client:
            app = ConsoleApp(client, url="http://127.0.0.1:7070", refresh_ms=REFRESH_MS)
            async with app.run_test(size=size) as pilot:
                user = ConsoleUser(pilot, app)
                await user.until(lambda: app.state.snapshot is not None)
                yield Walk(user, admin, served.url, strip)


# ---- 1: a team near its quota ----


async def near_quota(walk: Walk) -> None:
    """Raise the quota of a team that is near it, with a reason, and get an alert at 90 % of the new one."""
    for team in ("mail-team", "search-team", "data-team", "web-team", "payments-team"):
        walk.admin.tenant(team).configure(quotas={"backlog": 100, "queues": 20})
        walk.admin.tenant(team).queue("jobs").add("work")
    payments = walk.admin.tenant("payments-team")
    payments.queue("charges").add_many([f"charge {n}" for n in range(84)])
    user = walk.user
    await walk.press("slash")
    await user.type("team")
    await walk.press("enter")
    await walk.see("payments-team is near a quota.", "payments-team", "▲ warning")
    await walk.press("t")
    await user.type("payments")
    await walk.see("t: switch to it.", "Switch tenant", "payments-team")
    await walk.press("enter", "tab")
    await walk.see("Its backlog grows.", "Queues of payments-team", "charges", "85% backlog, 85 of 100")
    await walk.press("T", "e")
    await user.until(lambda: "Settings of payments-team" in user.text())
    await walk.fill(backlog="200", quota_percent="90", reason="Black Friday, approved by finance")
    await walk.see("T, e: raise the quota, and alert at 90 % of it.", "Settings of payments-team", "Black Friday")
    await walk.press("ctrl+s")
    await walk.see("42 % of the new quota is in use.", "42%", "quotas.backlog")
    payments.queue("charges").add_many([f"charge {n}" for n in range(100)])
    await walk.press("escape", "A")
    await walk.see("A: the alert at 90 %.", "quota backlog: 185 of 200 in use (threshold 90 %)")
    await walk.press("escape", "tab", "z", "c")
    await walk.see("The audit trail has the change and its reason.", "configure_tenant", "Black Friday")
    assert payments.get().config["quotas"]["backlog"] == 200
    await walk.press("A")
    await walk.press("s")
    await user.until(lambda: "Silence alerts of payments-team" in user.text())
    await walk.fill(length="2h", reason="The team knows")
    await walk.press("ctrl+s")
    await user.until(lambda: user.column("#alerts", "severity") == ["silenced"])
    await walk.press("u")
    await user.until(lambda: user.column("#alerts", "severity") == ["warning"])


# ---- 2: a contractor's denied accesses ----

BOB = "jwt:contractor-bob"


def token_of_bob() -> str:
    claims = {"sub": "contractor-bob", "tenant": "vendors", "role": "producer", "exp": int(time.time()) + 3_600}
    return jwt.encode(claims, SECRET, algorithm="HS256")


def succeeds(url: str, tenant: str) -> bool:
    """Return whether the contractor may add a message to a queue of a tenant."""
    with Client(url, token=token_of_bob(), retries=NO_RETRIES) as bob:
        try:
            bob.tenant(tenant).queue("jobs").add("probe")
        except TenantqError:
            return False
        return True


async def denied_contractor(walk: Walk) -> None:
    """Find a contractor who tries other tenants, revoke the rights, and report it."""
    tenants: list[Tenant] = [walk.admin.tenant(name) for name in ("vendors", "payroll", "legal", "research")]
    for tenant in tenants:
        tenant.configure()
        tenant.queue("jobs").configure()
    walk.admin.tenant("research").grant(BOB, role="tenant-admin")
    for tenant in tenants:
        await asyncio.to_thread(succeeds, walk.url, tenant.name)
    user = walk.user
    user.app.choose("vendors")
    await walk.press("shift+tab", "z", "o")
    await walk.see("The security panel shows denied calls of all tenants.", "Security of the platform", BOB, "payroll")
    await walk.press("f")
    await user.until(lambda: "Audit trail" in user.text())
    await walk.fill(result="DENIED", principal=BOB)
    await walk.see("f: filter by principal.", "Audit trail", BOB)
    await walk.press("ctrl+s")
    await user.until(lambda: user.app.state.audit_filter.principal == BOB and len(user.app.state.audit_rows()) >= 2)
    await walk.press("enter")
    await walk.see("Enter: the contractor's rights in all tenants.", "2 rights in", "tenant-admin", "(token)")
    await walk.press("v")
    await walk.see("v: revoke the grant that should not exist.", f"{BOB} loses its grant in research")
    await walk.press("y")
    await user.until(lambda: "1 right in" in user.text())
    await walk.press("home", "v")
    await walk.see("The tokens too.", f"All tokens of {BOB} stop working")
    await walk.press("ctrl+s")
    await walk.see("No rights are left.", "0 rights in", "no rights")
    assert not await asyncio.to_thread(succeeds, walk.url, "vendors")
    assert not await asyncio.to_thread(succeeds, walk.url, "research")
    await walk.press("y")
    await walk.see("y: the compliance report, with what was done.", "Access review of", "delete_grant", "revoke_token")
    report = await saved(walk)
    assert "0 rights left" in report
    assert f"| {BOB} | payroll | add |" in report


# ---- 3: fifty customers ----


async def big_customer(walk: Walk) -> None:
    """Find a throttled customer among fifty, give it a bigger plan, and save a report."""
    for number in range(50):
        walk.admin.tenant(f"customer-{number:02}").configure(plan="starter")
    big = walk.admin.tenant("big-customer-inc")
    big.configure(plan="starter")
    with Client(walk.url, token=big.create_key("app", role="producer").token, retries=NO_RETRIES) as app:
        for number in range(40):
            with contextlib.suppress(TenantqError):
                app.queue("orders").add(f"order {number}")
    user = walk.user
    await walk.press(*"sssss")
    user.app.refresh_soon()
    await user.until(lambda: user.column("#tenants LiveTable", "tenant")[:1] == ["big-customer-inc"])
    user.app.screen.query_one("#tenants LiveTable").move_cursor(row=0)  # type: ignore[attr-defined]  # a LiveTable
    await walk.press("enter")
    await walk.see(
        "s: sorted by refused calls, the throttled customer is first.",
        "by throttled",
        "Queues of big-customer-inc",
        "orders",
    )
    await walk.press("h")
    await walk.see("h: its usage over time.", "Usage of big-customer-inc", "calls refused by limits", "By hour")
    await walk.press("escape", "p")
    await user.until(lambda: "Plan of big-customer-inc" in user.text())
    await walk.fill(plan="scale", reason="Upgrade agreed with sales")
    await walk.see("p: apply a bigger plan.", "For large customers.", "Upgrade agreed with sales")
    await walk.press("ctrl+s")
    await user.until(lambda: "changed big-customer-inc: plan" in user.said())
    big.queue("orders").add("after the upgrade")
    await walk.press("T")
    user.app.refresh_soon()
    await walk.see("T: the new quotas apply, and messages are encrypted.", "1,000,000", "encryption: on, key ok")
    await walk.press("h")
    await walk.see("h, s: save the report for the account manager.", "plan scale", "Usage of big-customer-inc")
    report = await saved(walk)
    assert "## Encryption\n\nencryption: on" in report
    assert big.get().config["limits"]["write"]["ops_per_sec"] == 2_000


async def saved(walk: Walk) -> str:
    """Save the shown report, and return the file's text."""
    user = walk.user
    await walk.press("s")
    await user.until(lambda: any(text.startswith("saved ") for text in user.said()))
    (name,) = [text.removeprefix("saved ") for text in user.said() if text.startswith("saved ")]
    return await asyncio.to_thread(Path(name).read_text)


SCENARIOS: dict[str, Scenario] = {
    "near-quota": near_quota,
    "denied-contractor": denied_contractor,
    "big-customer": big_customer,
}


async def record(served: Served, name: str) -> Filmstrip:
    """Run a scenario and return what was seen."""
    strip = Filmstrip(SIZE)
    async with walking(served, strip) as walk:
        await SCENARIOS[name](walk)
    return strip


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)  # reports are saved here
        for name in SCENARIOS:
            place = Path(home) / name
            place.mkdir()
            with scenario_server(place) as served:
                (IMAGES / f"console-{name}.svg").write_text(asyncio.run(record(served, name)).svg())


if __name__ == "__main__":
    main()
