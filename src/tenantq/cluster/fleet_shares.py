"""What a shard gives fleet polls of other shards."""

from tenantq.domain.message import Delivery
from tenantq.service.call import Call
from tenantq.service.service import Service


class FleetShares:
    """One shard's part in the fleet polls of the whole server."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def poll_now(
        self,
        call: Call,
        queue: str,
        tenants: list[str] | None,
        max: int,
        lease_ms: int | None,
        consumer: str | None,
    ) -> list[Delivery] | None:
        """Lease what this shard has now; None, without a note, if the caller may poll no tenant of this shard."""
        if tenants is None and not await self.may_poll(call, queue):
            return None
        return await self._service.fleet.poll(
            call, queue, tenants=tenants, max=max, lease_ms=lease_ms, consumer=consumer
        )

    async def may_poll(self, call: Call, queue: str) -> bool:
        """Return whether the caller may poll the queue in a tenant of this shard. Nothing is noted."""
        admission = self._service.admission
        principal = await admission.authenticator.authenticate(call.bearer, call.certificate)
        allowed = admission.authorizer.tenants_for(principal, "poll", queue)
        return allowed is None or any(name in self._service.shard.state.catalog.tenants for name in allowed)

    async def refused_tenants(self, call: Call, queue: str, tenants: list[str]) -> list[str]:
        """Return which of these tenants of this shard the caller may not poll. Nothing is noted: a refused share is."""
        admission = self._service.admission
        principal = await admission.authenticator.authenticate(call.bearer, call.certificate)
        misplaced = admission.residency.excluded(call.entry_region)
        return [
            name
            for name in tenants
            if name in misplaced or not admission.authorizer.allowed(principal, name, "poll", queue)
        ]
