"""The rights of one principal in all tenants that the credential can read."""

from __future__ import annotations

from typing import ClassVar

from rich.markup import escape
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from tenantq.console import actions
from tenantq.console.live_table import LiveTable
from tenantq.console.reader import PERMISSIONS_TENANTS_MAX, Permission
from tenantq.console.security_rows import GRANT_COLUMNS, KEY_PRINCIPAL, grant_rows
from tenantq.console.state import ConsoleState
from tenantq.domain.formatting import plural, printable


class PrincipalScreen(ModalScreen[None]):
    """A table of rights, read once, that can be revoked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "back"),
        Binding("v", "revoke", "revoke"),
    ]

    def __init__(self, state: ConsoleState, principal: str) -> None:
        super().__init__()
        self._state = state
        self._principal = principal
        self._found: list[Permission] = []

    def compose(self) -> ComposeResult:
        """Lay out the table."""
        with Vertical(classes="dialog -large") as dialog:
            dialog.border_title = escape(f"Rights of {self._principal}")
            dialog.border_subtitle = "v: revoke   Esc: back"
            yield Static("reading …", markup=False)
            yield LiveTable(GRANT_COLUMNS, empty="…")

    def on_mount(self) -> None:
        """Read."""
        self.query_one(LiveTable).focus()
        self.read_permissions()

    @work(group="page", exclusive=True)
    async def read_permissions(self) -> None:
        """Read the rights from all tenants."""
        console = actions.console_of(self)
        names = [one.name for one in self._state.tenants][:PERMISSIONS_TENANTS_MAX]
        found = await console.read(console.reader.permissions(self._principal, names))
        if found is None or not self.is_attached:
            return
        self._found = found
        for key_name in (one.key_name for one in found if one.key_name):
            self.query_one(".dialog").border_title = escape(printable(f"Rights of {key_name} ({self._principal})"))
        left = len(self._state.tenants) - len(names)
        text = f"{plural(len(found), 'right')} in {plural(len(names), 'tenant')}"
        self.query_one(Static).update(f"{text}; {plural(left, 'tenant')} not read" if left else text)
        rows = grant_rows((one.tenant, one.grant) for one in found)
        self.query_one(LiveTable).show(rows, empty="no stored rights; a JWT or certificate may carry a role")

    @work(group="action", exclusive=True)
    async def action_revoke(self) -> None:
        """Revoke the right under the cursor."""
        console = actions.console_of(self)
        tenant, _, principal = (self.query_one(LiveTable).current or "").partition(" ")
        chosen = next((one for one in self._found if (one.tenant, one.grant.principal) == (tenant, principal)), None)
        if chosen is None:
            return
        if chosen.key_name is not None:
            key_id = principal.removeprefix(KEY_PRINCIPAL)
            done = await actions.revoke_key(console, tenant, key_id, chosen.key_name)
        else:
            done = await actions.revoke_grant(console, tenant, principal)
        if done:
            self.read_permissions()
