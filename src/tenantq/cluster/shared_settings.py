"""The settings of tenants that are spread over shards, which their home sends to the other parts.

A call that changes settings returns after every part has them. If a part cannot be reached, the call fails with
Unavailable although home has the change; it is sent again until the part has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, Final

from tenantq.cluster.escrow import ANSWER_MS, Escrow
from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.engine.ops.spread import SharedState, shared_state
from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, TenantMoved, TenantqError, Unavailable
from tenantq.service.call import Call

log = logging.getLogger("tenantq.shards")

CHANGING: Final = ("tenants", "access", "legal_holds", "encryption", "templates", "containment", "erasures")
"""Facets whose calls may change what all parts of a tenant share."""


READING: Final = ("get", "list", "find", "usage", "residency", "plans", "log_in", "first_held")
"""How the methods of these facets begin that change nothing."""


class SharedSettings:
    """Keeps the parts of tenants whose home is one shard up to date. Used on the event loop of the shard."""

    def __init__(
        self,
        number: int,
        shard: Shard,
        calls: CallsFromShard,
        escrow: Escrow,
        parts: Callable[[str], tuple[int, ...]],
        spread: Callable[[], Iterable[str]],
        own_tenant: Callable[[Call], Awaitable[str]],
    ) -> None:
        """Prepare. ``parts`` returns the shards that may have a part of a tenant, ``spread`` all spread tenants.

        ``own_tenant`` returns the tenant that a call means that names none.
        """
        self._spread, self.own_tenant = spread, own_tenant
        self._number, self._shard, self._calls, self._escrow, self._parts = number, shard, calls, escrow, parts
        self._sent: dict[int, SharedState] = {}  # by tenant id: what all parts have
        self._locks: dict[int, asyncio.Lock] = {}

    def homes(self) -> list[TenantState]:
        """Return the spread tenants whose home is this shard."""
        here = self._shard.state.catalog.tenants
        found = (here.get(name) for name in self._spread())
        return [one for one in found if one is not None and one.part is not None and one.part.is_home]

    async def flush(self, name: str) -> None:
        """Return when all parts of a tenant have its present settings. Raises Unavailable if one is out of reach."""
        for tenant in self.homes():
            if tenant.name == name:
                await self.flush_tenant(tenant)

    async def flush_all(self) -> None:
        """Send the parts of all tenants their present settings. Those that are out of reach get them later."""
        for tenant in self.homes():
            try:
                await self.flush_tenant(tenant)
            except TenantqError as error:
                log.debug("parts of tenant %s get its settings later: %s", tenant.name, error)

    def sent_version(self, tenant: TenantState) -> int | None:
        """Return the version of the settings that all parts of a tenant have; None if this is not known."""
        sent = self._sent.get(tenant.id)
        return sent.version if sent is not None else None

    async def send_again(self, tenant: TenantState) -> None:
        """Send the parts of a tenant its present settings, also if they had them. Raises Unavailable."""
        await self.flush_tenant(tenant, again=True)

    async def flush_tenant(self, tenant: TenantState, *, again: bool = False) -> None:
        """Return when all parts of a tenant have its present settings. Raises Unavailable if one cannot be reached.

        ``again``: send them also if all parts had them.
        """
        async with self._locks.setdefault(tenant.id, asyncio.Lock()):
            if tenant.part is None or tenant.gone:
                return
            shared = shared_state(self._shard.state, tenant)
            if not again and shared.is_like(self._sent.get(tenant.id)):
                return
            # A part ignores older settings, so it must not have some that a crash undoes.
            await self._shard.loop.made_durable()
            others = [one for one in self._parts(tenant.name) if one != self._number]
            found = await asyncio.gather(*(self._send(one, shared) for one in others), return_exceptions=True)
            try:
                for one in found:
                    if isinstance(one, BaseException):
                        raise one
                await self._escrow.settle(tenant)
            except TenantqError as error:
                raise Unavailable(
                    f"stored, but not all shards of this tenant have the change yet: {error.message} It is sent again.",
                    tenant=tenant.name,
                ) from error
            self._sent[tenant.id] = shared

    async def _send(self, shard: int, shared: SharedState) -> None:
        try:
            await self._calls.query(shard, "parts.apply", shared, timeout_ms=ANSWER_MS)
        except (Conflict, TenantMoved):
            return  # it has no part yet, and gets the settings with it, or has none any more

    def sharing(self, facet: object) -> object:
        """Return a facet whose calls return after all parts have what they changed."""
        return SharingFacet(facet, self)


class SharingFacet:
    """A facet whose calls return after all parts of the tenants have what they changed."""

    def __init__(self, facet: object, settings: SharedSettings) -> None:
        self._facet, self._settings = facet, settings

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._facet, name)
        changes = asyncio.iscoroutinefunction(found) and not name.startswith(READING)
        return self._sharing(found) if changes else found

    def _sharing(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        has_tenant = "tenant" in inspect.signature(method).parameters

        @wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            named = options.get("tenant", arguments[1] if has_tenant and len(arguments) > 1 else None)
            if has_tenant and named is None:
                with contextlib.suppress(TenantqError):  # the method refuses the caller
                    named = await self._settings.own_tenant(arguments[0])
            try:
                result = await method(*arguments, **options)
            except TenantqError:
                with contextlib.suppress(TenantqError):
                    await self._flush(named)  # a deletion that failed has frozen the tenant
                raise
            await self._flush(named)
            return result

        return call

    async def _flush(self, named: str | None) -> None:
        """Send what a call has changed. Only a tenant that it names can make it fail."""
        await (self._settings.flush(named) if named is not None else self._settings.flush_all())
