"""The base of providers whose client library blocks: it runs them in threads and maps the library's errors."""

import asyncio
import logging
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tenantq.errors import KmsUnavailable, TenantqError
from tenantq.kms.interface import Context

THREADS: Final = 8


class BlockingProvider(ABC):
    """A ``KeyWrapper`` on a blocking client. Each call is tried once; ``ResilientKms`` retries.

    Abandoned calls end by the client library's own timeouts.
    """

    def __init__(self, name: str, *loggers: str, threads: int = THREADS) -> None:
        """``loggers`` are raised above debug level, at which the library would log requests, and so keys."""
        self.name = name
        self._pool = ThreadPoolExecutor(threads, f"tenantq-{name}")
        for logger in map(logging.getLogger, loggers):
            if logger.getEffectiveLevel() < logging.INFO or logger.level == logging.NOTSET:
                logger.setLevel(max(logging.INFO, logger.getEffectiveLevel()))

    @abstractmethod
    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` can be the name of a key here. Makes no call."""

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        """Return ``plaintext`` wrapped by the key's newest version and bound to ``context``."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, True, key, plaintext, context)

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        """Return what any version of exactly this key has wrapped."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, False, key, wrapped, context)

    async def close(self) -> None:
        """Start no more calls and close the connections. Running calls end in their threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._disconnect()

    def _call(self, wraps: bool, key: str, data: bytes, context: Context) -> bytes:  # noqa: FBT001  # run_in_executor takes no keywords
        try:
            return self._wrap(key, data, context) if wraps else self._unwrap(key, data, context)
        except TenantqError:
            raise
        except Exception as error:
            typed = self._typed(error)
            if typed is None:
                raise
            raise typed from None  # the library's text may name accounts, projects or keys

    @abstractmethod
    def _wrap(self, key: str, plaintext: bytes, context: Context) -> bytes: ...

    @abstractmethod
    def _unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes: ...

    @abstractmethod
    def _typed(self, error: Exception) -> TenantqError | None:
        """Return our error for one of the library's, with a code but without its text; None: not one of the library's."""

    @abstractmethod
    def _disconnect(self) -> None: ...

    def _busy(self, what: str, retry_after: object = None) -> KmsUnavailable:
        """Return the error for an outage or a throttled call. ``retry_after`` is the header of that name, in seconds."""
        error = KmsUnavailable(f"{self.name}: the service is unavailable ({what}). Try again later.")
        text = str(retry_after)
        if text.isascii() and text.isdigit() and len(text) < 6:
            error.retry_after_ms = int(text) * 1_000
        return error

    def _unreachable(self, error: Exception) -> KmsUnavailable:
        return KmsUnavailable(f"{self.name}: cannot connect to the service ({type(error).__name__}). Try again later.")
