"""The main screen with its panels side by side, or behind tabs on a narrow terminal, and the settings of a tenant."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import DescendantFocus
from textual.widgets import Static, Tab, Tabs

from tenantq.console import actions
from tenantq.console.alerts_screen import AlertsScreen
from tenantq.console.cluster_screen import ClusterScreen
from tenantq.console.context import console_of
from tenantq.console.dialogs import TenantSwitcher
from tenantq.console.live_table import LiveTable
from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted
from tenantq.console.onboarding_screen import OnboardingScreen
from tenantq.console.panels import Panel, QueuesPanel, TenantsPanel
from tenantq.console.queue_rows import (
    QUOTA_COLUMNS,
    SETTING_COLUMNS,
    encryption_line,
    facts_line,
    quota_rows,
    setting_rows,
)
from tenantq.console.report_screen import REPORT_BINDINGS
from tenantq.console.security_panel import SecurityPanel
from tenantq.console.state_screen import StateScreen
from tenantq.console.tenant_rows import NUMBERED
from tenantq.domain.formatting import show_time

_PANELS: Final = {"tenants": "Tenants", "queues": "Queues", "security": "Security"}


class ManageScreen(StateScreen):
    """The shown tenant, with actions to change it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,T,shift+t", "app.pop_screen", "back"),
        *actions.TENANT_BINDINGS,
        *REPORT_BINDINGS,
        Binding("ctrl+t", "app.create_tenant", "new tenant"),
    ]

    def compose(self) -> ComposeResult:
        yield Static("", classes="head", markup=False)
        yield LiveTable(QUOTA_COLUMNS, id="manage-quotas")
        yield LiveTable(SETTING_COLUMNS, id="manage-settings")
        yield from self.compose_status()

    def draw(self) -> None:
        super().draw()
        view = self.state.view
        if view is None:
            return
        id = "" if isinstance(view.facts, NotGranted) else f" (id {view.facts.id})"
        lines = [f"Tenant {view.name}{id}: {facts_line(view.facts)}"]
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
        view, console = self.state.view, console_of(self)
        if view is None or isinstance(view.facts, NotGranted):
            console.say(NOT_GRANTED_TEXT)
        else:
            await actions.TENANT_ACTIONS[name](console, view.facts)


class MainScreen(StateScreen):
    """Three panels, side by side or in two columns. On a narrow terminal, or zoomed, only the active one is visible."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "switch", "tenant", tooltip="switch tenant"),
        Binding("T,shift+t", "manage", "manage", key_display="T", tooltip="manage the tenant: settings, quotas"),
        Binding("ctrl+t", "app.create_tenant", "create a tenant", show=False),
        Binding("A,shift+a", "alerts", "alerts", key_display="A", tooltip="alerts and containments"),
        Binding("O,shift+o", "onboarding", "onboarding", show=False, key_display="O", tooltip="sign-ups and templates"),
        Binding(
            "C,shift+c", "cluster", "cluster", show=False, key_display="C", tooltip="cluster: members, shards and moves"
        ),
        *REPORT_BINDINGS,
        Binding("tab", "next_panel(1)", "next panel", show=False),
        Binding("shift+tab", "next_panel(-1)", "previous panel", show=False),
        Binding("z", "zoom", "zoom", show=False, tooltip="show only this panel, or all"),
        Binding("1,ctrl+1", "number(1)", "show the tenant of this number", show=False, key_display="1 … 9, Ctrl+1 … 9"),
        *(Binding(f"{n},ctrl+{n}", f"number({n})", show=False) for n in range(2, NUMBERED + 1)),
    ]

    def compose(self) -> ComposeResult:
        yield Static("", id="title", markup=False)
        tabs = Tabs(*(Tab(label, id=f"tab-{id}") for id, label in _PANELS.items()), id="panel-tabs")
        tabs.can_focus = False
        yield tabs
        with Horizontal(id="panels", classes="-tenants"):
            yield TenantsPanel(self.state, "tenants", active=True)
            yield QueuesPanel(self.state, "queues")
            yield SecurityPanel(self.state, "security")
        yield from self.compose_status()

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(TenantsPanel).table.focus()

    def draw(self) -> None:
        super().draw()
        self.query_one("#title", Static).update(self.state.title())
        for panel in self.query(Panel):
            panel.draw()

    def point_at(self, tenant: str) -> None:
        """Move the cursor to a tenant."""
        self.query_one(TenantsPanel).table.point_at(tenant)

    @property
    def active(self) -> str:
        """The ID of the active panel."""
        return next((str(panel.id) for panel in self.query(Panel) if panel.has_class("-active")), "tenants")

    def activate(self, id: str) -> None:
        """Make a panel the active one, and give it the focus."""
        self._mark(id)
        self.query_one(f"#{id}", Panel).table.focus()

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        id = str(event.tab.id).removeprefix("tab-")
        if id != self.active:
            self.activate(id)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        for panel in self.query(Panel):
            if event.widget is self.focused and event.widget in panel.query("*") and not panel.has_class("-active"):
                self._mark(str(panel.id))

    def on_tenants_panel_chosen(self, event: TenantsPanel.Chosen) -> None:
        """Show the tenant, and go to its queues if they are hidden."""
        console_of(self).choose(event.tenant)
        if self.has_class("-narrow") or self.has_class("-zoomed"):
            self.activate("queues")

    def action_next_panel(self, step: int) -> None:
        ids = list(_PANELS)
        self.activate(ids[(ids.index(self.active) + step) % len(ids)])

    def action_zoom(self) -> None:
        self.toggle_class("-zoomed")

    def action_number(self, number: int) -> None:
        for tenant in self.state.tenants:
            if tenant.number == number:
                console_of(self).choose(tenant.name)

    def action_alerts(self) -> None:
        self.app.push_screen(AlertsScreen(self.state))
        console_of(self).refresh_soon()

    def action_onboarding(self) -> None:
        self.app.push_screen(OnboardingScreen(self.state))

    def action_cluster(self) -> None:
        self.app.push_screen(ClusterScreen())

    def action_manage(self) -> None:
        if self.state.tenant is None:
            console_of(self).say("not granted: this credential cannot read its tenant")
        else:
            self.app.push_screen(ManageScreen(self.state))

    @work(group="action", exclusive=True)
    async def action_switch(self) -> None:
        console = console_of(self)
        name = await self.app.push_screen_wait(TenantSwitcher(self.state.tenants, self.state.tenant))
        if name is not None:
            console.choose(name)

    def _mark(self, id: str) -> None:
        for panel in self.query(Panel):
            panel.set_class(panel.id == id, "-active")
        self.query_one("#panels").set_classes(f"-{id}")
        tabs = self.query_one("#panel-tabs", Tabs)
        with tabs.prevent(Tabs.TabActivated):  # it would arrive after the next key, and two would undo each other
            tabs.active = f"tab-{id}"
