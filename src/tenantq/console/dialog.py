"""A dialog: a question, and fields to fill in if it has any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from tenantq.console.tenant_settings import FormField
from tenantq.errors import Invalid

T = TypeVar("T")


class Dialog(ModalScreen[T | None], Generic[T]):
    """Returns what ``check`` makes of the fields' texts, by field name, or None if the user cancels.

    The dialog shows the message if ``check`` raises Invalid. Without fields it is a question: ``y`` and ``n`` answer it, and
    Enter alone cancels.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel"),
        Binding("ctrl+s", "submit", "done"),
        Binding("y", "answer(True)", "yes"),
        Binding("n", "answer(False)", "no"),
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    def __init__(
        self, title: str, text: str, fields: Sequence[FormField], check: Callable[[dict[str, str]], T], *, done: str
    ) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._form_fields = fields
        self._check = check
        self._done = done

    def compose(self) -> ComposeResult:
        """Lay out text, fields and buttons."""
        has_fields = bool(self._form_fields)
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            if self._text:
                yield Static(self._text, markup=False)
            if has_fields:
                dialog.border_subtitle = "Enter: next   Ctrl+S: done   Esc: cancel"
                with VerticalScroll(can_focus=False):
                    for field in self._form_fields:
                        with Horizontal(classes="field"):
                            yield Label(field.label, markup=False)
                            yield Input(field.value, placeholder=field.hint, name=field.name, compact=True)
                yield Static("", id="refusal", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Cancel" if has_fields else "Cancel (n)", id="leave", compact=True)
                done = self._done if has_fields else f"{self._done} (y)"
                yield Button(done, id="done", variant="warning", compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the next field, or submit after the last one."""
        if event.input is self.query(Input).last():
            self.action_submit()
        else:
            self.focus_next(Input)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Submit or cancel."""
        self._close(submit=event.button.id == "done")

    def action_answer(self, yes: bool) -> None:  # noqa: FBT001  # a binding names it
        """Answer a question by a key. Fields take these keys as text."""
        if not self._form_fields:
            self._close(submit=yes)

    def action_submit(self) -> None:
        """Check the fields; close the dialog, or show what is wrong."""
        try:
            result = self._check({str(one.name): one.value for one in self.query(Input)})
        except Invalid as refusal:
            self.query_one("#refusal", Static).update(refusal.message)
            return
        self.dismiss(result)

    def _close(self, *, submit: bool) -> None:
        if submit:
            self.action_submit()
        else:
            self.dismiss(None)
