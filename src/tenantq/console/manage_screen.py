"""The screen of a tenant's settings and quotas."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from tenantq.console import actions
from tenantq.console.live_table import LiveTable
from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted
from tenantq.console.queue_rows import (
    QUOTA_COLUMNS,
    SETTING_COLUMNS,
    encryption_line,
    facts_line,
    quota_rows,
    setting_rows,
)
from tenantq.console.state_screen import StateScreen
from tenantq.domain.formatting import show_time


class ManageScreen(StateScreen):
    """The shown tenant, with actions to change it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,T,shift+t", "app.pop_screen", "back"),
        Binding("e", "tenant('edit')", "edit settings"),
        Binding("u", "tenant('suspend')", "suspend, resume"),
        Binding("ctrl+t", "create", "new tenant"),
    ]

    def compose(self) -> ComposeResult:
        """Lay out quotas and settings."""
        yield Static("", classes="head", markup=False)
        yield LiveTable(QUOTA_COLUMNS, id="manage-quotas")
        yield LiveTable(SETTING_COLUMNS, id="manage-settings")
        yield from self.compose_status()

    def draw(self) -> None:
        """Show the tenant."""
        super().draw()
        view = self.state.view
        if view is None:
            return
        lines = [f"Tenant {view.name}: {facts_line(view.facts)}"]
        security = self.state.security
        lines.append(encryption_line(security.encryption if security is not None else None))
        if not isinstance(view.facts, NotGranted) and (hold := view.facts.hold) is not None:
            lines.append(f"legal hold since {show_time(hold.at)[:16]} by {hold.by}: {hold.reason}")
        self.query_one(".head", Static).update("\n".join(lines))
        self.query_one("#manage-quotas", LiveTable).show(quota_rows(view.usage))
        settings = [] if isinstance(view.facts, NotGranted) else setting_rows(view.facts.config)
        self.query_one("#manage-settings", LiveTable).show(settings, empty=NOT_GRANTED_TEXT)

    @work(group="action", exclusive=True)
    async def action_tenant(self, name: str) -> None:
        """Run one of the tenant actions."""
        view, console = self.state.view, actions.console_of(self)
        if view is None or isinstance(view.facts, NotGranted):
            console.say(NOT_GRANTED_TEXT)
        else:
            await actions.TENANT_ACTIONS[name](console, view.facts)

    @work(group="action", exclusive=True)
    async def action_create(self) -> None:
        """Create another tenant."""
        await actions.create_tenant(actions.console_of(self))
