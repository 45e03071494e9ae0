"""The state of the console: the last refresh, the selection, and whether the server answers."""

from typing import Any

from tenantq.console.not_granted import NotGranted, known
from tenantq.console.queue_rows import totals, truncation_note
from tenantq.console.rate_history import RateHistory
from tenantq.console.reader import TENANTS_MAX, UNNAMED, ConsoleSnapshot, SecurityView, TenantView
from tenantq.console.security_rows import FILTERS
from tenantq.console.tenant_rows import SORT_KEYS, SortKey, TenantSummary, arrange, summary_line, tenant_totals
from tenantq.domain.formatting import plural, printable, show_time
from tenantq.errors import TenantqError, Unavailable
from tenantq.wire.alerts import AlertItem
from tenantq.wire.queues import QueueReply, WorkerItem


def error_line(error: TenantqError) -> str:
    """Return an error and its code in one line."""
    return printable(f"{' '.join(error.message.split())} [{error.code}]")


class ConsoleState:
    """Screens read the state; the app changes it."""

    def __init__(self, url: str, selected: str | None = None) -> None:
        self.url = url
        self.selected = selected  # None: the reader decides
        self.sort: SortKey = "name"
        self.reverse = False
        self.tenant_filter = ""
        self.queue_filter = ""
        self.audit_filter = FILTERS[0]
        self.snapshot: ConsoleSnapshot | None = None
        self.security: SecurityView | None = None
        self.older: list[dict[str, Any]] = []  # further pages of the audit trail
        self.older_cursor: str | None = None
        self.rates = RateHistory()
        self.tenant_rates = RateHistory()
        self.problem = ""  # why the figures are old; empty if they are not
        self._rates_of: str | None = None

    @property
    def tenant(self) -> str | None:
        """The name of the shown tenant. None if there is none, or if the credential may not see the name."""
        if self.view is None:
            return self.selected
        return None if self.view.name == UNNAMED else self.view.name

    @property
    def view(self) -> TenantView | None:
        """The shown tenant."""
        return self.snapshot.view if self.snapshot is not None else None

    @property
    def now_ms(self) -> int:
        """The wall clock at the last refresh."""
        return self.snapshot.wall_ms if self.snapshot is not None else 0

    @property
    def everyone(self) -> bool:
        """Whether the credential sees all tenants."""
        return self.snapshot is not None and self.snapshot.everyone

    @property
    def tenants(self) -> list[TenantSummary]:
        """All tenants."""
        return self.snapshot.tenants if self.snapshot is not None else []

    @property
    def shown_tenants(self) -> list[TenantSummary]:
        """The tenants that pass the filter, in the order chosen."""
        return arrange(self.tenants, self.sort, reverse=self.reverse, text=self.tenant_filter)

    @property
    def queues(self) -> list[QueueReply] | NotGranted | None:
        """The queues of the shown tenant; None before the first refresh."""
        return self.view.queues if self.view is not None else None

    def queue(self, name: str | None) -> QueueReply | None:
        """Return a queue of the shown tenant, or None if it does not exist."""
        queues = known(self.queues) if self.queues is not None else None
        return next((queue for queue in queues or () if queue.name == name), None)

    def update(self, snapshot: ConsoleSnapshot) -> None:
        """Apply a refresh."""
        self.snapshot = snapshot
        self.problem = ""
        self.tenant_rates.read(tenant_totals(snapshot.tenants), snapshot.listed_at_ms)
        view = snapshot.view
        if view is None or isinstance(view.queues, NotGranted):
            return
        if view.name != self._rates_of:
            self.rates, self._rates_of = RateHistory(), view.name
        self.rates.read(totals(view.queues), snapshot.at_ms)

    def failed(self, error: TenantqError) -> None:
        """Record that a refresh failed and the shown figures are old."""
        if isinstance(error, Unavailable):
            self.problem = f"cannot reach {self.url}; retrying"
        else:
            self.problem = error_line(error)
        if self.snapshot is not None:
            self.problem += f"; figures from {show_time(self.snapshot.wall_ms)[11:19]} UTC"

    def choose(self, tenant: str) -> None:
        """Select another tenant for the next refresh."""
        self.selected = tenant
        self.queue_filter = ""
        self.security = None
        self.forget_older()

    def forget_older(self) -> None:
        """Forget further pages of the audit trail."""
        self.older, self.older_cursor = [], None

    def next_sort(self) -> None:
        """Sort by the next column."""
        self.sort = SORT_KEYS[(SORT_KEYS.index(self.sort) + 1) % len(SORT_KEYS)]
        self.reverse = False

    def sort_by(self, key: str) -> None:
        """Sort by a column, or reverse the order if it is already sorted by that column."""
        for sort in SORT_KEYS:
            if sort == key:
                self.reverse = not self.reverse if self.sort == sort else False
                self.sort = sort

    def audit_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the audit trail that were read, newest first."""
        if self.security is None or isinstance(self.security.audit, NotGranted):
            return []
        return [*self.security.audit.rows, *self.older]

    @property
    def audit_cursor(self) -> str | None:
        """The cursor of the next page of the audit trail; None if there is none."""
        if self.older:
            return self.older_cursor
        audit = known(self.security.audit) if self.security is not None else None
        return audit.cursor if audit is not None else None

    @property
    def workers(self) -> list[WorkerItem] | None:
        """The workers of the shown tenant; None if they are unknown."""
        return known(self.security.workers) if self.security is not None else None

    @property
    def alerts(self) -> list[AlertItem] | NotGranted | None:
        """The active alerts; None before they were read."""
        return self.security.alerts if self.security is not None else None

    def title(self) -> str:
        """Return the title of the screen: time, server, number of tenants and alerts."""
        if self.snapshot is None:
            return f"tenantq  {self.url}"
        cut = truncation_note(self.tenants, TENANTS_MAX, None)
        at = f"{show_time(self.snapshot.wall_ms)[11:19]} UTC"
        alerts = len(known(self.alerts) or ()) if self.alerts is not None else 0
        noted = [f"{plural(alerts, 'alert')} (A)"] if alerts else []
        return "  ".join(["tenantq", at, self.url, summary_line(self.tenants), *noted, *([cut] if cut else [])])
