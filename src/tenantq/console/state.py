"""What the console knows at the moment: the last refresh, what is chosen, and whether the server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.console.answers import NotGranted, is_out_of_reach, one_line
from tenantq.console.overview import SORT_KEYS, SortKey, TenantLine, arranged, in_short
from tenantq.console.queue_lines import cut_short, totals
from tenantq.console.rate_history import RateHistory
from tenantq.console.reader import TENANTS_MAX, UNNAMED
from tenantq.console.security import FILTERS
from tenantq.domain.formatting import show_time

if TYPE_CHECKING:
    from typing import Any

    from tenantq.console.reader import Security, Snapshot
    from tenantq.errors import TenantqError
    from tenantq.wire import QueueReply


class ConsoleState:
    """The state of one console. Screens read it; the app changes it."""

    def __init__(self, url: str, selected: str | None = None) -> None:
        self.url = url
        self.selected = selected  # None: the reader decides
        self.sort: SortKey = "name"
        self.reverse = False
        self.tenant_text = ""  # filters
        self.queue_text = ""
        self.audit_filter = FILTERS[0]
        self.look: Snapshot | None = None
        self.security: Security | None = None
        self.older: list[dict[str, Any]] = []  # further pages of the audit trail, which then stands still
        self.older_cursor: str | None = None
        self.rates = RateHistory()
        self.trouble = ""  # why the figures are old; nothing: they are not
        self._rates_of: str | None = None

    @property
    def tenant(self) -> str | None:
        """The tenant that is shown; None: there is none, or the credential may not learn its name."""
        if self.look is None or self.look.view is None:
            return self.selected
        return None if self.look.view.name == UNNAMED else self.look.view.name

    @property
    def everyone(self) -> bool:
        """Whether the credential sees all tenants."""
        return self.look is not None and self.look.everyone

    @property
    def lines(self) -> list[TenantLine]:
        """All tenants."""
        return self.look.tenants if self.look is not None else []

    @property
    def shown_lines(self) -> list[TenantLine]:
        """The tenants that pass the filter, in the order chosen."""
        return arranged(self.lines, self.sort, reverse=self.reverse, text=self.tenant_text)

    @property
    def queues(self) -> list[QueueReply] | NotGranted | None:
        """The queues of the tenant that is shown; None: nothing came yet."""
        return self.look.view.queues if self.look is not None and self.look.view is not None else None

    def queue(self, name: str) -> QueueReply | None:
        """Return a queue of the tenant that is shown, if it is there."""
        queues = self.queues
        if queues is None or isinstance(queues, NotGranted):
            return None
        return next((queue for queue in queues if queue.name == name), None)

    def took(self, look: Snapshot) -> None:
        """Take over a refresh."""
        self.look = look
        self.trouble = ""
        view = look.view
        if view is None or isinstance(view.queues, NotGranted):
            return
        if view.name != self._rates_of:
            self.rates, self._rates_of = RateHistory(), view.name
        self.rates.read(totals(view.queues), look.at_ms)

    def failed(self, error: TenantqError) -> None:
        """Take note of a refresh that failed: what is shown is old now."""
        if is_out_of_reach(error):
            self.trouble = f"cannot reach {self.url}, trying again"
        else:
            self.trouble = one_line(error)
        if self.look is not None:
            self.trouble += f"; figures are of {show_time(self.look.wall_ms)[11:19]} UTC"

    def choose(self, tenant: str) -> None:
        """Show another tenant from the next refresh on."""
        self.selected = tenant
        self.queue_text = ""
        self.security = None
        self.forget_older()

    def forget_older(self) -> None:
        """Show the newest rows of the trail again."""
        self.older, self.older_cursor = [], None

    def next_sort(self) -> None:
        """Sort by the next column."""
        self.sort = SORT_KEYS[(SORT_KEYS.index(self.sort) + 1) % len(SORT_KEYS)]
        self.reverse = False

    def sort_by(self, key: str) -> None:
        """Sort by a column; the same again turns it around."""
        for known in SORT_KEYS:
            if known == key:
                self.reverse = not self.reverse if self.sort == known else False
                self.sort = known

    def audit_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the trail that were read, newest first."""
        if self.security is None or isinstance(self.security.audit, NotGranted):
            return []
        return [*self.security.audit.rows, *self.older]

    def title(self) -> str:
        """Return the first line: where, as whom, how many."""
        if self.look is None:
            return f"tenantq  {self.url}"
        cut = cut_short(self.lines, TENANTS_MAX, None)
        at = f"{show_time(self.look.wall_ms)[11:19]} UTC"
        return "  ".join(["tenantq", at, self.url, in_short(self.lines), *([cut] if cut else [])])
