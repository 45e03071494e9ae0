"""One queue name in tenants that were named: those who refuse are left out, so that the others are served."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from tenantq.errors import Forbidden, NotFound, QuotaExceeded, TenantqError, Unauthenticated

if TYPE_CHECKING:
    from tenantq.client.async_client import AsyncClient
    from tenantq.client.async_message import AsyncMessage

log = logging.getLogger("tenantq.worker")

AGAIN_MS: Final = 5_000
"""Pause between two tries whether those who are left out can be polled again."""
NOBODY_MS: Final = 100
"""So long a poll takes at least while everybody is left out."""


class NamedFleet:
    """Polls like a fleet. The server refuses a poll as a whole where one tenant is not to be had; the error names it."""

    def __init__(self, client: AsyncClient, queue: str, tenants: list[str]) -> None:
        self._client = client
        self._queue = queue
        self._tenants = list(dict.fromkeys(tenants))
        self._out: set[str] = set()
        self._fleet = client.fleet(queue, tenants=self._tenants)
        self._trying: asyncio.Task[None] | None = None  # those who are out, apart from the others

    async def poll(self, max: int, *, wait_ms: int, lease_ms: int) -> list[AsyncMessage]:
        """Lease messages of those who let this credential poll; who does not is tried again now and then."""
        while True:
            if self._out:
                trying = self._try_again()
                if len(self._out) == len(self._tenants):
                    await asyncio.wait({trying}, timeout=(wait_ms or NOBODY_MS) / 1_000)
                    if len(self._out) == len(self._tenants):
                        return []
            try:
                return await self._fleet.poll(max, wait_ms=wait_ms, lease_ms=lease_ms)
            except (Forbidden, NotFound, QuotaExceeded) as error:
                if error.tenant is None or error.tenant in self._out or error.tenant not in self._tenants:
                    raise
                log.warning(
                    "%s: tenant %s is left out, and tried again every %d s: %s",
                    self._queue, error.tenant, AGAIN_MS // 1_000, error,
                    extra={"queue": self._queue, "tenant": error.tenant, "code": error.code},
                )  # fmt: skip
                self._out.add(error.tenant)
                self._choose()

    def close(self) -> None:
        """Try nobody again."""
        if self._trying is not None and not self._trying.cancel() and not self._trying.cancelled():
            self._trying.exception()  # looked at, so that nobody complains

    def _choose(self) -> None:
        served = [name for name in self._tenants if name not in self._out]
        if served:
            self._fleet = self._client.fleet(self._queue, tenants=served)

    def _try_again(self) -> asyncio.Task[None]:
        """Return the task that ends when somebody is back. Raises what it could not get over."""
        if self._trying is not None and self._trying.done():
            self._trying.result()
            self._trying = None
        if self._trying is None:
            self._trying = asyncio.create_task(self._until_somebody_is_back())
        return self._trying

    async def _until_somebody_is_back(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_MS / 1_000)
            back = [name for name in sorted(self._out) if await self._is_back(name)]
            for name in back:
                extra = {"queue": self._queue, "tenant": name}
                log.warning("%s: tenant %s is back", self._queue, name, extra=extra)
            if back:
                self._out.difference_update(back)
                self._choose()
                return

    async def _is_back(self, tenant: str) -> bool:
        """Tell whether a tenant can be polled; what that leases is given back, for whoever has room for it."""
        try:
            for message in await self._client.fleet(self._queue, tenants=[tenant]).poll():
                await message.release()
        except Unauthenticated:
            raise
        except TenantqError:
            return False
        return True
