"""One queue name in many tenants, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.client.async_message import AsyncMessage
from tenantq.client.async_queue import check_poll
from tenantq.domain.names import check_queue_name, check_tenant_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.client.queue_calls import QueueRegistry


class AsyncFleet:
    """One queue name in many tenants, for workers that serve them all in fair turns."""

    def __init__(self, registry: QueueRegistry, queue: str, tenants: Sequence[str] | None) -> None:
        self.queue = check_queue_name(queue)
        self.tenants = [check_tenant_name(tenant) for tenant in tenants] if tenants is not None else None
        self._registry = registry

    async def poll(
        self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, consumer: str | None = None
    ) -> list[AsyncMessage]:
        """Lease up to ``max`` messages, in weighted fair turns of the tenants this credential is granted in."""
        check_poll(max, wait_ms, lease_ms)
        leases = await self._registry.poll_fleet(self.queue, self.tenants, max, wait_ms, lease_ms, consumer)
        return [AsyncMessage(leased, self._registry.of(leased.item.tenant, leased.item.queue)) for leased in leases]
