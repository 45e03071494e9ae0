"""A screen that shows the console's state, and is drawn again after each refresh."""

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer, Static

from tenantq.console.state import ConsoleState


class StateScreen(Screen[None]):
    """Subclasses show their part of the state in ``draw``, and end their layout with ``compose_status``."""

    def __init__(self, state: ConsoleState) -> None:
        super().__init__()
        self.state = state

    def compose_status(self) -> ComposeResult:
        """Lay out the line that says why the figures are old, and the keys."""
        status = Static("", markup=False, classes="status")
        status.display = False
        yield status
        yield Footer(show_command_palette=False, compact=True)

    def draw(self) -> None:
        """Show whether the figures are old, and why."""
        problem = self.state.problem
        status = self.query_one(".status", Static)
        status.display = bool(problem)
        status.update(f"⚠ {problem}" if problem else "")
        self.set_class(bool(problem), "-old")

    def on_mount(self) -> None:
        self.draw()
