"""What the three panels of the main screen have in common: a frame, a table, and a filter that opens with a slash."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from tenantq.console.live_table import LiveTable

if TYPE_CHECKING:
    from tenantq.console.state import ConsoleState


class FilterInput(Input):
    """A field that is there only while something is filtered."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "show_all", "end filter", show=False)]

    def __init__(self) -> None:
        super().__init__(placeholder="filter: type a part of it; Esc ends it", compact=True, classes="filter")
        self.display = False

    def action_show_all(self) -> None:
        """Show everything again."""
        self.value = ""
        self.display = False
        if isinstance(self.parent, Panel):
            self.parent.table.focus()


class Panel(Vertical):
    """One panel. ``draw`` shows what the desk has."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter"),
        Binding("escape", "show_all", "end filter", show=False),
    ]

    def __init__(self, desk: ConsoleState, id: str, *, active: bool = False) -> None:
        super().__init__(id=id, classes="panel -active" if active else "panel")
        self.desk = desk

    @property
    def table(self) -> LiveTable:
        """The table that has the focus when the panel has."""
        return self.query_one(LiveTable)

    def draw(self) -> None:
        """Show what the desk has."""
        raise NotImplementedError

    def filter_by(self, text: str) -> None:
        """Show only what contains ``text``."""
        raise NotImplementedError

    def action_filter(self) -> None:
        """Open the filter."""
        field = self.query_one(FilterInput)
        field.display = True
        field.focus()

    def action_show_all(self) -> None:
        """End the filter."""
        self.query_one(FilterInput).action_show_all()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        event.stop()
        self.filter_by(event.value)
        self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and go to what it left."""
        event.stop()
        event.input.display = bool(event.value)
        self.table.focus()
