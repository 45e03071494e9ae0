"""Settings of a Redis store besides its address."""

from typing import Annotated, Literal

import msgspec

from tenantq.domain.names import ShardName
from tenantq.domain.validation import about, between
from tenantq.store.remote_settings import OwnershipLeaseMs, PatienceMs


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a Redis store is used."""

    name: Annotated[ShardName, about("Part of every key, so that several deployments can share a Redis.")] = "tenantq"
    replicas: Annotated[int, between(0, 100, "Replicas that must confirm a round before its reply.")] = 0
    fsync: Annotated[
        Literal["look", "always", "waitaof"],
        about("How a round gets to disk: read from CONFIG GET, or given where that is not allowed."),
    ] = "look"
    patience_ms: PatienceMs = 10_000
    lease_ms: OwnershipLeaseMs = 3_000
