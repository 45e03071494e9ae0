"""The console itself: refreshes what is shown, does what is asked for, and says what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType

from tenantq.console.answers import one_line
from tenantq.console.help_screen import HelpScreen
from tenantq.console.main_screen import MainScreen
from tenantq.console.reader import Reader
from tenantq.console.state import ConsoleState
from tenantq.console.state_screen import StateScreen
from tenantq.errors import NotFound, TenantqError, Unauthenticated
from tenantq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.client import AsyncClient

T = TypeVar("T")

REFRESH_MS: Final = 2_000
SECURITY_EVERY: Final = 5
"""The security panel is read with each so many-th refresh: to read the journal costs the server more than to read figures."""

_NOTICE_S: Final = 6


class ConsoleApp(App[TenantqError]):
    """Returns an error where the very first answer was that the credential is not valid, else None."""

    TITLE = "tenantq"
    CSS_PATH = "console.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012  # as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "keys", "keys", key_display="?"),
        Binding("r", "refresh_all", "refresh", show=False),
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
        self.animation_level = "none"  # what moves by itself only costs, over a slow line most of all
        self.client = client
        self.reader = Reader(client, clock or SystemClock(), tenant)
        self.desk = ConsoleState(url, tenant)
        self._refresh_ms = refresh_ms
        self._busy = False
        self._again = False
        self._turns = 0

    def on_mount(self) -> None:
        """Show the main screen and begin to refresh it."""
        self.push_screen(MainScreen(self.desk))
        self.set_interval(self._refresh_ms / 1_000, self.refresh_figures)
        self.refresh_figures()

    # ---- refreshing ----

    def refresh_figures(self) -> None:
        """Ask for what is shown. A refresh that takes longer than the time between two is not overtaken by the next."""
        if not self._busy:
            self._busy = True
            self.run_worker(self._refresh(), group="refresh")

    def refresh_soon(self) -> None:
        """Ask for everything that is shown, at once or when the refresh that runs is done."""
        self._turns = 0
        self._again = self._busy
        self.refresh_figures()

    def refresh_all(self) -> None:
        """Ask for everything, and go back to the newest rows of the audit trail."""
        self.desk.forget_older()
        self.reader.ask_again()
        self.refresh_soon()

    async def _refresh(self) -> None:
        try:
            await self._read()
        except Unauthenticated as error:
            if self.desk.look is None:
                self.exit(result=error)
            self.desk.failed(error)
        except NotFound as error:
            self._lose_selected(error)
        except TenantqError as error:
            self.desk.failed(error)
        finally:
            self._busy = False
        self.draw()
        if self._again:
            self._again = False
            self.refresh_figures()

    async def _read(self) -> None:
        desk = self.desk
        selected = desk.selected
        due = self._turns % SECURITY_EVERY == 0
        look = await self.reader.look(selected, anew=due)
        if desk.selected != selected:  # another tenant was chosen meanwhile
            self._again = True
            return
        desk.took(look)
        tenant = desk.tenant
        stale = desk.security is None or desk.security.tenant != tenant
        self._turns += 1
        if tenant is not None and (stale or due) and not desk.older:
            self.draw()
            wanted = desk.audit_filter
            security = await self.reader.security(tenant, wanted)
            if desk.selected == selected and desk.audit_filter is wanted:
                desk.security = security
            else:
                self._again, self._turns = True, 0

    def _lose_selected(self, error: NotFound) -> None:
        """Go back to a tenant that is there."""
        if self.desk.selected is None:
            self.desk.failed(error)
            return
        self.say(f"{self.desk.selected}: {one_line(error)}", "warning")
        self.desk.selected = None
        self._again = True

    def draw(self) -> None:
        """Draw every screen that shows the desk."""
        for screen in self.screen_stack:
            if isinstance(screen, StateScreen) and screen.is_mounted:
                screen.draw()

    # ---- doing ----

    def choose(self, tenant: str) -> None:
        """Show another tenant."""
        self.desk.choose(tenant)
        self.draw()
        for screen in self.screen_stack:
            if isinstance(screen, MainScreen):
                screen.point_at(tenant)
        self.refresh_soon()

    async def perform(self, work: Awaitable[T], said: Callable[[T], str]) -> T | None:
        """Change something, say what came of it, and refresh; None: it failed, and one line said why."""
        result = await self.read(work, doubt="; it may have been done all the same")
        if result is not None:
            self.say(said(result))
            self.refresh_soon()
        return result

    async def read(self, work: Awaitable[T], *, doubt: str = "") -> T | None:
        """Return what the server says; None: it failed, and one line said why, with ``doubt`` where it may have been done."""
        try:
            return await work
        except TenantqError as error:
            self.say(f"{one_line(error)}{doubt if error.maybe_done else ''}", "error")
            return None

    def say(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        """Show a notice of one line for a while."""
        self.notify(text, severity=severity, timeout=_NOTICE_S, markup=False)

    def action_refresh_all(self) -> None:
        """Refresh at once."""
        self.refresh_all()

    def action_keys(self) -> None:
        """Show every key."""
        self.push_screen(HelpScreen())
