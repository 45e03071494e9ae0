"""What providers with a blocking client library share: threads, quiet logs, errors for outages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tenantq.errors import KmsUnavailable

THREADS: Final = 8

_T = TypeVar("_T")


class ProviderThreads:
    """Threads for one provider. Abandoned calls end by the client library's own timeouts."""

    def __init__(self, name: str, count: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(count, f"tenantq-{name}")

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` on a thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Start no more calls. Running ones end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def silence_debug(*names: str) -> None:
    """Raise loggers of client libraries above debug level, where they would log requests, and so keys."""
    for name in names:
        logger = logging.getLogger(name)
        if logger.getEffectiveLevel() < logging.INFO or logger.level == logging.NOTSET:
            logger.setLevel(max(logging.INFO, logger.getEffectiveLevel()))


def busy_error(provider: str, what: str, retry_after: object = None) -> KmsUnavailable:
    """Return the error for an outage or a throttled call. ``retry_after`` is the header of that name, in seconds."""
    error = KmsUnavailable(f"{provider}: it cannot answer now ({what}). Try again later.")
    text = str(retry_after)
    if text.isascii() and text.isdigit() and len(text) < 6:
        error.retry_after_ms = int(text) * 1_000
    return error


def unreachable_error(provider: str, error: Exception) -> KmsUnavailable:
    """Return the error for a failed connection, without the library's text, which may reveal too much."""
    return KmsUnavailable(f"{provider}: it was not reached ({type(error).__name__}). Try again later.")
