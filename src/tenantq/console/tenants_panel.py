"""The panel of all tenants."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from tenantq.console import actions
from tenantq.console.live_table import LiveTable
from tenantq.console.panel import Panel
from tenantq.console.queue_rows import truncation_note
from tenantq.console.reader import TENANTS_MAX
from tenantq.console.tenant_rows import COLUMNS, tenant_row


class TenantsPanel(Panel):
    """All tenants that the credential sees."""

    class Chosen(Message):
        """Sent when the user chooses a tenant."""

        def __init__(self, tenant: str) -> None:
            super().__init__()
            self.tenant = tenant

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "sort"),
        Binding("S", "reverse", "reverse", show=False),
        Binding("e", "tenant('edit')", "edit"),
        Binding("u", "tenant('suspend')", "suspend"),
    ]

    def compose(self) -> ComposeResult:
        """Lay out filter and table."""
        yield self.filter_input
        yield LiveTable(COLUMNS, empty="…")

    def draw(self) -> None:
        """Show the tenants."""
        state = self.state
        rows = [tenant_row(one, chosen=one.name == state.tenant) for one in state.shown_tenants]
        empty = "no matches" if state.tenant_filter else "no tenants" if state.snapshot else "…"
        self.table.show(rows, empty=empty)
        note = truncation_note(state.tenants, TENANTS_MAX, None)
        self.border_title = f"Tenants, {note}" if note else "Tenants"
        arrow = "↑" if state.reverse != (state.sort == "name") else "↓"
        self.border_subtitle = f"by {state.sort.replace('_', ' ')} {arrow}"

    def filter_by(self, text: str) -> None:
        """Show the tenants whose name or status contains ``text``."""
        self.state.tenant_filter = text

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        """Show the tenant of the row."""
        event.stop()
        if self.table.current is not None:
            self.post_message(self.Chosen(self.table.current))

    def on_data_table_header_selected(self, event: LiveTable.HeaderSelected) -> None:
        """Sort by the column that was clicked."""
        self.state.sort_by(str(event.column_key.value))
        self.draw()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.state.next_sort()
        self.draw()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.state.reverse = not self.state.reverse
        self.draw()

    @work(group="action", exclusive=True)
    async def action_tenant(self, name: str) -> None:
        """Run one of the tenant actions on the tenant under the cursor."""
        console, tenant = actions.console_of(self), self.table.current
        if tenant is not None and self.state.tenant is not None:
            facts = await console.read(console.client.tenant(tenant).get())
            if facts is not None:
                await actions.TENANT_ACTIONS[name](console, facts)
