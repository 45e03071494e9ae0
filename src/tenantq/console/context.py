"""What screens and actions use of the console application."""

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, TypeVar, cast

from textual.dom import DOMNode
from textual.screen import Screen

from tenantq.client import AsyncClient
from tenantq.console.reader import ConsoleReader

T = TypeVar("T")


class ConsoleContext(Protocol):
    """The console application without its screens."""

    client: AsyncClient
    reader: ConsoleReader

    def choose(self, tenant: str) -> None:
        """Show another tenant."""

    async def perform(self, work: Awaitable[T], said: Callable[[T], str]) -> T | None:
        """Return the result of a change, report it and refresh. Returns None if it failed, after a notice."""

    async def read(self, work: Awaitable[T], *, doubt: str = "") -> T | None:
        """Return the result of a call. Returns None if it failed, after a notice that ends with ``doubt`` if it may have been done."""

    def say(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        """Show a notice for a few seconds."""

    def refresh_soon(self) -> None:
        """Read everything that is shown, now or after the running refresh."""

    def action_refresh_all(self) -> None:
        """Read everything, including the newest rows of the audit trail."""

    async def push_screen_wait(self, screen: Screen[T]) -> T | None:
        """Show a screen and return its result. Called by workers only."""


def console_of(node: DOMNode) -> ConsoleContext:
    """Return the console that a widget or screen belongs to."""
    return cast("ConsoleContext", node.app)
