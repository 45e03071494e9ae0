"""The console application: refreshes the state, runs actions, and reports their results."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar, Final, Literal, TypeVar

from textual import work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.events import DeliveryComplete, DeliveryFailed

from tenantq.client import AsyncClient
from tenantq.console import actions
from tenantq.console.alerts_screen import AlertsScreen
from tenantq.console.dialogs import HelpScreen
from tenantq.console.main_screen import MainScreen
from tenantq.console.onboarding_screen import OnboardingScreen
from tenantq.console.panels import Panel, QueuesPanel, TenantsPanel
from tenantq.console.queue_screen import QueueScreen
from tenantq.console.reader import ConsoleReader
from tenantq.console.report_screen import show_report
from tenantq.console.security_panel import SecurityPanel
from tenantq.console.state import ConsoleState, error_line
from tenantq.console.state_screen import StateScreen
from tenantq.errors import NotFound, TenantqError, Unauthenticated
from tenantq.runtime.clock import Clock, SystemClock

T = TypeVar("T")

REFRESH_MS: Final = 2_000
SECURITY_EVERY: Final = 5
"""Every n-th refresh reads the security panel, because reading the journal costs the server more than reading figures."""

_NOTICE_S: Final = 6


class ConsoleApp(App[TenantqError]):
    """Returns the error if the server rejects the credential at the first refresh, else None."""

    TITLE = "tenantq"
    CSS_PATH = "console.tcss"
    ENABLE_COMMAND_PALETTE = False
    VERTICAL_BREAKPOINTS = [(0, "-short"), (36, "-tall")]  # noqa: RUF012
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-huge")]  # noqa: RUF012  # as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "keys", "keys", key_display="?", tooltip="this help"),
        Binding("r", "refresh_all", "refresh now", show=False),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    def __init__(
        self,
        client: AsyncClient,
        *,
        url: str,
        tenant: str | None = None,
        refresh_ms: int = REFRESH_MS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.animation_level = "none"  # animations cost bandwidth on a slow connection
        self.client = client
        self.reader = ConsoleReader(client, clock or SystemClock(), tenant)
        self.state = ConsoleState(url, tenant)
        self._refresh_ms = refresh_ms
        self._busy = False
        self._again = False
        self._turns = 0

    def on_mount(self) -> None:
        self.push_screen(MainScreen(self.state))
        self.set_interval(self._refresh_ms / 1_000, self.refresh_figures)
        self.refresh_figures()

    # ---- refresh ----

    def refresh_figures(self) -> None:
        """Read what is shown, unless a refresh is still running."""
        if not self._busy:
            self._busy = True
            self.run_worker(self._refresh(), group="refresh")

    def refresh_soon(self) -> None:
        """Read everything that is shown, now or after the running refresh."""
        self._turns = 0
        self._again = self._busy
        self.refresh_figures()

    def action_refresh_all(self) -> None:
        """Read everything, including the newest rows of the audit trail."""
        self.state.forget_older()
        self.reader.forget_refusals()
        self.refresh_soon()

    async def _refresh(self) -> None:
        try:
            await self._read()
        except Unauthenticated as error:
            if self.state.snapshot is None:
                self.exit(result=error)
            self.state.failed(error)
        except NotFound as error:
            self._lose_selected(error)
        except TenantqError as error:
            self.state.failed(error)
        finally:
            self._busy = False
        self.draw()
        if self._again:
            self._again = False
            self.refresh_figures()

    async def _read(self) -> None:
        state = self.state
        selected = state.selected
        due = self._turns % SECURITY_EVERY == 0
        snapshot = await self.reader.read(selected, relist=due)
        if state.selected != selected:  # another tenant was chosen meanwhile
            self._again = True
            return
        state.update(snapshot)
        tenant = state.tenant
        stale = state.security is None or state.security.tenant != tenant
        self._turns += 1
        if tenant is not None and (stale or due) and not state.older:
            self.draw()
            wanted = state.audit_filter
            security = await self.reader.security(tenant, wanted)
            if state.selected == selected and state.audit_filter is wanted:
                state.security = security
            else:
                self._again, self._turns = True, 0

    def _lose_selected(self, error: NotFound) -> None:
        """Select another tenant after the selected one was deleted."""
        if self.state.selected is None:
            self.state.failed(error)
            return
        self.say(f"{self.state.selected}: {error_line(error)}", "warning")
        self.state.selected = None
        self._again = True

    def draw(self) -> None:
        """Draw every screen of the state."""
        for screen in self.screen_stack:
            if isinstance(screen, StateScreen) and screen.is_mounted:
                with suppress(NoMatches):  # a screen that is being closed loses its widgets first
                    screen.draw()

    # ---- actions ----

    def choose(self, tenant: str) -> None:
        """Show another tenant."""
        self.state.choose(tenant)
        self.draw()
        for screen in self.screen_stack:
            if isinstance(screen, MainScreen):
                screen.point_at(tenant)
        self.refresh_soon()

    async def perform(self, work: Awaitable[T], said: Callable[[T], str]) -> T | None:
        """Return the result of a change, report it and refresh. Returns None if it failed, after a notice."""
        result = await self.read(work, doubt="; the change may have been applied")
        if result is not None:
            self.say(said(result))
            self.refresh_soon()
        return result

    async def read(self, work: Awaitable[T], *, doubt: str = "") -> T | None:
        """Return the result of a call. Returns None if it failed, after a notice that ends with ``doubt`` if it may have been done."""
        try:
            return await work
        except TenantqError as error:
            self.say(f"{error_line(error)}{doubt if error.maybe_done else ''}", "error")
            return None

    def on_delivery_complete(self, event: DeliveryComplete) -> None:
        self.say(f"saved {event.path}" if event.path is not None else "downloaded")

    def on_delivery_failed(self, event: DeliveryFailed) -> None:
        self.say(f"not saved: {event.exception}", "error")

    def say(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        """Show a notice for a few seconds."""
        self.notify(text, severity=severity, timeout=_NOTICE_S, markup=False)

    def action_report(self, name: str) -> None:
        show_report(self, self.state, name)

    @work(group="action", exclusive=True)
    async def action_create_tenant(self) -> None:
        await actions.create_tenant(self)

    def action_keys(self) -> None:
        keys = {
            "Everywhere": [*MainScreen.BINDINGS, *Panel.BINDINGS, *self.BINDINGS],
            "Tenants": [TenantsPanel.ENTER, *TenantsPanel.BINDINGS],
            "Queues": [QueuesPanel.ENTER, *QueuesPanel.BINDINGS, *QueueScreen.PAGE_BINDINGS],
            "Security": [SecurityPanel.ENTER, *SecurityPanel.BINDINGS],
            "Alerts": AlertsScreen.BINDINGS[1:],
            "Onboarding": OnboardingScreen.BINDINGS[1:],
        }
        self.push_screen(HelpScreen(keys))
