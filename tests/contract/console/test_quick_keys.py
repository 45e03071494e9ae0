"""Keys that arrive together, as from a fast typist or over a slow connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from textual.events import Key

from tenantq.console.main_screen import MainScreen
from tenantq.console.queue_screen import QueueScreen
from tests.contract.console.conftest import NARROW, WIDE

if TYPE_CHECKING:
    from tenantq.testing import FakeServer
    from tests.contract.console.conftest import ConsoleUser, OpenConsole

SETTLE_S = 0.5


async def _press_at_once(user: ConsoleUser, *keys: str) -> None:
    for key in keys:
        user.app.post_message(Key(key, None))
    await asyncio.sleep(SETTLE_S)


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize(
    ("keys", "active"),
    [(("tab", "tab"), "security"), (("tab", "tab", "tab"), "tenants"), (("shift+tab", "tab", "tab"), "queues")],
)
async def test_tabs_that_arrive_together_end_at_the_last_panel(
    console: OpenConsole, size: tuple[int, int], keys: tuple[str, ...], active: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the console is idle: it does not switch between panels forever."""
    async with console(size=size) as user:
        screen = user.app.screen
        assert isinstance(screen, MainScreen)
        await _press_at_once(user, *keys)
        seen: list[str] = []
        monkeypatch.setattr(screen, "_mark", seen.append)
        await asyncio.sleep(SETTLE_S)
        assert (screen.active, seen) == (active, [])
        assert screen.focused is not None
        assert screen.focused in screen.query_one(f"#{active}").query("*")


async def test_tabs_that_arrive_together_end_at_the_last_tab_of_a_queue(
    server: FakeServer, console: OpenConsole
) -> None:
    """After three keys the settings are shown, and stay."""
    server.client().tenant("acme").configure()
    server.client().tenant("acme").queue("mail").add("hello")
    async with console(shown="acme") as user:
        await user.press("tab", "enter")
        await user.until(lambda: isinstance(user.app.screen, QueueScreen))
        screen = user.app.screen
        assert isinstance(screen, QueueScreen)
        await _press_at_once(user, "tab", "tab", "tab")
        assert screen.tab == "settings"
        await asyncio.sleep(SETTLE_S)
        assert screen.tab == "settings"
        assert screen.focused is screen.query_one("#settings-table")
