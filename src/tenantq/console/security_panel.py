"""The security of the tenant that is shown: audit trail, keys, grants."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from textual import work
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher, Static

from tenantq.console import actions
from tenantq.console.answers import NOT_GRANTED_TEXT, NotGranted
from tenantq.console.form_dialog import FormDialog
from tenantq.console.live_table import LiveTable
from tenantq.console.panel import FilterInput, Panel
from tenantq.console.principal_screen import PrincipalScreen
from tenantq.console.security import (
    AUDIT_COLUMNS,
    GRANT_COLUMNS,
    KEY_COLUMNS,
    TENANT_AUDIT_COLUMNS,
    audit_rows,
    grant_rows,
    key_rows,
    next_filter,
    parse_filter,
)
from tenantq.console.tenant_settings import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from tenantq.console.cells import Row
    from tenantq.console.reader import Security
    from tenantq.console.security import AuditFilter

_VIEWS: Final = {"audit": "a audit", "keys": "k keys", "grants": "g grants"}


class SecurityPanel(Panel):
    """Who did what, and who may."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "view('audit')", "audit", show=False),
        Binding("k", "view('keys')", "keys", show=False),
        Binding("g", "view('grants')", "grants", show=False),
        Binding("f", "ask", "which rows"),
        Binding("c", "next_filter", "denied, changes, …", show=False),
        Binding("o", "scope", "platform", show=False),
        Binding("m", "older", "more", show=False),
        Binding("w", "who", "who may"),
        Binding("v", "revoke", "revoke"),
    ]

    def compose(self) -> ComposeResult:
        """Lay out the three views."""
        yield Static("", id="security-head", markup=False)
        yield FilterInput()
        with ContentSwitcher(initial="audit"):
            yield LiveTable(AUDIT_COLUMNS, empty="…", id="audit")
            yield LiveTable(KEY_COLUMNS, empty="…", id="keys")
            yield LiveTable(GRANT_COLUMNS[1:], empty="…", id="grants")

    def on_mount(self) -> None:
        """Begin with nothing filtered."""
        self._text = ""

    @property
    def table(self) -> LiveTable:
        """The table of the view that is shown."""
        return self.query_one(f"#{self.view}", LiveTable)

    @property
    def view(self) -> str:
        """Which of the three is shown."""
        return self.query_one(ContentSwitcher).current or "audit"

    def draw(self) -> None:
        """Show what is known of the tenant."""
        desk = self.desk
        where = "the platform" if desk.audit_filter.platform else desk.tenant or ""
        self.border_title = f"Security of {where}" if where else "Security"
        tabs = "  ".join(f"[{name}]" if key == self.view else name for key, name in _VIEWS.items())
        self.query_one("#security-head", Static).update(f"{tabs}\n{self._what()}")
        security = desk.security
        if security is None:
            for table in self.query(LiveTable):
                table.show([], empty="…" if desk.tenant is not None or desk.look is None else NOT_GRANTED_TEXT)
            return
        now = desk.look.wall_ms if desk.look is not None else 0
        self.query_one("#audit", LiveTable).use(AUDIT_COLUMNS if desk.audit_filter.platform else TENANT_AUDIT_COLUMNS)
        self._show("audit", security.audit, audit_rows(desk.audit_rows(), now), "no such rows")
        keys = [] if isinstance(security.keys, NotGranted) else key_rows(security.keys, now)
        self._show("keys", security.keys, keys, "no keys")
        grants = [] if isinstance(security.grants, NotGranted) else security.grants
        self._show("grants", security.grants, grant_rows((security.tenant, one) for one in grants), "no grants")

    def filter_by(self, text: str) -> None:
        """Show only rows with ``text`` anywhere in them."""
        self._text = text.strip().lower()

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        """Tell what whoever is in this row may do."""
        event.stop()
        self.action_who()

    def action_view(self, name: str) -> None:
        """Show another of the three."""
        self.query_one(ContentSwitcher).current = name
        self.draw()
        self.table.focus()

    def action_scope(self) -> None:
        """Show the trail of the whole platform, or of the tenant alone."""
        if not self.desk.everyone:
            actions.console_of(self).say("only platform administrators see the trail of the platform")
            return
        old = self.desk.audit_filter
        self._ask_for(msgspec.structs.replace(old, platform=not old.platform))

    def action_next_filter(self) -> None:
        """Show what was denied, changed, failed, or everything."""
        self._ask_for(next_filter(self.desk.audit_filter))

    @work(group="action", exclusive=True)
    async def action_ask(self) -> None:
        """Ask which rows of the trail are wanted."""
        old = self.desk.audit_filter
        hours = f"{old.back_ms // 3_600_000}h" if old.back_ms and old.back_ms >= 3_600_000 else ""
        fields = [
            Field("result", "result", old.result or "", "SUCCESS, DENIED or ERROR; empty: all"),
            Field(
                "back",
                "how far back",
                hours or (f"{old.back_ms // 60_000}m" if old.back_ms else ""),
                "24h, 15m; empty: all",
            ),
            Field("principal", "who", old.principal or "", "key:<id>, jwt:<subject>"),
            Field("action", "what", old.action or "", "purge, create_key, …"),
            Field("queue", "queue", old.queue or ""),
        ]
        dialog = FormDialog(
            "Audit trail", "", fields, lambda typed: parse_filter(typed, platform=old.platform), done="Show"
        )
        wanted = await actions.console_of(self).push_screen_wait(dialog)
        if wanted is not None:
            self._ask_for(wanted)

    @work(group="action", exclusive=True)
    async def action_older(self) -> None:
        """Read the next page of the trail; it stands still from then on, until it is refreshed by hand."""
        console = actions.console_of(self)
        security, tenant = self.desk.security, self.desk.tenant
        if security is None or tenant is None or isinstance(security.audit, NotGranted):
            return
        cursor = self.desk.older_cursor if self.desk.older else security.audit.cursor
        if cursor is None:
            console.say("there are no older rows")
            return
        reading = console.reader.audit(console.client.tenant(tenant), self.desk.audit_filter, cursor)
        page = await console.read(reading)
        if page is not None and security is self.desk.security:
            self.desk.older += page.rows
            self.desk.older_cursor = page.cursor
            self.draw()

    @work(group="action", exclusive=True)
    async def action_who(self) -> None:
        """Show what a principal may do in all tenants."""
        principal = self._principal()
        if principal:
            await actions.console_of(self).push_screen_wait(PrincipalScreen(self.desk, principal))

    @work(group="action", exclusive=True)
    async def action_revoke(self) -> None:
        """Revoke the key or grant under the cursor."""
        console = actions.console_of(self)
        security, key = self.desk.security, self.table.current
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
        for row in self.desk.audit_rows():
            if f"{row.get('shard')}/{row.get('seq')}/{row.get('n')}" == key:
                return str(row.get("principal") or "") or None
        return None

    def _ask_for(self, wanted: AuditFilter) -> None:
        self.desk.audit_filter = wanted
        actions.console_of(self).refresh_all()

    def _what(self) -> str:
        security = self.desk.security
        if self.view == "audit":
            still = "; stands still, r goes back to the newest" if self.desk.older else ""
            more = "; m: more" if self._has_more(security) else ""
            return f"c: {self.desk.audit_filter.described()}{still}{more}"
        return "Enter: where else   v: revoke"

    def _has_more(self, security: Security | None) -> bool:
        if self.desk.older:
            return self.desk.older_cursor is not None
        return security is not None and not isinstance(security.audit, NotGranted) and security.audit.cursor is not None

    def _show(self, id: str, answer: object, rows: Sequence[Row], empty: str) -> None:
        table = self.query_one(f"#{id}", LiveTable)
        if isinstance(answer, NotGranted):
            table.show([], empty=NOT_GRANTED_TEXT)
            return
        text = self._text
        shown = [row for row in rows if not text or any(text in cell.text.lower() for cell in row.cells.values())]
        table.show(shown, empty=empty)
