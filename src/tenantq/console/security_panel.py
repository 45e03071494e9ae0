"""The security panel of the shown tenant: audit trail, keys, grants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

import msgspec
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher, Static

from tenantq.console import actions
from tenantq.console.dialog import Dialog
from tenantq.console.live_table import LiveTable
from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted
from tenantq.console.panel import Panel
from tenantq.console.principal_screen import PrincipalScreen
from tenantq.console.security_rows import (
    AUDIT_COLUMNS,
    GRANT_COLUMNS,
    KEY_COLUMNS,
    TENANT_AUDIT_COLUMNS,
    AuditFilter,
    audit_key,
    audit_rows,
    grant_rows,
    key_rows,
    next_filter,
    parse_filter,
)
from tenantq.console.table import Row
from tenantq.console.tenant_settings import FormField

_VIEWS: Final = {"audit": "a audit", "keys": "k keys", "grants": "g grants"}


class SecurityPanel(Panel):
    """Three views: the audit trail, API keys and grants."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "view('audit')", "audit", show=False),
        Binding("k", "view('keys')", "keys", show=False),
        Binding("g", "view('grants')", "grants", show=False),
        Binding("f", "edit_filter", "filter trail"),
        Binding("c", "next_filter", "denied, changes, …", show=False),
        Binding("o", "scope", "platform", show=False),
        Binding("m", "older", "more", show=False),
        Binding("w", "principal", "rights"),
        Binding("v", "revoke", "revoke"),
    ]

    def compose(self) -> ComposeResult:
        """Lay out the three views."""
        yield Static("", id="security-head", markup=False)
        yield self.filter_input
        with ContentSwitcher(initial="audit"):
            yield LiveTable(AUDIT_COLUMNS, empty="…", id="audit")
            yield LiveTable(KEY_COLUMNS, empty="…", id="keys")
            yield LiveTable(GRANT_COLUMNS[1:], empty="…", id="grants")

    def on_mount(self) -> None:
        """Start without a filter."""
        self._text = ""

    @property
    def table(self) -> LiveTable:
        """The table of the shown view."""
        return self.query_one(f"#{self.view}", LiveTable)

    @property
    def view(self) -> str:
        """The shown view."""
        return self.query_one(ContentSwitcher).current or "audit"

    def draw(self) -> None:
        """Show what is known about the tenant."""
        state = self.state
        where = "the platform" if state.audit_filter.platform else state.tenant or ""
        self.border_title = f"Security of {where}" if where else "Security"
        tabs = "  ".join(f"[{name}]" if key == self.view else name for key, name in _VIEWS.items())
        self.query_one("#security-head", Static).update(f"{tabs}\n{self._heading()}")
        security = state.security
        if security is None:
            for table in self.query(LiveTable):
                table.show([], empty="…" if state.tenant is not None or state.snapshot is None else NOT_GRANTED_TEXT)
            return
        self.query_one("#audit", LiveTable).use(AUDIT_COLUMNS if state.audit_filter.platform else TENANT_AUDIT_COLUMNS)
        self._show("audit", security.audit, audit_rows(state.audit_rows(), state.now_ms), "no matching rows")
        keys = [] if isinstance(security.keys, NotGranted) else key_rows(security.keys, state.now_ms)
        self._show("keys", security.keys, keys, "no keys")
        grants = [] if isinstance(security.grants, NotGranted) else security.grants
        self._show("grants", security.grants, grant_rows((security.tenant, one) for one in grants), "no grants")

    def filter_by(self, text: str) -> None:
        """Show only rows with ``text`` anywhere in them."""
        self._text = text.strip().lower()

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        """Show the rights of the principal of this row."""
        event.stop()
        self.action_principal()

    def action_view(self, name: str) -> None:
        """Show another view."""
        self.query_one(ContentSwitcher).current = name
        self.draw()
        self.table.focus()

    def action_scope(self) -> None:
        """Switch between the trail of the tenant and of the whole platform."""
        if not self.state.everyone:
            actions.console_of(self).say("only platform administrators can read the audit trail of the platform")
            return
        old = self.state.audit_filter
        self._set_filter(msgspec.structs.replace(old, platform=not old.platform))

    def action_next_filter(self) -> None:
        """Switch to the next predefined filter."""
        self._set_filter(next_filter(self.state.audit_filter))

    @work(group="action", exclusive=True)
    async def action_edit_filter(self) -> None:
        """Ask for a filter of the trail."""
        old = self.state.audit_filter
        fields = [
            FormField("result", "result", old.result or "", "SUCCESS, DENIED or ERROR; empty: all"),
            FormField("back", "time range", old.shown_back(), "24h, 15m; empty: all"),
            FormField("principal", "principal", old.principal or "", "key:<id>, jwt:<subject>"),
            FormField("action", "action", old.action or "", "purge, create_key, …"),
            FormField("queue", "queue", old.queue or ""),
        ]
        check = partial(parse_filter, platform=old.platform)
        dialog = Dialog("Audit trail", "", fields, check, done="Show")
        wanted = await actions.console_of(self).push_screen_wait(dialog)
        if wanted is not None:
            self._set_filter(wanted)

    @work(group="action", exclusive=True)
    async def action_older(self) -> None:
        """Read the next page of the trail. The trail is then not refreshed automatically."""
        console = actions.console_of(self)
        security, tenant, cursor = self.state.security, self.state.tenant, self.state.audit_cursor
        if security is None or tenant is None or isinstance(security.audit, NotGranted):
            return
        if cursor is None:
            console.say("no older rows")
            return
        reading = console.reader.audit(console.client.tenant(tenant), self.state.audit_filter, cursor)
        page = await console.read(reading)
        if page is not None and security is self.state.security:
            self.state.older += page.rows
            self.state.older_cursor = page.cursor
            self.draw()

    @work(group="action", exclusive=True)
    async def action_principal(self) -> None:
        """Show the rights of a principal in all tenants."""
        principal = self._principal()
        if principal:
            await actions.console_of(self).push_screen_wait(PrincipalScreen(self.state, principal))

    @work(group="action", exclusive=True)
    async def action_revoke(self) -> None:
        """Revoke the key or grant under the cursor."""
        console = actions.console_of(self)
        security, key = self.state.security, self.table.current
        if security is None or key is None or self.view == "audit":
            console.say("choose a key (k) or a grant (g) to revoke")
        elif self.view == "keys" and not isinstance(security.keys, NotGranted):
            name = next((one.name for one in security.keys if one.key_id == key), key)
            await actions.revoke_key(console, security.tenant, key, name)
        elif self.view == "grants":
            await actions.revoke_grant(console, security.tenant, key.partition(" ")[2])

    def _principal(self) -> str | None:
        key = self.table.current
        if key is None:
            return None
        if self.view == "keys":
            return f"key:{key}"
        if self.view == "grants":
            return key.partition(" ")[2]
        found = (str(row.get("principal") or "") for row in self.state.audit_rows() if audit_key(row) == key)
        return next(found, "") or None

    def _set_filter(self, wanted: AuditFilter) -> None:
        self.state.audit_filter = wanted
        actions.console_of(self).action_refresh_all()

    def _heading(self) -> str:
        if self.view == "audit":
            still = "; not refreshed, r: newest rows" if self.state.older else ""
            more = "; m: more" if self.state.audit_cursor is not None else ""
            return f"c: {self.state.audit_filter.described()}{still}{more}"
        return "Enter: rights in all tenants   v: revoke"

    def _show(self, id: str, answer: object, rows: Sequence[Row], empty: str) -> None:
        table = self.query_one(f"#{id}", LiveTable)
        if isinstance(answer, NotGranted):
            table.show([], empty=NOT_GRANTED_TEXT)
            return
        text = self._text
        shown = [row for row in rows if not text or any(text in cell.text.lower() for cell in row.cells.values())]
        table.show(shown, empty=empty)
