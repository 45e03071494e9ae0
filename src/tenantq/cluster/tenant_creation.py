"""Creation of tenants on a server with several shards: the first shard decides where each goes, and has it created there."""

import asyncio
from typing import Any

from tenantq.cluster.layout import HOME
from tenantq.cluster.peers import Peers
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shard_routing import ShardRouting
from tenantq.errors import Invalid
from tenantq.service.call import Call, TenantInfo
from tenantq.service.service import Service


class TenantCreation:
    """Creates and changes tenants. Other shards call ``put_forwarded``, ``create_here`` and ``change_here``."""

    def __init__(self, service: Service, peers: Peers, routing: ShardRouting, calls: ShardCalls) -> None:
        self._service = service
        self._peers = peers
        self._directory = peers.directory
        self._routing = routing
        self._calls = calls
        self._locks: dict[str, asyncio.Lock] = {}  # one creation of a name at a time

    async def put(self, call: Call, tenant: str, changes: dict[str, Any]) -> tuple[bool, TenantInfo]:
        """Create a tenant or change its settings, on whichever shard it is or goes to; return whether it is new."""
        if self._peers.is_home:
            return await self._put_at_home(call, tenant, changes)
        owner = self._routing.known_owner(call, tenant)
        if owner is None:
            owner = HOME if self._directory.is_known(HOME) else await self._routing.find_owner(call, tenant)
        if owner == self._peers.number:
            return await self.change_here(call, tenant, changes)
        return await self._forward(owner, "put_forwarded", call, tenant, changes)

    async def put_forwarded(self, call: Call, tenant: str, changes: dict[str, Any]) -> tuple[bool, TenantInfo]:
        """Do the same for another shard, which may not know yet that the tenant is gone, or where it is now."""
        if self._peers.is_home:
            return await self._put_at_home(call, tenant, changes)
        if self._routing.owns(tenant):
            return await self.change_here(call, tenant, changes)
        return await self._forward(HOME, "put_forwarded", call, tenant, changes)

    async def _forward(
        self, owner: int, method: str, call: Call, tenant: str, changes: dict[str, Any]
    ) -> tuple[bool, TenantInfo]:
        found: tuple[bool, TenantInfo] = await self._calls.call(
            owner, f"tenant_creation.{method}", call, tenant, changes
        )
        return found

    async def _put_at_home(self, call: Call, tenant: str, changes: dict[str, Any]) -> tuple[bool, TenantInfo]:
        await self._service.admission.authorize(call, tenant, "put_tenant", None)
        lock = self._locks.setdefault(tenant, asyncio.Lock())
        try:
            async with lock:
                owner = self._directory.find(tenant)
                if owner is None or not self._directory.is_known(owner):
                    self._directory.check_whole()  # an unknown name may be a tenant of a shard that does not run
                    owner = self._directory.find(tenant)
                method = self.change_here if owner is not None else self.create_here
                if owner is None:
                    owner = self._place(tenant, changes)
                if owner == self._peers.number:
                    return await method(call, tenant, changes)
                return await self._forward(owner, method.__name__, call, tenant, changes)
        finally:
            if not lock.locked():
                self._locks.pop(tenant, None)

    def _place(self, tenant: str, changes: dict[str, Any]) -> int:
        """Return the shard for a new tenant; this one if no shard is in its regions, so that it refuses the tenant."""
        regions = changes.get("regions")
        allowed = tuple(one for one in regions if type(one) is str) if isinstance(regions, list) else ()
        try:
            return self._directory.place(tenant, allowed)
        except Invalid:
            return self._peers.number

    async def create_here(self, call: Call, tenant: str, changes: dict[str, Any]) -> tuple[bool, TenantInfo]:
        """Create a tenant on this shard, for the first shard, which knows that no other shard has it."""
        self._directory.learn_own(tenant)
        with self._peers.creatable.including(tenant):
            return await self.change_here(call, tenant, changes)

    async def change_here(self, call: Call, tenant: str, changes: dict[str, Any]) -> tuple[bool, TenantInfo]:
        """Change a tenant of this shard. One that was deleted meanwhile is not created again."""
        try:
            return await self._service.tenants.put(call, tenant, changes)
        finally:
            if self._routing.owns(tenant):
                await self._peers.announce(tenant)
