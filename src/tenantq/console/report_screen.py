"""The screen of a report, which can be saved, and the reports about a tenant or a principal."""

from __future__ import annotations

import io
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.widgets import Markdown

from tenantq.console.context import console_of
from tenantq.console.not_granted import NOT_GRANTED_TEXT
from tenantq.console.reader import PERMISSIONS_TENANTS_MAX
from tenantq.console.reports import (
    access_report,
    compliance_report,
    controls_report,
    document,
    usage_hours,
    usage_report,
)
from tenantq.console.security_rows import ACCESS_CHANGES, FILTERS, KEY_PRINCIPAL, AuditFilter
from tenantq.console.state import ConsoleState
from tenantq.console.state_screen import StateScreen

USAGE_ROWS_MAX: Final = 20_000
"""Journal rows that a report reads. Each page is one request."""
CHANGES_MAX: Final = 1_000
DENIED: Final = FILTERS[0]
USAGE: Final = AuditFilter(action="add,ack", back_ms=DENIED.back_ms)


class ReportScreen(StateScreen):
    """A report that ``read`` returns as Markdown. ``file_stem`` is the name of the saved file without ``.md``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("r", "reload", "reload"),
        Binding("s", "save", "save as Markdown"),
    ]

    def __init__(self, state: ConsoleState, file_stem: str, read: Callable[[], Awaitable[str]]) -> None:
        super().__init__(state)
        self._file_stem = file_stem
        self._read_report = read
        self._text = ""

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="report"):
            yield Markdown("reading …", open_links=False)
        yield from self.compose_status()

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#report").focus()
        self.action_reload()

    @work(group="page", exclusive=True)
    async def action_reload(self) -> None:
        text = await console_of(self).read(self._read_report())
        if not self.is_attached:
            return
        if text is not None:
            self._text = text
            await self.query_one(Markdown).update(text)
        elif not self._text:
            self.app.pop_screen()

    def action_save(self) -> None:
        """Save the report in the current directory, or download it in a browser."""
        if self._text:
            self.app.deliver_text(
                io.StringIO(self._text),
                save_directory=Path.cwd(),
                save_filename=f"{self._file_stem}.md",
                mime_type="text/markdown",
            )


REPORT_BINDINGS: Final = [
    Binding("h", "app.report('usage')", "usage", show=False, tooltip="usage over time, as a report"),
    Binding("y", "app.report('compliance')", "compliance", show=False, tooltip="compliance report"),
]
"""The keys of a screen about the shown tenant."""


def show_report(node: DOMNode, state: ConsoleState, name: str) -> None:
    """Show a report about the shown tenant; the compliance of the platform while the audit trail is the platform's."""
    console = console_of(node)
    tenant, reader = state.tenant, console.reader
    if tenant is None:
        console.say(f"{NOT_GRANTED_TEXT}: this credential cannot read its tenant")
        return

    async def usage() -> str:
        (rows, cut), view = await reader.audit_rows(tenant, USAGE, USAGE_ROWS_MAX), await reader.view(tenant)
        security, now_ms = await reader.security(tenant, DENIED), reader.clock.wall_ms()
        return usage_report(view, security, usage_hours(rows, now_ms), cut=cut, now_ms=now_ms)

    async def compliance() -> str:
        changes, _ = await reader.audit_rows(tenant, FILTERS[1], CHANGES_MAX)
        denied, _ = await reader.audit_rows(tenant, DENIED, USAGE_ROWS_MAX)
        found, security = await console.client.tenant(tenant).compliance(), await reader.security(tenant, DENIED)
        return compliance_report(found, security, denied, changes, reader.clock.wall_ms())

    async def platform_compliance() -> str:
        return document(*controls_report(await console.client.platform().compliance()))

    if name == "compliance" and state.audit_filter.platform:
        node.app.push_screen(ReportScreen(state, "compliance-platform", platform_compliance))
    else:
        node.app.push_screen(ReportScreen(state, f"{name}-{tenant}", usage if name == "usage" else compliance))


def show_access_review(node: DOMNode, state: ConsoleState, principal: str) -> None:
    """Show a report about a principal in all tenants."""
    console = console_of(node)
    reader = console.reader

    async def review() -> str:
        found = await reader.permissions(principal, [one.name for one in state.tenants][:PERMISSIONS_TENANTS_MAX])
        scope = msgspec.structs.replace(DENIED, principal=principal, platform=state.everyone)
        denied, _ = await reader.audit_rows(state.tenant or "", scope, USAGE_ROWS_MAX)
        scope = AuditFilter(action=ACCESS_CHANGES, platform=state.everyone)
        changes, _ = await reader.audit_rows(state.tenant or "", scope, CHANGES_MAX)
        about = [row for row in changes if principal.removeprefix(KEY_PRINCIPAL) in str(row.get("details") or "")]
        return access_report(principal, found, denied, about, reader.clock.wall_ms())

    stem = re.sub(r"[^\w.-]+", "-", f"access-{principal}")
    node.app.push_screen(ReportScreen(state, stem, review))
