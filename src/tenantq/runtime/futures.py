"""Helpers for futures."""

from __future__ import annotations

from asyncio import Future


def wake(future: Future[None] | None) -> None:
    """Complete a future unless it is done."""
    if future is not None and not future.done():
        future.set_result(None)
