"""Settings that all remote stores have."""

from typing import Annotated

from tenantq.domain.validation import between

PatienceMs = Annotated[int, between(100, 3_600_000, "How long an unreachable store is retried before the shard stops.")]
OwnershipLeaseMs = Annotated[
    int, between(500, 3_600_000, "Time without a heartbeat of the owner before another server takes over.")
]
