"""The dialog that selects a tenant by a part of its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from tenantq.console.table import show_count
from tenantq.console.tenant_rows import NUMBERED, TenantSummary, arrange, health_cell
from tenantq.domain.names import check_tenant_name
from tenantq.errors import Invalid

_SHOWN_MAX: Final = 200
_NAME_CHARS: Final = 32


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
        """Lay out the field and the list."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Switch tenant"
            dialog.border_subtitle = "type to filter   Enter: select   Esc: cancel"
            yield Input(placeholder="part of the name", compact=True)
            options = OptionList(id="choices")
            options.can_focus = False
            yield options

    def on_mount(self) -> None:
        """Show all tenants."""
        self._fill("")
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the tenants that match."""
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
        """Return the clicked tenant."""
        self.dismiss(event.option_id)

    def action_move(self, step: int) -> None:
        """Highlight the next or the previous tenant."""
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
