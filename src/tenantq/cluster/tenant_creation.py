"""Creation of tenants on a server with several shards: a new one is placed first, and then created on its shard."""

import contextlib
from collections.abc import Callable, Container
from typing import Any, Protocol

from msgspec.structs import replace

from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shard_routing import ShardRouting
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.access import Principal
from tenantq.domain.names import check_tenant_name
from tenantq.errors import Conflict, NotFound, TenantqError
from tenantq.journal.record import entry_of
from tenantq.service.call import Call, TenantInfo


class Identification(Protocol):
    """Finds out who calls."""

    async def identify(self, call: Call, action: str) -> Principal:
        """Return the caller's principal; raise Unauthenticated, and record it, if the credential is not valid."""


class TenantCreation:
    """Creates and changes tenants, on whichever shard they are or go to."""

    def __init__(
        self,
        placements: TenantPlacements,
        calls: ShardCalls,
        routing: ShardRouting,
        admission: Identification,
        served: Callable[[], Container[str]],
    ) -> None:
        """Prepare. ``served`` returns the regions that have servers."""
        self._placements, self._calls, self._routing = placements, calls, routing
        self._admission, self._served = admission, served

    async def put(self, call: Call, tenant: str, changes: dict[str, Any]) -> tuple[bool, TenantInfo]:
        """Create a tenant or change its settings; return whether it is new."""
        check_tenant_name(tenant)
        known, shard = self._placements.find(tenant), self._routing.known_owner(call, tenant)
        if known is None:
            shard = await self._place(call, tenant, changes.get("regions"))
        elif shard is None:
            shard = await self._routing.find_owner(call, tenant)
        found: tuple[bool, TenantInfo]
        try:
            found = await self._calls.call(shard, "tenants.put", call, tenant, changes)
        except TenantqError as error:
            if known is None or isinstance(error, Conflict):  # an earlier attempt, or a deletion, may have left the row
                with contextlib.suppress(TenantqError):  # then the row stays, and the next attempt uses it
                    await self._calls.query(shard, "peer.unplace", tenant)
            raise
        return found

    async def _place(self, call: Call, tenant: str, regions: object) -> int:
        """Return the shard of a new tenant. Raises, and has it recorded, if it cannot be created anywhere."""
        calls, fallback = self._calls, self._routing.number
        try:
            await calls.call(fallback, "admission.authorize", call, tenant, "put_tenant", None)
        except NotFound:  # an earlier tenant of this name has left that shard, and was deleted
            await calls.call(fallback, "admission.authorize", call, "", "put_tenant", None)
        allowed = [one for one in regions if isinstance(one, str)] if isinstance(regions, list) else []
        try:
            return await self._placements.place(tenant, allowed, self._served())
        except TenantqError as error:
            principal = await self._admission.identify(call, "put_tenant")
            caller = call.caller(principal.id)
            entry = replace(entry_of("put_tenant", "", caller, ""), outcome="refused", error_code=error.code)
            await calls.query(fallback, "peer.note_entries", [entry])
            raise
