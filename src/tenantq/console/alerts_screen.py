"""The active alerts of the tenants that the credential sees and of the platform, and the containments that the server started because of them."""

from functools import partial
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from tenantq.console import actions
from tenantq.console.context import console_of
from tenantq.console.live_table import LiveTable, ReadTable
from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted
from tenantq.console.state_screen import StateScreen
from tenantq.console.table import Cell, Column, Row, row_of, time_column
from tenantq.domain.formatting import plural, printable
from tenantq.wire.alerts import AlertItem


def _severity(alert: AlertItem) -> Cell:
    return Cell("silenced", "dim") if alert.silenced else Cell(alert.severity, alert.severity)


ALERT_COLUMNS: Final = (
    time_column("since", "since", 4),
    Column("severity", "severity", 10, 1, _severity),
    Column("tenant", "tenant", 16, 2, lambda one: Cell(one.tenant or "(platform)"), width_max=32),
    Column("kind", "kind", 12, 3, lambda one: Cell(one.kind.replace("_", " "))),
    Column("queue", "queue", 8, 5, lambda one: Cell(one.queue), width_max=24),
    Column("text", "alert", 24, 0, lambda one: Cell(printable(one.text)), width_max=70),
)
CONTAINMENT_COLUMNS: Final = (
    Column("action", "contained", 15, 0, lambda one: Cell(one.action.replace("_", " "))),
    Column("state", "state", 8, 3, lambda one: Cell("dry run", "dim") if one.dry_run else Cell("in force", "warning")),
    time_column("until", "until", 2),
    Column("tenant", "tenant", 12, 5, lambda one: Cell(one.tenant or "(platform)"), width_max=32),
    Column("principal", "principal", 18, 1, lambda one: Cell(printable(one.principal)), width_max=24, keeps_end=True),
    Column("why", "because of", 16, 4, lambda one: Cell(f"{one.alert.replace('_', ' ')}: {printable(one.text)}"), width_max=80),
)  # fmt: skip


def alert_rows(alerts: list[AlertItem]) -> list[Row]:
    """Return a row for each alert, identified by its subject."""
    return [row_of(ALERT_COLUMNS, f"{one.tenant} {one.kind} {one.queue} {one.detail}", one) for one in alerts]


class AlertsScreen(StateScreen):
    """Tables of alerts and containments. Silences and thresholds are settings of a tenant."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,A,shift+a", "app.pop_screen", "back"),
        Binding("s", "alerts('silence')", "silence", tooltip="silence the tenant's alerts"),
        Binding("u", "alerts('unsilence')", "unsilence", tooltip="send the tenant's alerts again"),
        Binding("v", "release", "release", tooltip="release a containment: asks first"),
    ]

    def compose(self) -> ComposeResult:
        yield Static("", classes="head", markup=False)
        yield LiveTable(ALERT_COLUMNS, empty="…", id="alerts")
        yield Static("Containments. Press Tab to select them", classes="head", markup=False)
        console = console_of(self)
        read = partial(console.reader.ask, "containments", "", console.client.platform().containments)
        # As for an alert, the tenant comes first in the key.
        yield ReadTable(
            CONTAINMENT_COLUMNS,
            lambda one: f"{one.tenant} {one.id}",
            read,
            nothing="no containments",
            id="containments",
        )
        yield from self.compose_status()

    def draw(self) -> None:
        super().draw()
        alerts, table = self.state.alerts, self.query_one("#alerts", LiveTable)
        if alerts is None or isinstance(alerts, NotGranted):
            table.show([], empty="…" if alerts is None else NOT_GRANTED_TEXT)
            return
        self.query(".head").first(Static).update(f"{plural(len(alerts), 'active alert')}. Enter: show the tenant")
        table.show(alert_rows(alerts), empty="no active alerts")

    def on_data_table_row_selected(self, event: LiveTable.RowSelected) -> None:
        event.stop()
        if tenant := self._tenant():
            self.app.pop_screen()
            console_of(self).choose(tenant)

    @work(group="action", exclusive=True)
    async def action_alerts(self, name: str) -> None:
        console, tenant = console_of(self), self._tenant()
        if not tenant:
            console.say("select a row with a tenant")
        else:
            await (actions.silence if name == "silence" else actions.unsilence)(console, tenant)

    @work(group="action", exclusive=True)
    async def action_release(self) -> None:
        table = self.query_one("#containments", ReadTable)
        if table.item is not None:
            await actions.release_containment(console_of(self), table.item)
            table.reload()

    def _tenant(self) -> str:
        table = self.focused if isinstance(self.focused, LiveTable) else self.query_one("#alerts", LiveTable)
        return (table.current or "").partition(" ")[0]
