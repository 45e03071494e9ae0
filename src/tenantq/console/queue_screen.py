"""The screens of a queue and of one of its messages."""

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static, TabbedContent, TabPane

from tenantq.client import Page
from tenantq.console import actions
from tenantq.console.context import console_of
from tenantq.console.live_table import LiveTable
from tenantq.console.message_rows import DEAD_COLUMNS, MESSAGE_COLUMNS, dead_rows, message_rows, message_text
from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted, or_not_granted
from tenantq.console.queue_rows import SETTING_COLUMNS, WORKER_COLUMNS, setting_rows, worker_rows
from tenantq.console.rate_history import show_rate, sparkline
from tenantq.console.state import ConsoleState
from tenantq.console.state_screen import StateScreen
from tenantq.domain.formatting import show_age, show_size
from tenantq.domain.names import dead_letter_name
from tenantq.errors import NotFound
from tenantq.wire.queues import QueueReply

PAGE: Final = 50
_SPARKLINE: Final = 16


class MessageScreen(StateScreen):
    """One message. A dead letter came from ``queue`` and is stored in ``stored_in``, otherwise both are the same queue."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("r", "reload", "reload"),
        Binding("d", "redrive", "redrive"),
        Binding("delete,x", "delete", "delete", key_display="x"),
    ]

    def __init__(self, state: ConsoleState, tenant: str, queue: str, stored_in: str, id: str) -> None:
        super().__init__(state)
        self._tenant = tenant
        self._queue = queue
        self._stored_in = stored_in
        self._message = id

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("…", id="message", markup=False)
        yield from self.compose_status()

    def on_mount(self) -> None:
        super().on_mount()
        self.action_reload()

    @work(group="page", exclusive=True)
    async def action_reload(self) -> None:
        console = console_of(self)
        tenant = console.client.tenant(self._tenant)
        message = await console.read(tenant.queue(self._stored_in).get(self._message))
        if message is None or not self.is_attached:
            return
        trace = await console.read(or_not_granted(tenant.queue(self._queue).trace(self._message)))
        if trace is not None and self.is_attached:
            self.query_one("#message", Static).update(message_text(message, trace))

    @work(group="action", exclusive=True)
    async def action_redrive(self) -> None:
        console = console_of(self)
        if self._stored_in == self._queue:
            console.say("this message is not a dead letter")
        else:
            await actions.redrive_messages(console, self._tenant, self._queue, [self._message])

    @work(group="action", exclusive=True)
    async def action_delete(self) -> None:
        if await actions.delete_message(console_of(self), self._tenant, self._stored_in, self._message):
            self.app.pop_screen()


@dataclass
class Pages:
    """A list of messages that is read page by page, forwards and back."""

    label: str
    queue: str
    cursors: list[str | None] = field(default_factory=lambda: [None])  # of the pages up to the shown one
    next: str | None = None
    page: Page | NotGranted | None = None

    @property
    def title(self) -> str:
        """The label of the tab, with the number of the page and the keys that lead to others."""
        back, forward = len(self.cursors) > 1, self.next is not None
        return f"{self.label}, page {len(self.cursors)}{', n: next' if forward else ''}{', b: back' if back else ''}"


class QueueScreen(StateScreen):
    """One queue. Figures are refreshed automatically, messages only on request because each peek is in the audit trail."""

    PAGE_BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "find", "find", tooltip="find a message by its ID"),
        Binding("delete", "delete", "delete", show=False, tooltip="delete the message under the cursor"),
        Binding("n", "page(1)", "next page of the queue", show=False),
        Binding("b", "page(-1)", "previous page of the queue", show=False),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        *PAGE_BINDINGS,
        Binding("r", "reload", "reload"),
        *actions.QUEUE_BINDINGS,
        Binding("tab,right", "next_tab(1)", "next tab", show=False, priority=True),
        Binding("shift+tab,left", "next_tab(-1)", "previous tab", show=False, priority=True),
    ]

    def __init__(self, state: ConsoleState, tenant: str, queue: QueueReply) -> None:
        super().__init__(state)
        self._tenant = tenant
        self._queue = queue
        letters = str(queue.config.get("dead_letter") or dead_letter_name(queue.name))
        self._pages = {"messages": Pages("Messages", queue.name), "dead": Pages("Dead letters", letters)}

    def compose(self) -> ComposeResult:
        yield Static("", classes="head", markup=False)
        with TabbedContent():
            with TabPane("Messages", id="messages"):
                yield LiveTable(MESSAGE_COLUMNS, empty="…", id="messages-table")
            with TabPane("Dead letters", id="dead"):
                yield LiveTable(DEAD_COLUMNS, empty="…", id="dead-table")
            with TabPane("Workers", id="workers"):
                yield LiveTable(WORKER_COLUMNS, id="workers-table")
            with TabPane("Settings", id="settings"):
                yield LiveTable(SETTING_COLUMNS, id="settings-table")
        yield from self.compose_status()

    def on_mount(self) -> None:
        super().on_mount()
        self.action_reload()

    def draw(self) -> None:
        super().draw()
        state = self.state
        found = state.queue(self._queue.name)
        gone = "\nthis queue no longer exists" if state.queues is not None and found is None else ""
        self._queue = found or self._queue
        self.query_one(".head", Static).update(f"{self._figures()}{gone}")
        self.query_one("#settings-table", LiveTable).show(setting_rows(self._queue.config))
        workers = [one for one in state.workers or () if one.queue == self._queue.name]
        empty = NOT_GRANTED_TEXT if state.workers is None else "no workers in the last minute"
        self.query_one("#workers-table", LiveTable).show(worker_rows(workers, state.now_ms), empty=empty)
        self.query_one(TabbedContent).get_tab("workers").label = f"Workers, {len(workers)}"
        for tab, pages in self._pages.items():
            if pages.page is None:
                continue
            table = self.query_one(f"#{tab}-table", LiveTable)
            if isinstance(pages.page, NotGranted):
                table.show([], empty=NOT_GRANTED_TEXT)
            elif tab == "dead":
                table.show(dead_rows(pages.page.messages), empty="no dead letters")
            else:
                table.show(message_rows(pages.page.messages, state.now_ms), empty="no waiting messages")
            self.query_one(TabbedContent).get_tab(tab).label = pages.title

    @property
    def tab(self) -> str:
        """The tab that is shown."""
        return self.query_one(TabbedContent).active or "messages"

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        event.stop()
        self.query_one(f"#{self.tab}-table", LiveTable).focus()
        pages = self._pages.get(self.tab)
        if pages is not None and pages.page is None:
            self.action_reload()

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        event.stop()
        pages, key = self._pages.get(self.tab), self.query_one(f"#{self.tab}-table", LiveTable).current
        if pages is not None and key is not None:
            self.app.push_screen(MessageScreen(self.state, self._tenant, self._queue.name, pages.queue, key))

    def action_next_tab(self, step: int) -> None:
        ids = [*self._pages, "workers", "settings"]
        self.query_one(TabbedContent).active = ids[(ids.index(self.tab) + step) % len(ids)]

    @work(group="page", exclusive=True)
    async def action_reload(self) -> None:
        await self._read(self.tab)

    @work(group="page", exclusive=True)
    async def action_page(self, step: int) -> None:
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
    async def action_find(self) -> None:
        """Open the message whose ID the user types. It may be waiting, leased or a dead letter."""
        console = console_of(self)
        id = await actions.ask_message_id(console, self._queue.name)
        if id is None:
            return
        for pages in self._pages.values():
            queue = console.client.tenant(self._tenant).queue(pages.queue)
            found = await console.read(_exists(queue.get(id)))
            if found is None:  # an error, which was reported
                return
            if found:
                self.app.push_screen(MessageScreen(self.state, self._tenant, self._queue.name, pages.queue, id))
                return
        console.say(f"{id}: no such message in {self._queue.name} or its dead letters", "warning")

    @work(group="action", exclusive=True)
    async def action_delete(self) -> None:
        pages, key = self._pages.get(self.tab), self.query_one(f"#{self.tab}-table", LiveTable).current
        console = console_of(self)
        if pages is not None and key and await actions.delete_message(console, self._tenant, pages.queue, key):
            await self._read(self.tab)

    @work(group="action", exclusive=True)
    async def action_queue(self, name: str) -> None:
        """Run one of the queue actions, and read again what it changed."""
        await actions.QUEUE_ACTIONS[name](console_of(self), self._tenant, self._queue)
        if name != "pause":
            await self._read(self.tab)

    async def _read(self, tab: str) -> None:
        pages = self._pages.get(tab)
        if pages is None:
            return
        console = console_of(self)
        queue = console.client.tenant(self._tenant).queue(pages.queue)
        page = await console.read(or_not_granted(_or_empty(queue.peek(PAGE, cursor=pages.cursors[-1]))))
        if page is not None and self.is_attached:
            pages.page = page
            pages.next = None if isinstance(page, NotGranted) else page.cursor
            self.draw()

    def _figures(self) -> str:
        queue, rates = self._queue, self.state.rates
        added = f"{queue.name}/added"
        counts = f"ready {queue.ready:,}  delayed {queue.delayed:,}  leased {queue.in_flight:,}  dead {queue.dead:,}"
        oldest = f"oldest {show_age(queue.oldest_age_ms)}" if queue.oldest_age_ms else "no waiting messages"
        trend = f"added {sparkline(rates.all(added), _SPARKLINE)} {show_rate(rates.last(added))}/s"
        done = f"done {show_rate(rates.last(f'{queue.name}/done'))}/s"
        return f"{self._tenant} / {queue.name} (id {queue.id})  {queue.status}\n{counts}  {show_size(queue.bytes)}  {oldest}\n{trend}  {done}"


async def _exists(reading: Awaitable[object]) -> bool:
    try:
        await reading
    except NotFound:
        return False
    return True


async def _or_empty(reading: Awaitable[Page]) -> Page:
    """Return a page, or an empty one if the queue does not exist. A dead-letter queue is created with its first message."""
    try:
        return await reading
    except NotFound:
        return Page([])
