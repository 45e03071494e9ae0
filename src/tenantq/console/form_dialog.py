"""A form: some fields to type into, checked before it closes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from tenantq.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult

    from tenantq.console.tenant_settings import Field

T = TypeVar("T")


class FormDialog(ModalScreen[T | None], Generic[T]):
    """Returns what ``check`` makes of the texts, by field name, or None where it was left. What ``check`` refuses is said in the form."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave"),
        Binding("ctrl+s", "submit", "done"),
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    def __init__(
        self, title: str, text: str, fields: Sequence[Field], check: Callable[[dict[str, str]], T], *, done: str
    ) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._form_fields = fields
        self._check = check
        self._done = done

    def compose(self) -> ComposeResult:
        """Lay out the fields."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            dialog.border_subtitle = "Enter: next   Ctrl+S: done   Esc: leave"
            if self._text:
                yield Static(self._text, markup=False)
            with VerticalScroll(can_focus=False):
                for field in self._form_fields:
                    with Horizontal(classes="field"):
                        yield Label(field.label, markup=False)
                        yield Input(field.value, placeholder=field.hint, name=field.name, compact=True)
            yield Static("", id="refusal", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Leave it", id="leave", compact=True)
                yield Button(self._done, id="done", variant="warning", compact=True)

    def on_mount(self) -> None:
        """Begin with the first field."""
        self.query(Input).first().focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the next field; after the last one it is done."""
        if event.input is self.query(Input).last():
            self.action_submit()
        else:
            self.focus_next(Input)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Leave, or be done."""
        if event.button.id == "done":
            self.action_submit()
        else:
            self.dismiss(None)

    def action_leave(self) -> None:
        """Leave; nothing is changed."""
        self.dismiss(None)

    def action_submit(self) -> None:
        """Check what was typed; say what is wrong, or be done."""
        typed = {str(one.name): one.value for one in self.query(Input)}
        try:
            result = self._check(typed)
        except Invalid as refusal:
            self.query_one("#refusal", Static).update(refusal.message)
            return
        self.dismiss(result)
