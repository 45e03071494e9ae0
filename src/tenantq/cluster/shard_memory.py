"""What is read from the memory of the shards of a process, from any thread, also of a shard whose store does not answer."""

from collections.abc import Sequence
from typing import Protocol

from tenantq.domain.access import StoredKey
from tenantq.engine.shard import Shard
from tenantq.runtime.clock import Clock
from tenantq.service.service import Service


class OpenShard(Protocol):
    """A shard of this process."""

    number: int

    @property
    def shard(self) -> Shard:
        """The engine."""

    @property
    def service(self) -> Service:
        """The service."""


class OpenShards(Protocol):
    """The shards of this process."""

    def threads(self) -> Sequence[OpenShard]:
        """Return all open shards. Safe from any thread."""


class ShardMemory:
    """Credentials, and which shards have messages for fleets."""

    def __init__(self, host: OpenShards, clock: Clock) -> None:
        self._host = host
        self._clock = clock

    def numbers(self) -> list[int]:
        """Return the shards of this process."""
        return [one.number for one in self._host.threads()]

    def find_key(self, hash: bytes) -> StoredKey | None:
        """Return the API key of a hash if a shard here has it."""
        for one in self._host.threads():
            key = one.shard.state.access.key(hash)
            if key is not None:
                now_ms = self._clock.wall_ms()
                if not key.is_over(now_ms):
                    one.service.admission.authenticator.last_used[key.id] = now_ms
                return key
        return None

    def token_revoked(self, shard: int, tenant: str, token_id: str | None, principal: str) -> bool | None:
        """Return whether a token is revoked in a tenant of a shard; None if the shard is not here."""
        for one in self._host.threads():
            if one.number == shard:
                return one.shard.state.access.token_revoked(tenant, token_id, principal, self._clock.wall_ms())
        return None

    def fleet_weights(self, queue: str) -> dict[int, int]:
        """Return the shards here with messages of a queue, and the weight of the tenants that have some.

        A shard that was never asked for this queue may have some.
        """
        weights: dict[int, int] = {}
        for one in self._host.threads():
            lane = one.shard.state.lanes.get(queue)
            if lane is None or lane.weight:
                weights[one.number] = lane.weight if lane is not None else 1
        return weights
