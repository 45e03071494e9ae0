"""A panel of the main screen: a frame, a table, and a filter that opens with a slash."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from tenantq.console.live_table import LiveTable
from tenantq.console.state import ConsoleState


class Panel(Vertical):
    """Subclasses lay out a ``filter_input`` and tables, show their part of the state in ``draw``, and filter in ``filter_by``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter"),
        Binding("escape", "show_all", "clear filter", show=False),
    ]

    def __init__(self, state: ConsoleState, id: str, *, active: bool = False) -> None:
        super().__init__(id=id, classes="panel -active" if active else "panel")
        self.state = state
        text = "type to filter; Esc clears it"
        self.filter_input = Input(placeholder=text, compact=True, classes="filter")
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
        """Open the filter."""
        self.filter_input.display = True
        self.filter_input.focus()

    def action_show_all(self) -> None:
        """Close the filter and show all rows."""
        self.filter_input.value = ""
        self.filter_input.display = False
        self.table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        event.stop()
        self.filter_by(event.value)
        self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and go to the rows."""
        event.stop()
        event.input.display = bool(event.value)
        self.table.focus()
