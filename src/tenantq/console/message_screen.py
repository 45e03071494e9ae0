"""One message: facts, deliveries, body where it may be read, and its trace in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from tenantq.console import actions
from tenantq.console.answers import granted
from tenantq.console.message_lines import message_text
from tenantq.console.state_screen import StateScreen
from tenantq.console.status_line import StatusLine

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from tenantq.console.state import ConsoleState


class MessageScreen(StateScreen):
    """``queue`` is where it came from, ``place`` the queue that it lies in, which for a dead letter is another."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("r", "reload", "read again"),
        Binding("d", "redrive", "redrive this one"),
    ]

    def __init__(self, desk: ConsoleState, tenant: str, queue: str, place: str, id: str) -> None:
        super().__init__(desk)
        self._tenant = tenant
        self._queue = queue
        self._place = place
        self._message = id

    def compose(self) -> ComposeResult:
        """Lay out the text."""
        with VerticalScroll():
            yield Static("…", id="message", markup=False)
        yield StatusLine()
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Read it."""
        super().on_mount()
        self.action_reload()

    @work(group="page", exclusive=True)
    async def action_reload(self) -> None:
        """Read it again."""
        console = actions.console_of(self)
        tenant = console.client.tenant(self._tenant)
        message = await console.read(tenant.queue(self._place).get(self._message))
        if message is None or not self.is_attached:
            return
        trace = await console.read(granted(tenant.queue(self._queue).trace(self._message)))
        if trace is not None and self.is_attached:
            self.query_one("#message", Static).update(message_text(message, trace))

    @work(group="action", exclusive=True)
    async def action_redrive(self) -> None:
        """Send this dead letter back where it came from."""
        console = actions.console_of(self)
        if self._place == self._queue:
            console.say("this is no dead letter")
        else:
            await actions.redrive(console, self._tenant, self._queue, [self._message])
