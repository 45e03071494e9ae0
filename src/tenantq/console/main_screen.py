"""The main screen: tenants, queues and security side by side, or behind tabs on a narrow terminal."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import DescendantFocus
from textual.widgets import Static, Tab, Tabs

from tenantq.console import actions
from tenantq.console.manage_screen import ManageScreen
from tenantq.console.panel import Panel
from tenantq.console.queues_panel import QueuesPanel
from tenantq.console.security_panel import SecurityPanel
from tenantq.console.state_screen import StateScreen
from tenantq.console.tenant_rows import NUMBERED
from tenantq.console.tenant_switcher import TenantSwitcher
from tenantq.console.tenants_panel import TenantsPanel

_PANELS: Final = {"tenants": "Tenants", "queues": "Queues", "security": "Security"}


class MainScreen(StateScreen):
    """Three panels. On a narrow terminal, or zoomed, only the active one is visible."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "switch", "tenant"),
        Binding("T,shift+t", "manage", "manage", key_display="T"),
        Binding("ctrl+t", "create", "new tenant", show=False),
        Binding("tab", "next_panel(1)", "next panel", show=False),
        Binding("shift+tab", "next_panel(-1)", "previous panel", show=False),
        Binding("z", "zoom", "zoom"),
        *(Binding(f"{n},ctrl+{n}", f"number({n})", show=False) for n in range(1, NUMBERED + 1)),
    ]

    def compose(self) -> ComposeResult:
        """Lay out the panels."""
        yield Static("", id="title", markup=False)
        tabs = Tabs(*(Tab(label, id=f"tab-{id}") for id, label in _PANELS.items()), id="panel-tabs")
        tabs.can_focus = False
        yield tabs
        with Horizontal(id="panels"):
            yield TenantsPanel(self.state, "tenants", active=True)
            yield QueuesPanel(self.state, "queues")
            yield SecurityPanel(self.state, "security")
        yield from self.compose_status()

    def on_mount(self) -> None:
        """Focus the tenants."""
        super().on_mount()
        self.query_one(TenantsPanel).table.focus()

    def draw(self) -> None:
        """Show the three panels."""
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
        """Show the panel of a clicked tab."""
        id = str(event.tab.id).removeprefix("tab-")
        if id != self.active:
            self.activate(id)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Make the panel that has the focus the active one."""
        for panel in self.query(Panel):
            if event.widget is self.focused and event.widget in panel.query("*") and not panel.has_class("-active"):
                self._mark(str(panel.id))

    def on_tenants_panel_chosen(self, event: TenantsPanel.Chosen) -> None:
        """Show the tenant, and go to its queues if they are hidden."""
        actions.console_of(self).choose(event.tenant)
        if self.has_class("-narrow") or self.has_class("-zoomed"):
            self.activate("queues")

    def action_next_panel(self, step: int) -> None:
        """Activate the next or the previous panel."""
        ids = list(_PANELS)
        self.activate(ids[(ids.index(self.active) + step) % len(ids)])

    def action_zoom(self) -> None:
        """Show only the active panel, or all."""
        self.toggle_class("-zoomed")

    def action_number(self, number: int) -> None:
        """Show the tenant with a number."""
        for tenant in self.state.tenants:
            if tenant.number == number:
                actions.console_of(self).choose(tenant.name)

    def action_manage(self) -> None:
        """Open the management panel of the tenant that is shown."""
        if self.state.tenant is None:
            actions.console_of(self).say("not granted: this credential cannot read its tenant")
        else:
            self.app.push_screen(ManageScreen(self.state))

    @work(group="action", exclusive=True)
    async def action_switch(self) -> None:
        """Choose a tenant from a list."""
        console = actions.console_of(self)
        name = await console.push_screen_wait(TenantSwitcher(self.state.tenants, self.state.tenant))
        if name is not None:
            console.choose(name)

    @work(group="action", exclusive=True)
    async def action_create(self) -> None:
        """Create a tenant."""
        await actions.create_tenant(actions.console_of(self))

    def _mark(self, id: str) -> None:
        for panel in self.query(Panel):
            panel.set_class(panel.id == id, "-active")
        tabs = self.query_one("#panel-tabs", Tabs)
        with tabs.prevent(Tabs.TabActivated):  # it would arrive after the next key, and two would undo each other
            tabs.active = f"tab-{id}"
