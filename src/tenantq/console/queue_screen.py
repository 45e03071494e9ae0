"""A queue: its figures, waiting messages, dead letters by page, settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual import work
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static, TabbedContent, TabPane

from tenantq.client import Page
from tenantq.console import actions
from tenantq.console.answers import NOT_GRANTED_TEXT, NotGranted, granted
from tenantq.console.cells import size
from tenantq.console.live_table import LiveTable
from tenantq.console.message_lines import DEAD_COLUMNS, MESSAGE_COLUMNS, dead_rows, message_rows
from tenantq.console.message_screen import MessageScreen
from tenantq.console.queue_lines import SETTING_COLUMNS, setting_rows
from tenantq.console.rate_history import pace, sparkline
from tenantq.console.state_screen import StateScreen
from tenantq.console.status_line import StatusLine
from tenantq.domain.formatting import show_age
from tenantq.domain.names import dead_letter_name
from tenantq.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from textual.app import ComposeResult

    from tenantq.console.state import ConsoleState
    from tenantq.wire import QueueReply

PAGE: Final = 50
_SPARK: Final = 16


class Pages:
    """A list that is read page by page, with the way back."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.cursors: list[str | None] = [None]  # of the pages up to the one that is shown
        self.next: str | None = None
        self.page: Page | NotGranted | None = None

    @property
    def where(self) -> str:
        """Return which page is shown, and whether there is more."""
        return (
            f"page {len(self.cursors)}{', n: next' if self.next else ''}{', b: back' if len(self.cursors) > 1 else ''}"
        )


class QueueScreen(StateScreen):
    """One queue. Figures are refreshed by themselves; messages when asked, for each look at them is in the audit trail."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("n", "page(1)", "next page", show=False),
        Binding("b", "page(-1)", "previous page", show=False),
        Binding("r", "reload", "read again"),
        Binding("p", "pause", "pause"),
        Binding("d", "redrive", "redrive"),
        Binding("x", "purge", "purge"),
        Binding("tab,right", "next_tab(1)", "next tab", show=False, priority=True),
        Binding("shift+tab,left", "next_tab(-1)", "previous tab", show=False, priority=True),
    ]

    def __init__(self, desk: ConsoleState, tenant: str, queue: QueueReply) -> None:
        super().__init__(desk)
        self._tenant = tenant
        self._queue = queue
        letters = str(queue.config.get("dead_letter") or dead_letter_name(queue.name))
        self._pages = {"messages": Pages(queue.name), "dead": Pages(letters)}

    def compose(self) -> ComposeResult:
        """Lay out figures and tabs."""
        yield Static("", classes="head", markup=False)
        with TabbedContent():
            with TabPane("Messages", id="messages"):
                yield LiveTable(MESSAGE_COLUMNS, empty="…", id="messages-table")
            with TabPane("Dead letters", id="dead"):
                yield LiveTable(DEAD_COLUMNS, empty="…", id="dead-table")
            with TabPane("Settings", id="settings"):
                yield LiveTable(SETTING_COLUMNS, id="settings-table")
        yield StatusLine()
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Read the first page."""
        super().on_mount()
        self.action_reload()

    def draw(self) -> None:
        """Show the figures as of the last refresh, and the pages that were read."""
        super().draw()
        gone = self.desk.queues is not None and self.desk.queue(self._queue.name) is None
        self._queue = self.desk.queue(self._queue.name) or self._queue
        self.query_one(".head", Static).update(self._figures() if not gone else f"{self._figures()}\nthe queue is gone")
        self.query_one("#settings-table", LiveTable).show(setting_rows(self._queue.config))
        now = self.desk.look.wall_ms if self.desk.look is not None else 0
        for tab, pages in self._pages.items():
            table = self.query_one(f"#{tab}-table", LiveTable)
            if pages.page is None:
                continue
            if isinstance(pages.page, NotGranted):
                table.show([], empty=NOT_GRANTED_TEXT)
            elif tab == "dead":
                table.show(dead_rows(pages.page.messages), empty="no dead letters")
            else:
                table.show(message_rows(pages.page.messages, now), empty="no messages wait")
            label = "Dead letters" if tab == "dead" else "Messages"
            self.query_one(TabbedContent).get_tab(tab).label = f"{label}, {pages.where}"

    @property
    def tab(self) -> str:
        """Which tab is shown."""
        return self.query_one(TabbedContent).active or "messages"

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Read what was not read yet."""
        event.stop()
        self.query_one(f"#{self.tab}-table", LiveTable).focus()
        pages = self._pages.get(self.tab)
        if pages is not None and pages.page is None:
            self.action_reload()

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        """Open the message."""
        event.stop()
        pages, key = self._pages.get(self.tab), self.query_one(f"#{self.tab}-table", LiveTable).current
        if pages is not None and key is not None:
            self.app.push_screen(MessageScreen(self.desk, self._tenant, self._queue.name, pages.queue, key))

    def action_next_tab(self, step: int) -> None:
        """Go to another tab."""
        ids = [*self._pages, "settings"]
        self.query_one(TabbedContent).active = ids[(ids.index(self.tab) + step) % len(ids)]

    @work(group="page", exclusive=True)
    async def action_reload(self) -> None:
        """Read the page that is shown again."""
        await self._read(self.tab)

    @work(group="page", exclusive=True)
    async def action_page(self, step: int) -> None:
        """Go to the next page, or back."""
        pages = self._pages.get(self.tab)
        if pages is None:
            return
        if step > 0 and pages.next is not None:
            pages.cursors.append(pages.next)
        elif step < 0 and len(pages.cursors) > 1:
            pages.cursors.pop()
        else:
            return
        await self._read(self.tab)

    @work(group="action", exclusive=True)
    async def action_pause(self) -> None:
        """Pause the queue, or let it deliver again."""
        await actions.pause_or_resume(actions.console_of(self), self._tenant, self._queue)

    @work(group="action", exclusive=True)
    async def action_redrive(self) -> None:
        """Send its dead letters back."""
        await actions.redrive(actions.console_of(self), self._tenant, self._queue.name)
        await self._read(self.tab)

    @work(group="action", exclusive=True)
    async def action_purge(self) -> None:
        """Empty the queue."""
        await actions.purge(actions.console_of(self), self._tenant, self._queue)
        await self._read(self.tab)

    async def _read(self, tab: str) -> None:
        pages = self._pages.get(tab)
        if pages is None:
            return
        console = actions.console_of(self)
        there = console.client.tenant(self._tenant).queue(pages.queue)
        page = await console.read(granted(_or_nothing(there.peek(PAGE, cursor=pages.cursors[-1]))))
        if page is not None and self.is_attached:
            pages.page = page
            pages.next = None if isinstance(page, NotGranted) else page.cursor
            self.draw()

    def _figures(self) -> str:
        queue, rates = self._queue, self.desk.rates
        added = f"{queue.name}/added"
        counts = f"ready {queue.ready:,}  delayed {queue.delayed:,}  leased {queue.in_flight:,}  dead {queue.dead:,}"
        oldest = f"oldest {show_age(queue.oldest_age_ms)}" if queue.oldest_age_ms else "nothing waits"
        trend = f"added {sparkline(rates.all(added), _SPARK)} {pace(rates.last(added))}/s"
        done = f"done {pace(rates.last(f'{queue.name}/done'))}/s"
        return (
            f"{self._tenant} / {queue.name}  {queue.status}\n{counts}  {size(queue.bytes)}  {oldest}\n{trend}  {done}"
        )


async def _or_nothing(reading: Awaitable[Page]) -> Page:
    """Return a page, or an empty one where the queue is not there yet: of dead letters, until the first one dies."""
    try:
        return await reading
    except NotFound:
        return Page([])
