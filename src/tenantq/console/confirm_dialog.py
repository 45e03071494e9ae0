"""A question that is answered with yes or no."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

if TYPE_CHECKING:
    from textual.app import ComposeResult


class ConfirmDialog(ModalScreen[bool]):
    """Ask; ``yes`` is what the button says. Whoever just presses Enter says no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape", "answer(False)", "no"),
    ]

    def __init__(self, title: str, text: str, yes: str) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._yes = yes

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            yield Static(self._text, markup=False)
            with Horizontal(classes="buttons"):
                yield Button("No, leave it (n)", id="no", compact=True)
                yield Button(f"{self._yes} (y)", id="yes", variant="warning", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Take the answer."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001  # a binding names it
        """Take the answer from a key."""
        self.dismiss(answer)
