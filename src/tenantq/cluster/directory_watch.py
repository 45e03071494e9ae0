"""Keeps one process's view of the tenant directory up to date, and continues the moves that its rows request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.errors import TenantqError

log = logging.getLogger("tenantq.shards")

POLL_S: Final = 0.5
"""How often the directory is read even if no process has announced a change."""


class DirectoryWatch:
    """Reads the changes of the directory regularly, and when another process announces one."""

    def __init__(self, placements: TenantPlacements, look: Callable[[], None]) -> None:
        """Prepare. ``look`` is called after each reading."""
        self._placements, self._look = placements, look
        self._hurried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False

    def start(self) -> None:
        """Start to read."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def hurry(self) -> None:
        """Read the directory now."""
        self._hurried.set()

    async def _run(self) -> None:
        while True:
            self._hurried.clear()
            try:
                await self.read()
            except TenantqError as error:
                if not self._has_failed:  # further attempts are not logged
                    log.warning("cannot read the tenant directory; retrying: %s", error)
                self._has_failed = True
            except Exception:
                log.exception("cannot read the tenant directory; retrying")
            else:
                self._has_failed = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._hurried.wait()

    async def read(self) -> None:
        """Read what has changed."""
        await self._placements.refresh()
        self._look()
