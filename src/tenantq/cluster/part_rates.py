"""The rate limits of spread tenants as parts use them that are not the home: each charge is made there."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tenantq.cluster.escrow import ANSWER_MS
from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.engine.queue_state import TenantState
from tenantq.errors import TenantqError
from tenantq.gates.charge import RateKind
from tenantq.runtime.clock import Clock


class PartRates:
    """Charges calls of tenants whose home is another shard. Used on the event loop of the shard."""

    def __init__(
        self, calls: CallsFromShard, clock: Clock, background: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._calls, self._clock, self._background = calls, clock, background
        self._debts: dict[tuple[int, RateKind], int] = {}  # by tenant id: until when the bucket is in debt

    async def admit(self, tenant: TenantState, kind: RateKind, ops: int, size: int, wait_ms: int) -> None:
        """Take tokens, waiting up to ``wait_ms`` for them. Raises RateLimited, or ShardDown if home does not answer."""
        if _is_limited(tenant, kind):
            await self._ask(tenant, "admit_rate", kind, ops, size, wait_ms, timeout_ms=ANSWER_MS + wait_ms)

    async def take(self, tenant: TenantState, kind: RateKind, most: int) -> int | None:
        """Take up to ``most`` operations; return how many were left to take. None: they are not limited."""
        if not _is_limited(tenant, kind):
            return None
        found: int | None = await self._ask(tenant, "take_rate", kind, most)
        return found

    def charge(self, tenant: TenantState, kind: RateKind, ops: int, size: int) -> None:
        """Take what a call has used, into debt if tokens are missing; below zero: return it. Does not wait for home."""
        if _is_limited(tenant, kind) and (ops or size):
            self._background(self._charge(tenant, kind, ops, size))

    async def _charge(self, tenant: TenantState, kind: RateKind, ops: int, size: int) -> None:
        try:
            wait_ms: int = await self._ask(tenant, "charge_rate", kind, ops, size)
        except TenantqError:
            return  # home has a new owner, whose buckets are full
        if wait_ms:
            self._debts[tenant.id, kind] = self._clock.monotonic_ms() + wait_ms
        else:
            self._debts.pop((tenant.id, kind), None)

    def wait_ms(self, tenant: TenantState, kind: RateKind) -> int:
        """Return for how long the last charge found the bucket in debt."""
        return max(0, self._debts.get((tenant.id, kind), 0) - self._clock.monotonic_ms())

    async def _ask(self, tenant: TenantState, method: str, *arguments: Any, timeout_ms: int = ANSWER_MS) -> Any:
        assert tenant.part is not None
        return await self._calls.query(
            tenant.part.home, f"parts.{method}", tenant.name, *arguments, timeout_ms=timeout_ms
        )


def _is_limited(tenant: TenantState, kind: RateKind) -> bool:
    rate = tenant.config.limits.write if kind == "write" else tenant.config.limits.read
    return rate.ops_per_sec is not None or rate.bytes_per_sec is not None
