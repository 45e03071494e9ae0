"""The tenants: who is there, and who needs somebody."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType

from tenantq.console import actions
from tenantq.console.live_table import LiveTable
from tenantq.console.overview import COLUMNS, tenant_row
from tenantq.console.panel import FilterInput, Panel
from tenantq.console.queue_lines import cut_short
from tenantq.console.reader import TENANTS_MAX

if TYPE_CHECKING:
    from textual.app import ComposeResult


class TenantsPanel(Panel):
    """All tenants that the credential sees."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "sort"),
        Binding("S", "turn", "turn order", show=False),
        Binding("e", "edit", "edit"),
        Binding("u", "suspend", "suspend"),
    ]

    def compose(self) -> ComposeResult:
        """Lay out filter and table."""
        yield FilterInput()
        yield LiveTable(COLUMNS, empty="…")

    def draw(self) -> None:
        """Show the tenants."""
        desk = self.desk
        rows = [tenant_row(line, chosen=line.name == desk.tenant) for line in desk.shown_lines]
        empty = "no such tenant" if desk.tenant_text else "no tenants" if desk.look else "…"
        self.table.show(rows, empty=empty)
        cut = cut_short(desk.lines, TENANTS_MAX, None)
        self.border_title = f"Tenants, {cut}" if cut else "Tenants"
        arrow = "↑" if desk.reverse != (desk.sort == "name") else "↓"
        self.border_subtitle = f"by {desk.sort.replace('_', ' ')} {arrow}"

    def filter_by(self, text: str) -> None:
        """Show the tenants whose name or status contains ``text``."""
        self.desk.tenant_text = text

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        """Show this tenant."""
        event.stop()
        if self.table.current is not None:
            actions.console_of(self).choose(self.table.current)

    def on_data_table_header_selected(self, event: LiveTable.HeaderSelected) -> None:
        """Sort by the column that was clicked."""
        self.desk.sort_by(str(event.column_key.value))
        self.draw()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.desk.next_sort()
        self.draw()

    def action_turn(self) -> None:
        """Turn the order around."""
        self.desk.reverse = not self.desk.reverse
        self.draw()

    @work(group="action", exclusive=True)
    async def action_edit(self) -> None:
        """Edit the tenant under the cursor."""
        await self._with_facts(actions.edit_tenant)

    @work(group="action", exclusive=True)
    async def action_suspend(self) -> None:
        """Suspend the tenant under the cursor, or let it work again."""
        await self._with_facts(actions.suspend_or_resume)

    async def _with_facts(self, act: actions.TenantAct) -> None:
        console = actions.console_of(self)
        name = self.table.current
        if name is None or self.desk.tenant is None:
            return
        facts = await console.read(console.client.tenant(name).get())
        if facts is not None:
            await act(console, facts)
