"""Sign-ups that wait for a decision, and templates for the shown tenant."""

from __future__ import annotations

from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from tenantq.console import actions
from tenantq.console.context import console_of
from tenantq.console.live_table import LiveTable, ReadTable
from tenantq.console.not_granted import NOT_GRANTED_TEXT
from tenantq.console.report_screen import ReportScreen
from tenantq.console.state_screen import StateScreen
from tenantq.console.table import Cell, Column, Row, Tone, row_of, time_column
from tenantq.domain.formatting import dotted, preview, printable
from tenantq.wire.templates import AppliedItem, TemplateItem

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHANGE_CHARS: Final = 48
_TONES: Final[dict[str, Tone]] = {"created": "good", "changed": "warning", "unchanged": "dim", "refused": "critical"}

SIGNUP_COLUMNS: Final = (
    time_column("created_at", "since", 3),
    Column("tenant", "tenant", 16, 0, lambda one: Cell(one.tenant), width_max=24),
    Column("contact", "contact", 18, 1, lambda one: Cell(preview(one.contact.encode())), width_max=32),
    Column("plan", "plan", 8, 2, lambda one: Cell(one.plan or "default", "" if one.plan else "dim"), width_max=12),
    Column("remote", "from", 15, 5, lambda one: Cell(one.remote), width_max=39),
    Column("note", "note", 16, 4, lambda one: Cell(preview(one.note.encode(), 80)), width_max=80),
)
TEMPLATE_COLUMNS: Final = (
    Column("name", "template", 16, 0, lambda one: Cell(one.name), width_max=32),
    Column("owner", "owner", 12, 1, lambda one: Cell(one.owner or "(platform)"), width_max=32),
    Column("queues", "queues", 6, 2, lambda one: Cell(str(len(one.queues))), right=True),
    Column("description", "description", 22, 3, lambda one: Cell(preview(one.description.encode(), 80)), width_max=80),
    Column("shared", "shared with", 12, 4, lambda one: Cell(", ".join(one.shared_with)), width_max=40),
)
APPLIED_COLUMNS: Final = (
    Column("queue", "queue", 16, 1, lambda one, _: Cell(one.queue or "(tenant)"), width_max=32),
    Column("outcome", "outcome", 9, 2, lambda one, _: Cell(one.outcome, _TONES[one.outcome])),
    Column("change", "setting", 36, 0, lambda _, text: Cell(printable(text)), width_max=_CHANGE_CHARS),
)


def applied_rows(applied: Sequence[AppliedItem]) -> list[Row]:
    """Return a row for each changed setting, and at least one for each queue."""
    return [
        row_of(APPLIED_COLUMNS, f"{one.queue} {number}", one, line)
        for one in applied
        for number, line in enumerate(
            [f"{name} = {value}" for name, value in dotted(one.changes)] or wrap(one.error, _CHANGE_CHARS) or [""]
        )
    ]


class ApplyScreen(ModalScreen[None]):
    """What a template would change in a tenant, and after ``y`` what it changed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back"), Binding("y", "apply", "apply")]

    def __init__(self, tenant: str, template: TemplateItem) -> None:
        super().__init__()
        self._tenant, self._template = tenant, template
        self._is_offered = False  # the dry run is on the screen

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -large") as dialog:
            dialog.border_title = f"Template {self._template.name} for tenant {self._tenant}"
            dialog.border_subtitle = "Esc: back"
            yield Static("reading …", markup=False)
            yield LiveTable(APPLIED_COLUMNS, id="applied", empty="…")

    def on_mount(self) -> None:
        self._call_server(dry_run=True)

    def action_apply(self) -> None:
        if self._is_offered:
            self._is_offered = False
            self._call_server(dry_run=False)

    @work(group="page", exclusive=True)
    async def _call_server(self, *, dry_run: bool) -> None:
        console, template = console_of(self), self._template
        call = console.client.tenant(self._tenant).apply_template(template.name, owner=template.owner, dry_run=dry_run)
        found = await (console.read(call) if dry_run else console.perform(call, lambda _: f"applied {template.name}"))
        if not self.is_attached:
            return
        if found is None:
            self.dismiss()
            return
        counts = actions.show_outcomes(found)
        self.query_one(Static).update(f"Dry run: {counts}. y: apply" if dry_run else f"Applied: {counts}")
        self.query_one(LiveTable).show(applied_rows(found), empty="the template is empty")
        self._is_offered = dry_run


class OnboardingScreen(StateScreen):
    """Tables of sign-ups and templates."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,O,shift+o", "app.pop_screen", "back"),
        Binding("a", "signup('approve')", "approve", tooltip="approve a sign-up: asks for plan and template"),
        Binding("j", "signup('reject')", "reject", tooltip="reject a sign-up: asks for a reason"),
        Binding("w", "show_template", "show", tooltip="show a template"),
        Binding("p", "apply_template", "apply", tooltip="apply a template: shows the changes first"),
    ]

    def compose(self) -> ComposeResult:
        console, tenant = console_of(self), self.state.tenant
        client, ask = console.client, console.reader.ask
        # administrators of the platform may apply any template
        scope = client.platform() if tenant is None or self.state.everyone else client.tenant(tenant)
        yield Static("Pending sign-ups. Press Enter to approve", classes="head", markup=False)
        signups = partial(ask, "signups", "", client.platform().signups)
        yield ReadTable(SIGNUP_COLUMNS, lambda one: one.id, signups, nothing="no sign-ups", id="signups")
        whose, keys = (f" of tenant {tenant}", ", Enter to show one") if tenant else ("", "")
        yield Static(f"Templates{whose}. Press Tab to select them{keys}", classes="head", markup=False)
        templates = partial(ask, "templates", tenant or "", scope.templates)
        yield ReadTable(
            TEMPLATE_COLUMNS, lambda one: f"{one.owner} {one.name}", templates, nothing="no templates", id="templates"
        )
        yield from self.compose_status()

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        event.stop()
        if event.data_table.id == "signups":
            self.action_signup("approve")
        else:
            self.action_show_template()

    def action_signup(self, name: str) -> None:
        # The app runs it: a screen that is closed would cancel the call whose reply has the only copy of the token.
        self.app.run_worker(self._decide(name), group="signup")

    async def _decide(self, name: str) -> None:
        table = self.query_one("#signups", ReadTable)
        if table.item is not None:
            decide = actions.approve_signup if name == "approve" else actions.reject_signup
            await decide(console_of(self), table.item)
            if table.is_attached:
                table.reload()

    def action_show_template(self) -> None:
        template = self.query_one("#templates", ReadTable).item
        if template is None:
            return

        async def read() -> str:
            """Return the template as an indented block, which its texts cannot end."""
            lines = msgspec.json.format(msgspec.json.encode(template)).decode().splitlines()
            return "\n".join([f"# Template {template.name}", "", *(f"    {printable(line)}" for line in lines)])

        self.app.push_screen(ReportScreen(self.state, f"template-{template.name}", read))

    def action_apply_template(self) -> None:
        template, tenant = self.query_one("#templates", ReadTable).item, self.state.tenant
        if tenant is None:
            console_of(self).say(f"{NOT_GRANTED_TEXT}: this credential cannot read its tenant")
        elif template is not None:
            self.app.push_screen(ApplyScreen(tenant, template))
