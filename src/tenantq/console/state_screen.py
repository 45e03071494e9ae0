"""A screen that shows what the desk has, and is drawn anew with each refresh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen

from tenantq.console.status_line import StatusLine

if TYPE_CHECKING:
    from tenantq.console.state import ConsoleState


class StateScreen(Screen[None]):
    """Subclasses say in ``draw`` what they show."""

    def __init__(self, desk: ConsoleState) -> None:
        super().__init__()
        self.desk = desk

    def draw(self) -> None:
        """Show what the desk has, and whether it is old."""
        self.query_one(StatusLine).say(self.desk.trouble)
        self.set_class(bool(self.desk.trouble), "-old")

    def on_mount(self) -> None:
        """Show at once what is known."""
        self.draw()
