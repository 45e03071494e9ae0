"""The screen of a message: facts, deliveries, body if granted, and its trace in the journal."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from tenantq.console import actions
from tenantq.console.message_rows import message_text
from tenantq.console.not_granted import or_not_granted
from tenantq.console.state import ConsoleState
from tenantq.console.state_screen import StateScreen


class MessageScreen(StateScreen):
    """One message. A dead letter came from ``queue`` and is stored in ``stored_in``, otherwise both are the same queue."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("r", "reload", "reload"),
        Binding("d", "redrive", "redrive"),
    ]

    def __init__(self, state: ConsoleState, tenant: str, queue: str, stored_in: str, id: str) -> None:
        super().__init__(state)
        self._tenant = tenant
        self._queue = queue
        self._stored_in = stored_in
        self._message = id

    def compose(self) -> ComposeResult:
        """Lay out the text."""
        with VerticalScroll():
            yield Static("…", id="message", markup=False)
        yield from self.compose_status()

    def on_mount(self) -> None:
        """Read the message."""
        super().on_mount()
        self.action_reload()

    @work(group="page", exclusive=True)
    async def action_reload(self) -> None:
        """Read the message again."""
        console = actions.console_of(self)
        tenant = console.client.tenant(self._tenant)
        message = await console.read(tenant.queue(self._stored_in).get(self._message))
        if message is None or not self.is_attached:
            return
        trace = await console.read(or_not_granted(tenant.queue(self._queue).trace(self._message)))
        if trace is not None and self.is_attached:
            self.query_one("#message", Static).update(message_text(message, trace))

    @work(group="action", exclusive=True)
    async def action_redrive(self) -> None:
        """Redrive this dead letter."""
        console = actions.console_of(self)
        if self._stored_in == self._queue:
            console.say("this message is not a dead letter")
        else:
            await actions.redrive_messages(console, self._tenant, self._queue, [self._message])
