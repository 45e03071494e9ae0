"""Dialogs: questions and forms, the choice of a tenant, and the list of keys."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Generic, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from tenantq.console.table import show_count
from tenantq.console.tenant_rows import NUMBERED, TenantSummary, arrange, health_cell
from tenantq.console.tenant_settings import FormField
from tenantq.domain.names import check_tenant_name
from tenantq.errors import Invalid

T = TypeVar("T")

_SHOWN_MAX: Final = 200
_NAME_CHARS: Final = 32
_KEY_NAMES: Final = {"question_mark": "?", "slash": "/", "escape": "Esc"}
_WIDTH: Final = 18


class Dialog(ModalScreen[T | None], Generic[T]):
    """Returns what ``check`` returns for the typed texts, by field name, or None if the user cancels.

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
        if event.input is self.query(Input).last():
            self.action_submit()
        else:
            self.focus_next(Input)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self._close(submit=event.button.id == "done")

    def action_answer(self, yes: bool) -> None:  # noqa: FBT001  # a binding names it
        """Answer a question by a key. Fields take these keys as text."""
        if not self._form_fields:
            self._close(submit=yes)

    def action_submit(self) -> None:
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


class TokenScreen(ModalScreen[None]):
    """Shows a token that cannot be shown again. Only ``y`` closes it, because Enter or Esc may be pressed by mistake."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss", "close"),
        Binding("c", "copy", "copy"),
    ]

    def __init__(self, title: str, text: str, token: str) -> None:
        super().__init__()
        self._title, self._text, self._token = title, text, token

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            dialog.border_subtitle = "c: copy   y: I have stored it"
            yield Static(f"{self._text}\n\n{self._token}", markup=False)

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self._token)


class TenantSwitcher(ModalScreen[str | None]):
    """Returns a name, or None. Accepts full names that are not listed, because a credential may have grants in unlisted tenants."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel"),
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
    ]

    def __init__(self, tenants: Sequence[TenantSummary], current: str | None) -> None:
        super().__init__()
        self._tenants = tenants
        self._current = current

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Switch tenant"
            dialog.border_subtitle = "type to filter   Enter: select   Esc: cancel"
            yield Input(placeholder="part of the name", compact=True)
            options = OptionList(id="choices")
            options.can_focus = False
            yield options

    def on_mount(self) -> None:
        self._fill("")
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the highlighted tenant, or the typed name."""
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            self.dismiss(options.get_option_at_index(options.highlighted).id)
            return
        try:
            self.dismiss(check_tenant_name(event.value.strip()))
        except Invalid as refusal:
            self.notify(refusal.message, severity="error", markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if options.option_count:
            options.highlighted = ((options.highlighted or 0) + step) % options.option_count

    def _fill(self, text: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        found = arrange(self._tenants, "name", reverse=False, text=text)[:_SHOWN_MAX]
        options.add_options([Option(_described(one), id=one.name) for one in found])
        if found:
            names = [one.name for one in found]
            options.highlighted = names.index(self._current) if self._current in names and not text else 0


def _described(tenant: TenantSummary) -> Text:
    number = str(tenant.number) if tenant.number <= NUMBERED else " "
    backlog = f"{show_count(tenant.backlog)} stored" if tenant.backlog is not None else ""
    return Text(f"{number}  {tenant.name:{_NAME_CHARS}}  {health_cell(tenant.health).text:11} {backlog}")


class HelpScreen(ModalScreen[None]):
    """All keys, by the part of the console that handles them. The texts are those of the bindings."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "back")]

    def __init__(self, bindings: Mapping[str, Sequence[BindingType]]) -> None:
        super().__init__()
        self._by_place = bindings

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Keys"
            dialog.border_subtitle = "Esc: back"
            parts = [
                "\n".join([place, *map(_key_line, filter(_has_text, keys))]) for place, keys in self._by_place.items()
            ]
            parts.append("'not granted' marks what this credential cannot see. The audit trail records every action.")
            yield Static("\n\n".join(parts), markup=False)


def _has_text(binding: BindingType) -> bool:
    return isinstance(binding, Binding) and bool(binding.description)


def _key_line(binding: BindingType) -> str:
    assert isinstance(binding, Binding)
    name = binding.key.split(",")[0]
    key = binding.key_display or _KEY_NAMES.get(name) or (name.title() if name[1:] else name)
    return f"  {key:{_WIDTH}} {binding.tooltip or binding.description}"
