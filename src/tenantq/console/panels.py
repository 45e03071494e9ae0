"""Panels of the main screen: a frame, a table, and a filter that opens with a slash."""

from collections import Counter
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static

from tenantq.console import actions
from tenantq.console.context import console_of
from tenantq.console.live_table import LiveTable
from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted, known
from tenantq.console.queue_rows import (
    QUEUE_COLUMNS,
    encryption_state,
    facts_line,
    filtered,
    limited_quotas,
    queue_row,
    rate_line,
    truncation_note,
)
from tenantq.console.queue_screen import QueueScreen
from tenantq.console.reader import QUEUES_MAX, TENANTS_MAX, TenantView
from tenantq.console.state import ConsoleState
from tenantq.console.tenant_rows import TENANT_COLUMNS, tenant_row

_SPARKLINE_MAX: Final = 24
_RATE_CHARS: Final = 34  # of the line of rates, without its two sparklines


class Panel(Vertical):
    """Subclasses lay out a ``filter_input`` and tables, show their part of the state in ``draw``, and filter in ``filter_by``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", tooltip="filter the panel while you type"),
        Binding("escape", "show_all", "clear filter", show=False),
    ]

    def __init__(self, state: ConsoleState, id: str, *, active: bool = False) -> None:
        super().__init__(id=id, classes="panel -active" if active else "panel")
        self.state = state
        self.filter_input = Input(placeholder="type to filter; Esc clears it", compact=True, classes="filter")
        self.filter_input.display = False

    @property
    def table(self) -> LiveTable:
        """The table that gets the focus with the panel."""
        return self.query_one(LiveTable)

    def draw(self) -> None:
        """Show this panel's part of the state."""
        raise NotImplementedError

    def filter_by(self, text: str) -> None:
        """Show only rows that contain ``text``."""
        raise NotImplementedError

    def action_filter(self) -> None:
        self.filter_input.display = True
        self.filter_input.focus()

    def action_show_all(self) -> None:
        self.filter_input.value = ""
        self.filter_input.display = False
        self.table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.filter_by(event.value)
        self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        event.input.display = bool(event.value)
        self.table.focus()


class TenantsPanel(Panel):
    """All tenants that the credential sees."""

    ENTER: ClassVar = Binding("enter", "", "show the queues of this tenant")  # the table handles this key

    class Chosen(Message):
        """Sent when the user chooses a tenant."""

        def __init__(self, tenant: str) -> None:
            super().__init__()
            self.tenant = tenant

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "sort", tooltip="sort by the next column"),
        Binding("S", "reverse", "reverse the order", show=False, key_display="S"),
        *actions.TENANT_BINDINGS,
    ]

    def compose(self) -> ComposeResult:
        yield self.filter_input
        yield LiveTable(TENANT_COLUMNS, empty="…")

    def draw(self) -> None:
        state = self.state
        rows = [tenant_row(one, state.tenant_rates, chosen=one.name == state.tenant) for one in state.shown_tenants]
        empty = "no matches" if state.tenant_filter else "no tenants" if state.snapshot else "…"
        self.table.show(rows, empty=empty)
        note = truncation_note(state.tenants, TENANTS_MAX, None)
        self.border_title = f"Tenants, {note}" if note else "Tenants"
        arrow = "↑" if state.reverse != (state.sort == "name") else "↓"
        self.border_subtitle = f"by {state.sort.replace('_', ' ')} {arrow}"

    def filter_by(self, text: str) -> None:
        self.state.tenant_filter = text

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        event.stop()
        if self.table.current is not None:
            self.post_message(self.Chosen(self.table.current))

    def on_data_table_header_selected(self, event: LiveTable.HeaderSelected) -> None:
        self.state.sort_by(str(event.column_key.value))
        self.draw()

    def action_sort(self) -> None:
        self.state.next_sort()
        self.draw()

    def action_reverse(self) -> None:
        self.state.reverse = not self.state.reverse
        self.draw()

    @work(group="action", exclusive=True)
    async def action_tenant(self, name: str) -> None:
        console, tenant = console_of(self), self.table.current
        if tenant is not None and self.state.tenant is not None:
            facts = await console.read(console.client.tenant(tenant).get())
            if facts is not None:
                await actions.TENANT_ACTIONS[name](console, facts)


class QueuesPanel(Panel):
    """The queues of one tenant."""

    ENTER: ClassVar = Binding("enter", "", "open: messages, dead letters, settings")

    BINDINGS: ClassVar[list[BindingType]] = [*actions.QUEUE_BINDINGS]

    def compose(self) -> ComposeResult:
        yield Static("", id="tenant-facts", markup=False)
        yield self.filter_input
        yield LiveTable(QUEUE_COLUMNS, empty="…")
        yield Static("", id="quotas", markup=False)

    def draw(self) -> None:
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
        workers = state.workers
        counts = None if workers is None else Counter(one.queue for one in workers)
        rows = [queue_row(queue, state.rates, counts) for queue in filtered(view.queues, state.queue_filter)]
        self.table.show(rows, empty="no matches" if state.queue_filter else "no queues yet")

    def filter_by(self, text: str) -> None:
        self.state.queue_filter = text

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        event.stop()
        queue = self.state.queue(self.table.current)
        if queue is not None and self.state.tenant is not None:
            self.app.push_screen(QueueScreen(self.state, self.state.tenant, queue))

    @work(group="action", exclusive=True)
    async def action_queue(self, name: str) -> None:
        queue = self.state.queue(self.table.current)
        if queue is not None and self.state.tenant is not None:
            await actions.QUEUE_ACTIONS[name](console_of(self), self.state.tenant, queue)


def _truncation_note(view: TenantView) -> str:
    usage = known(view.usage)
    total = usage.quotas["queues"].used if usage is not None else None
    return truncation_note(known(view.queues) or [], QUEUES_MAX, total)
