"""A charge: what a call costs, and the rate limits it counts against."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tenantq.domain.rates import Limits, Rate

RateKind = Literal["read", "write"]
RateScope = Literal["tenant", "queue", "principal"]


class Charge(msgspec.Struct, frozen=True):
    """Operations and bytes of one call. A rate of None does not limit; ``queue`` None means that the call concerns no queue."""

    kind: RateKind
    tenant: str
    tenant_rate: Rate | None
    queue: str | None
    queue_rate: Rate | None
    ops: int
    bytes: int
    owner: RateScope = "tenant"  # of the first bucket; "principal": ``tenant`` is the id of a principal

    @classmethod
    def of(
        cls,
        tenant: str,
        tenant_limits: Limits | None,
        queue: str | None,
        queue_limits: Limits | None,
        kind: RateKind,
        ops: int = 1,
        bytes: int = 0,
    ) -> Charge:
        """Return a charge against the current limits of a tenant and of one of its queues."""
        tenant_rate = _rate(tenant_limits, kind)
        queue_rate = _rate(queue_limits, kind) if queue is not None else None
        if tenant_rate is None and queue_rate is None:
            return UNLIMITED
        return cls(kind, tenant, tenant_rate, queue, queue_rate, ops, bytes)

    @classmethod
    def of_principal(cls, principal: str, ops_per_sec: int, kind: RateKind, ops: int, bytes: int) -> Charge:
        """Return a charge against the limit of a contained principal."""
        return cls(kind, principal, Rate(ops_per_sec=ops_per_sec), None, None, ops, bytes, "principal")

    @property
    def is_unlimited(self) -> bool:
        """Whether no rate limit applies."""
        return self.tenant_rate is None and self.queue_rate is None


UNLIMITED: Final = Charge("read", "", None, None, None, 0, 0)
"""What every call costs that no rate limit applies to."""


def _rate(limits: Limits | None, kind: RateKind) -> Rate | None:
    if limits is None:
        return None
    rate = limits.write if kind == "write" else limits.read
    return None if rate.ops_per_sec is None and rate.bytes_per_sec is None else rate
