"""A server with a few tenants for all tests of a module, and consoles that refresh on demand."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest
from textual.events import Paste

from tenantq.client import NO_RETRIES, AsyncClient
from tenantq.console.app import ConsoleApp
from tenantq.console.live_table import LiveTable
from tenantq.testing import FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.pilot import Pilot

    from tests.acceptance.command import Served

NEVER_MS = 3_600_000
SECONDS_MAX = 30
WIDE = (120, 24)
NARROW = (80, 24)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    """Serve without a port; everything else is real."""
    with FakeServer() as server:
        yield server


class ConsoleUser:
    """A user at a console."""

    def __init__(self, pilot: Pilot[Any], app: ConsoleApp) -> None:
        self.pilot = pilot
        self.app = app

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, and wait until each is handled."""
        for key in keys:
            await self.pilot.press(key)

    async def type(self, text: str) -> None:
        """Insert a text at the cursor like a paste; a key for each character takes long."""
        assert self.app.screen.focused is not None
        self.app.screen.focused.post_message(Paste(text))
        await self.pilot.pause()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a reply of the server; fails if it does not arrive."""
        late = time.monotonic() + SECONDS_MAX
        while time.monotonic() < late:
            if condition():
                await self.pilot.pause()
                return
            await self.pilot.pause(0.02)
        pytest.fail(f"it did not come; on the screen: {self.text()}; said: {self.said()}")

    async def refresh(self) -> None:
        """Refresh the screen, and wait until it is drawn."""
        before = self.app.state.snapshot
        self.app.refresh_soon()
        await self.until(lambda: self.app.state.snapshot is not before and not self.app._busy)

    def rows(self, selector: str) -> list[dict[str, str]]:
        """Return the drawn rows of a table, by heading."""
        table = self.app.screen.query_one(selector, LiveTable)
        headings = [str(column.label) for column in table.ordered_columns]
        rows = [[text.plain for text in table.get_row_at(index)] for index in range(table.row_count)]
        return [dict(zip(headings, row, strict=True)) for row in rows]

    def column(self, selector: str, heading: str) -> list[str]:
        """Return one column of a table; empty if it is not shown."""
        return [row[heading] for row in self.rows(selector) if heading in row]

    def text(self) -> str:
        """Return everything on the screen."""
        lines = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in lines)

    def said(self) -> list[str]:
        """Return the notices so far."""
        return [notice.message for notice in self.app._notifications]


@pytest.fixture(scope="session")
def scenario_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve over a socket, for scenarios and browsers."""
    from tests.contract.console.scenarios import scenario_server  # noqa: PLC0415  # it uses this module

    with scenario_server(tmp_path_factory.mktemp("scenarios")) as served:
        yield served


OpenConsole = Callable[..., "contextlib.AbstractAsyncContextManager[ConsoleUser]"]


@pytest.fixture
def console(server: FakeServer) -> OpenConsole:
    """Open a console, as the platform administrator or with a role in a tenant."""

    @contextlib.asynccontextmanager
    async def open_one(
        tenant: str | None = None, *, size: tuple[int, int] = WIDE, shown: str | None = None, **options: Any
    ) -> AsyncIterator[ConsoleUser]:
        client = AsyncClient(settings=server.settings(tenant, retries=NO_RETRIES, **options))
        app = ConsoleApp(client, url="http://fake.invalid", tenant=shown, refresh_ms=NEVER_MS, clock=server.clock)
        async with client, app.run_test(size=size) as pilot:
            user = ConsoleUser(pilot, app)
            await user.until(lambda: app.state.snapshot is not None and not app._busy)
            yield user

    return open_one
