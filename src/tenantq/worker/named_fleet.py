"""Polls one queue name in named tenants. Tenants that refuse are skipped, so that the others are served."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tenantq.client.async_client import AsyncClient
from tenantq.client.async_message import AsyncMessage
from tenantq.errors import Forbidden, NotFound, QuotaExceeded, TenantqError, Unauthenticated

log = logging.getLogger("tenantq.worker")

RECHECK_MS: Final = 5_000
"""Interval of checks whether skipped tenants can be polled again."""
ALL_SKIPPED_MS: Final = 100
"""Minimum length of a poll while all tenants are skipped."""


class NamedFleet:
    """Polls like a fleet. The server refuses a whole poll because of one tenant, which the error names."""

    def __init__(self, client: AsyncClient, queue: str, tenants: list[str]) -> None:
        self._client = client
        self._queue = queue
        self._tenants = list(dict.fromkeys(tenants))
        self._skipped: set[str] = set()
        self._fleet = client.fleet(queue, tenants=self._tenants)
        self._recheck: asyncio.Task[None] | None = None  # checks the skipped tenants

    async def poll(self, max: int, *, wait_ms: int, lease_ms: int) -> list[AsyncMessage]:
        """Lease messages of all tenants that this credential may poll. The others are checked again regularly."""
        while True:
            if self._skipped:
                recheck = self._start_recheck()
                if len(self._skipped) == len(self._tenants):
                    await asyncio.wait({recheck}, timeout=(wait_ms or ALL_SKIPPED_MS) / 1_000)
                    if len(self._skipped) == len(self._tenants):
                        return []
            try:
                return await self._fleet.poll(max, wait_ms=wait_ms, lease_ms=lease_ms)
            except (Forbidden, NotFound, QuotaExceeded) as error:
                if error.tenant is None or error.tenant in self._skipped or error.tenant not in self._tenants:
                    raise
                log.warning(
                    "%s: skipping tenant %s, checking again every %d s: %s",
                    self._queue, error.tenant, RECHECK_MS // 1_000, error,
                    extra={"queue": self._queue, "tenant": error.tenant, "code": error.code},
                )  # fmt: skip
                self._skipped.add(error.tenant)
                self._choose()

    def close(self) -> None:
        """Stop checking skipped tenants."""
        if self._recheck is not None and not self._recheck.cancel() and not self._recheck.cancelled():
            self._recheck.exception()  # marks it as retrieved

    def _choose(self) -> None:
        served = [name for name in self._tenants if name not in self._skipped]
        if served:
            self._fleet = self._client.fleet(self._queue, tenants=served)

    def _start_recheck(self) -> asyncio.Task[None]:
        """Return the task that ends when a tenant can be polled again. Raises its error."""
        if self._recheck is not None and self._recheck.done():
            self._recheck.result()
            self._recheck = None
        if self._recheck is None:
            self._recheck = asyncio.create_task(self._check_until_back())
        return self._recheck

    async def _check_until_back(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_MS / 1_000)
            back = [name for name in sorted(self._skipped) if await self._is_back(name)]
            for name in back:
                extra = {"queue": self._queue, "tenant": name}
                log.warning("%s: tenant %s can be polled again", self._queue, name, extra=extra)
            if back:
                self._skipped.difference_update(back)
                self._choose()
                return

    async def _is_back(self, tenant: str) -> bool:
        """Return whether a tenant can be polled. Messages leased by the check are released."""
        try:
            for message in await self._client.fleet(self._queue, tenants=[tenant]).poll():
                await message.release()
        except Unauthenticated:
            raise
        except TenantqError:
            return False
        return True
