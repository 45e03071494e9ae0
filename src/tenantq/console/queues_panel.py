"""The panel of the shown tenant: its queues, rates, quotas and limits."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Static

from tenantq.console import actions
from tenantq.console.live_table import LiveTable
from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted, known
from tenantq.console.panel import Panel
from tenantq.console.queue_rows import (
    COLUMNS,
    encryption_state,
    facts_line,
    filtered,
    limited_quotas,
    queue_row,
    rate_line,
    truncation_note,
)
from tenantq.console.queue_screen import QueueScreen
from tenantq.console.reader import QUEUES_MAX, TenantView

_SPARKLINE_MAX: Final = 24
_RATE_CHARS: Final = 34  # of the line of rates, without its two sparklines


class QueuesPanel(Panel):
    """The queues of one tenant."""

    BINDINGS: ClassVar[list[BindingType]] = [*actions.QUEUE_BINDINGS]

    def compose(self) -> ComposeResult:
        """Lay out facts, filter, table and quotas."""
        yield Static("", id="tenant-facts", markup=False)
        yield self.filter_input
        yield LiveTable(COLUMNS, empty="…")
        yield Static("", id="quotas", markup=False)

    def draw(self) -> None:
        """Show the tenant."""
        state = self.state
        view = state.view
        if view is None:
            self.border_title = "Queues"
            self.table.show([], empty="…" if state.snapshot is None else "no tenant")
            return
        loading = state.selected is not None and view.name != state.selected
        self.border_title = f"Queues of {state.selected} …" if loading else f"Queues of {view.name}"
        self.border_subtitle = _truncation_note(view)
        security = state.security
        encryption = security.encryption if security is not None and security.tenant == view.name else None
        width = max(4, min(_SPARKLINE_MAX, (self.content_size.width - _RATE_CHARS) // 2))
        facts = [facts_line(view.facts), encryption_state(encryption), rate_line(state.rates, width)]
        self.query_one("#tenant-facts", Static).update("\n".join(facts))
        self.query_one("#quotas", Static).update("\n".join(limited_quotas(view.usage)))
        if isinstance(view.queues, NotGranted):
            self.table.show([], empty=NOT_GRANTED_TEXT)
            return
        rows = [queue_row(queue, state.rates) for queue in filtered(view.queues, state.queue_filter)]
        self.table.show(rows, empty="no matches" if state.queue_filter else "no queues yet")

    def filter_by(self, text: str) -> None:
        """Show the queues whose name or state contains ``text``."""
        self.state.queue_filter = text

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        """Open the queue of the row."""
        event.stop()
        queue = self.state.queue(self.table.current)
        if queue is not None and self.state.tenant is not None:
            self.app.push_screen(QueueScreen(self.state, self.state.tenant, queue))

    @work(group="action", exclusive=True)
    async def action_queue(self, name: str) -> None:
        """Run one of the queue actions on the queue under the cursor."""
        queue = self.state.queue(self.table.current)
        if queue is not None and self.state.tenant is not None:
            await actions.QUEUE_ACTIONS[name](actions.console_of(self), self.state.tenant, queue)


def _truncation_note(view: TenantView) -> str:
    usage = known(view.usage)
    total = usage.quotas["queues"].used if usage is not None else None
    return truncation_note(known(view.queues) or [], QUEUES_MAX, total)
