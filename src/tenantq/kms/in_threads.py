"""Blocking client libraries, run beside the event loop in a bounded number of threads."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS: Final = 8

_T = TypeVar("_T")


class Threads:
    """A few threads for one provider. A call nobody waits for any more ends by the client's own timeouts."""

    def __init__(self, name: str, count: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(count, f"tenantq-{name}")

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Begin nothing more; what is under way ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def silence_debug(*names: str) -> None:
    """Keep loggers of client libraries from their debug level, where they write requests, and so keys, into the log."""
    for name in names:
        logger = logging.getLogger(name)
        if logger.getEffectiveLevel() < logging.INFO or logger.level == logging.NOTSET:
            logger.setLevel(max(logging.INFO, logger.getEffectiveLevel()))
