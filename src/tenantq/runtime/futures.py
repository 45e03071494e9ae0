"""Futures: waking whoever waits for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future


def wake(future: Future[None]) -> None:
    """Complete ``future``, unless it is complete or cancelled already."""
    if not future.done():
        future.set_result(None)
