"""Rate limits of a tenant whose queues are spread over shards: the home shard has the buckets, and other shards charge it."""

from __future__ import annotations

from typing import Protocol

from tenantq.engine.queue_state import TenantState
from tenantq.gates.charge import RateKind


class HomeRates(Protocol):
    """The buckets of tenants whose home is another shard."""

    async def admit(self, tenant: TenantState, kind: RateKind, ops: int, size: int, wait_ms: int) -> None:
        """Take tokens, waiting up to ``wait_ms`` for them. Raises RateLimited, or ShardDown if home does not answer."""

    async def take(self, tenant: TenantState, kind: RateKind, most: int) -> int | None:
        """Take up to ``most`` operations; return how many were left to take. None: they are not limited."""

    def charge(self, tenant: TenantState, kind: RateKind, ops: int, size: int) -> None:
        """Take what a call has used, into debt if tokens are missing; below zero: return it. Does not wait for home."""

    def wait_ms(self, tenant: TenantState, kind: RateKind) -> int:
        """Return how long the bucket stays in debt, as of the last charge."""
