"""The queues of the tenant that is shown, its pace, quotas and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.widgets import Static

from tenantq.console import actions
from tenantq.console.answers import NOT_GRANTED_TEXT, NotGranted, known
from tenantq.console.live_table import LiveTable
from tenantq.console.panel import FilterInput, Panel
from tenantq.console.queue_lines import (
    COLUMNS,
    cut_short,
    encrypted_in_short,
    facts_line,
    filtered,
    limited_quotas,
    pace_line,
    queue_row,
)
from tenantq.console.queue_screen import QueueScreen
from tenantq.console.reader import QUEUES_MAX

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from tenantq.console.reader import TenantView
    from tenantq.wire import QueueReply

_SPARK_MAX = 24
_PACE_CHARS = 34  # of the line about the pace, beside its two sparklines


class QueuesPanel(Panel):
    """One tenant."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "pause"),
        Binding("d", "redrive", "redrive"),
        Binding("x", "purge", "purge"),
    ]

    def compose(self) -> ComposeResult:
        """Lay out facts, filter, table and quotas."""
        yield Static("", id="tenant-facts", markup=False)
        yield FilterInput()
        yield LiveTable(COLUMNS, empty="…")
        yield Static("", id="quotas", markup=False)

    def draw(self) -> None:
        """Show the tenant."""
        desk = self.desk
        view = desk.look.view if desk.look is not None else None
        if view is None:
            self.border_title = "Queues"
            self.table.show([], empty="…" if desk.look is None else "no tenant")
            return
        coming = desk.selected is not None and view.name != desk.selected
        self.border_title = f"Queues of {desk.selected} …" if coming else f"Queues of {view.name}"
        self.border_subtitle = _cut(view)
        security = desk.security
        encryption = security.encryption if security is not None and security.tenant == view.name else None
        width = max(4, min(_SPARK_MAX, (self.content_size.width - _PACE_CHARS) // 2))
        facts = [facts_line(view.facts), encrypted_in_short(encryption), pace_line(desk.rates, width)]
        self.query_one("#tenant-facts", Static).update("\n".join(facts))
        self.query_one("#quotas", Static).update("\n".join(limited_quotas(view.usage)))
        if isinstance(view.queues, NotGranted):
            self.table.show([], empty=NOT_GRANTED_TEXT)
            return
        rows = [queue_row(queue, desk.rates) for queue in filtered(view.queues, desk.queue_text)]
        self.table.show(rows, empty="no such queue" if desk.queue_text else "no queues yet")

    def filter_by(self, text: str) -> None:
        """Show the queues whose name or state contains ``text``."""
        self.desk.queue_text = text

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        """Open the queue."""
        event.stop()
        queue = self._queue()
        if queue is not None and self.desk.tenant is not None:
            self.app.push_screen(QueueScreen(self.desk, self.desk.tenant, queue))

    @work(group="action", exclusive=True)
    async def action_pause(self) -> None:
        """Pause the queue under the cursor, or let it deliver again."""
        queue = self._queue()
        if queue is not None and self.desk.tenant is not None:
            await actions.pause_or_resume(actions.console_of(self), self.desk.tenant, queue)

    @work(group="action", exclusive=True)
    async def action_redrive(self) -> None:
        """Send the dead letters of the queue under the cursor back."""
        queue = self._queue()
        if queue is not None and self.desk.tenant is not None:
            await actions.redrive(actions.console_of(self), self.desk.tenant, queue.name)

    @work(group="action", exclusive=True)
    async def action_purge(self) -> None:
        """Empty the queue under the cursor."""
        queue = self._queue()
        if queue is not None and self.desk.tenant is not None:
            await actions.purge(actions.console_of(self), self.desk.tenant, queue)

    def _queue(self) -> QueueReply | None:
        name = self.table.current
        return self.desk.queue(name) if name is not None else None


def _cut(view: TenantView) -> str:
    queues = known(view.queues) or []
    usage = known(view.usage)
    return cut_short(queues, QUEUES_MAX, usage.quotas["queues"].used if usage is not None else None)
