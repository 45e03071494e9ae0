"""The security panel of the shown tenant: audit trail, keys, grants, compliance controls, and the rights of a principal."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

import msgspec
from rich.markup import escape
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import ContentSwitcher, Static

from tenantq.console import actions
from tenantq.console.context import console_of
from tenantq.console.dialogs import Dialog
from tenantq.console.live_table import LiveTable
from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted
from tenantq.console.panels import Panel
from tenantq.console.reader import PERMISSIONS_TENANTS_MAX, Permission
from tenantq.console.report_screen import show_access_review
from tenantq.console.security_rows import (
    AUDIT_COLUMNS,
    CONTROL_COLUMNS,
    GRANT_COLUMNS,
    KEY_COLUMNS,
    KEY_PRINCIPAL,
    TENANT_AUDIT_COLUMNS,
    AuditFilter,
    audit_key,
    audit_rows,
    control_rows,
    grant_rows,
    key_rows,
    next_filter,
    parse_filter,
)
from tenantq.console.state import ConsoleState
from tenantq.console.table import Row
from tenantq.console.tenant_settings import FormField
from tenantq.domain.formatting import plural, printable
from tenantq.wire.compliance import ControlItem

_VIEWS: Final = {"audit": "a audit", "keys": "k keys", "grants": "g grants", "controls": "l compliance"}


class PrincipalScreen(ModalScreen[None]):
    """A table of rights, read once, that can be revoked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "back"),
        Binding("v", "revoke", "revoke"),
        Binding("y", "review", "report"),
    ]

    def __init__(self, state: ConsoleState, principal: str) -> None:
        super().__init__()
        self._state = state
        self._principal = principal
        self._found: list[Permission] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -large") as dialog:
            dialog.border_title = escape(f"Rights of {self._principal}")
            dialog.border_subtitle = "v: revoke   y: report   Esc: back"
            yield Static("reading …", markup=False)
            yield LiveTable(GRANT_COLUMNS, empty="…")

    def on_mount(self) -> None:
        self.query_one(LiveTable).focus()
        self.read_permissions()

    @work(group="page", exclusive=True)
    async def read_permissions(self) -> None:
        """Read the rights from all tenants."""
        console = console_of(self)
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
        self.query_one(LiveTable).show(rows, empty="no rights")

    def action_review(self) -> None:
        show_access_review(self, self._state, self._principal)

    @work(group="action", exclusive=True)
    async def action_revoke(self) -> None:
        console = console_of(self)
        tenant, _, principal = (self.query_one(LiveTable).current or "").partition(" ")
        chosen = next((one for one in self._found if (one.tenant, one.grant.principal) == (tenant, principal)), None)
        if chosen is None:
            return
        if chosen.key_name is not None:
            key_id = principal.removeprefix(KEY_PRINCIPAL)
            done = await actions.revoke_key(console, tenant, key_id, chosen.key_name)
        elif chosen.from_token:
            done = await actions.revoke_tokens(console, tenant, principal)
        else:
            done = await actions.revoke_grant(console, tenant, principal)
        if done:
            self.read_permissions()


class SecurityPanel(Panel):
    """Four views: the audit trail, API keys, grants and compliance controls."""

    ENTER: ClassVar = Binding("enter", "", "rights of this principal in all tenants")
    _text = ""  # of the filter

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "view('audit')", "audit trail", show=False),
        Binding("k", "view('keys')", "keys", show=False),
        Binding("g", "view('grants')", "grants", show=False),
        Binding("l", "view('controls')", "compliance controls", show=False),
        Binding("f", "edit_filter", "trail", tooltip="filter the trail by principal, action or time"),
        Binding("c", "next_filter", "next filter: denied, changes, errors, all", show=False),
        Binding("o", "scope", "trail of this tenant, or of the platform", show=False),
        Binding("m", "older", "read older rows", show=False),
        Binding("w", "principal", "rights", tooltip="rights of this principal in all tenants"),
        Binding("v", "revoke", "revoke", tooltip="revoke the key or grant"),
    ]

    def compose(self) -> ComposeResult:
        yield Static("", id="security-head", markup=False)
        yield self.filter_input
        with ContentSwitcher(initial="audit"):
            yield LiveTable(AUDIT_COLUMNS, empty="…", id="audit")
            yield LiveTable(KEY_COLUMNS, empty="…", id="keys")
            yield LiveTable(GRANT_COLUMNS[1:], empty="…", id="grants")
            yield LiveTable(CONTROL_COLUMNS, empty="…", id="controls")
        yield Static("", id="row-details", markup=False)

    @property
    def table(self) -> LiveTable:
        """The table of the shown view."""
        return self.query_one(f"#{self.view}", LiveTable)

    @property
    def view(self) -> str:
        """The shown view."""
        return self.query_one(ContentSwitcher).current or "audit"

    def draw(self) -> None:
        state = self.state
        where = "the platform" if state.audit_filter.platform else state.tenant or ""
        self.border_title = f"Security of {where}" if where else "Security"
        names = {**_VIEWS, "controls": f"{_VIEWS['controls']}{self._failures()}"}
        tabs = "  ".join(f"[{name}]" if key == self.view else name for key, name in names.items())
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
        self._show("controls", security.compliance, control_rows(self._controls()), "no controls")
        self.draw_details()

    def draw_details(self) -> None:
        """Show the details of the audit row, or the failed evidence of the control, under the cursor."""
        details = ""
        if self.view == "audit":
            details = str((self._row() or {}).get("details") or "")
        elif self.view == "controls":
            control = next((one for one in self._controls() if one.control == self.table.current), None)
            failed = [f"{one.subject}: {one.text}" for one in (control.evidence if control else ()) if not one.passed]
            details = "; ".join(failed)
        self.query_one("#row-details", Static).update(printable(details))

    def _controls(self) -> Sequence[ControlItem]:
        security = self.state.security
        if security is None or isinstance(security.compliance, NotGranted):
            return ()
        return security.compliance.controls

    def _failures(self) -> str:
        """Return how many controls fail, for the head of every view."""
        failed = sum(one.status == "fail" for one in self._controls())
        return f" ■ {failed} failed" if failed else ""

    def filter_by(self, text: str) -> None:
        """Show only rows with ``text`` anywhere in them."""
        self._text = text.strip().lower()

    def on_data_table_row_highlighted(self, event: LiveTable.RowHighlighted) -> None:
        event.stop()
        self.draw_details()

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        event.stop()
        self.action_principal()

    def action_view(self, name: str) -> None:
        self.query_one(ContentSwitcher).current = name
        self.draw()
        self.table.focus()

    def action_scope(self) -> None:
        if not self.state.everyone:
            console_of(self).say("only platform administrators can read the audit trail of the platform")
            return
        old = self.state.audit_filter
        self._set_filter(msgspec.structs.replace(old, platform=not old.platform))

    def action_next_filter(self) -> None:
        self._set_filter(next_filter(self.state.audit_filter))

    @work(group="action", exclusive=True)
    async def action_edit_filter(self) -> None:
        old = self.state.audit_filter
        fields = [
            FormField("result", "result", old.result or "", "SUCCESS, DENIED, ERROR or empty"),
            FormField("back", "time range", old.shown_back(), "24h, 15m or empty"),
            FormField("principal", "principal", old.principal or "", "key:<id>, jwt:<subject>"),
            FormField("action", "action", old.action or "", "purge, create_key, …"),
            FormField("queue", "queue", old.queue or ""),
        ]
        check = partial(parse_filter, platform=old.platform)
        dialog = Dialog("Audit trail", "", fields, check, done="Show")
        wanted = await self.app.push_screen_wait(dialog)
        if wanted is not None:
            self._set_filter(wanted)

    @work(group="action", exclusive=True)
    async def action_older(self) -> None:
        """Read the next page of the trail. The trail is then not refreshed automatically."""
        console = console_of(self)
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
        principal = self._principal()
        if principal:
            await self.app.push_screen_wait(PrincipalScreen(self.state, principal))

    @work(group="action", exclusive=True)
    async def action_revoke(self) -> None:
        console = console_of(self)
        security, key = self.state.security, self.table.current
        if security is None or key is None or self.view in {"audit", "controls"}:
            console.say("select a key (k) or a grant (g) to revoke")
        elif self.view == "keys" and not isinstance(security.keys, NotGranted):
            name = next((one.name for one in security.keys if one.key_id == key), key)
            await actions.revoke_key(console, security.tenant, key, name)
        elif self.view == "grants":
            await actions.revoke_grant(console, security.tenant, key.partition(" ")[2])

    def _principal(self) -> str | None:
        key = self.table.current
        if key is None or self.view == "controls":
            return None
        if self.view == "keys":
            return f"key:{key}"
        if self.view == "grants":
            return key.partition(" ")[2]
        return str((self._row() or {}).get("principal") or "") or None

    def _row(self) -> dict[str, Any] | None:
        """Return the audit row under the cursor."""
        key = self.query_one("#audit", LiveTable).current
        return next((row for row in self.state.audit_rows() if audit_key(row) == key), None)

    def _set_filter(self, wanted: AuditFilter) -> None:
        self.state.audit_filter = wanted
        console_of(self).action_refresh_all()

    def _heading(self) -> str:
        if self.view == "audit":
            still = "; not refreshed, r: newest rows" if self.state.older else ""
            more = "; m: more" if self.state.audit_cursor is not None else ""
            return f"c: {self.state.audit_filter.described()}{still}{more}"
        if self.view == "controls":
            return "y: report"
        return "Enter: rights in all tenants   v: revoke"

    def _show(self, id: str, answer: object, rows: Sequence[Row], empty: str) -> None:
        table = self.query_one(f"#{id}", LiveTable)
        if isinstance(answer, NotGranted):
            table.show([], empty=NOT_GRANTED_TEXT)
            return
        text = self._text
        shown = [row for row in rows if not text or any(text in cell.text.lower() for cell in row.cells.values())]
        table.show(shown, empty=empty)
