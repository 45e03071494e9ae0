"""What processes with shards ask each other about all their shards, answered from memory."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tenantq.cluster.error_codec import NotOwner
from tenantq.cluster.fleet_waits import FleetWaits
from tenantq.cluster.handshake import PeerName
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.domain.access import StoredKey


class FoundKey(msgspec.Struct, frozen=True):
    """What a process knows about a token, and the shards that it has looked through."""

    key: StoredKey | None
    shards: list[int]


class MemberQueries:
    """The answers of this process."""

    def __init__(self, memory: ShardMemory, waits: FleetWaits) -> None:
        self._memory = memory
        self._waits = waits

    def fleet_weights(self, queue: str) -> dict[int, int]:
        """Return the shards here with messages of a queue, and the weights of their tenants."""
        return self._memory.fleet_weights(queue)

    async def fleet_work(self, queue: str, wait_ms: int) -> bool:
        """Wait until more messages of a queue arrive; return whether some have."""
        event = self._waits.enter(queue)
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            self._waits.leave(queue, event)
        return True

    def key(self, hash: bytes) -> FoundKey:
        """Return the API key of a hash if a shard here has it."""
        shards = self._memory.numbers()
        return FoundKey(self._memory.find_key(hash), shards)

    def token_revoked(self, shard: int, tenant: str, token_id: str | None, principal: str) -> bool:
        """Return whether a token is revoked in a tenant. Raises NotOwner if the shard is not here."""
        found = self._memory.token_revoked(shard, tenant, token_id, principal)
        if found is None:
            raise NotOwner(f"shard {shard} is not here")
        return found


class OtherMembers(Protocol):
    """The other processes with shards: the members of a cluster, or the other shards of an embedded server."""

    hurry: Callable[[], None]  # has it read again which process has which shard

    def others(self) -> list[PeerName]:
        """Return all of them."""

    def members(self) -> list[PeerName]:
        """Return those that can be reached directly."""

    def owner(self, shard: int) -> PeerName | None:
        """Return which of them has a shard; None if it is not known."""

    async def query(self, member: PeerName, path: str, *arguments: Any, timeout_ms: int) -> Any:
        """Return the answer of a member. Raises ShardDown."""

    async def ask(self, member: PeerName, path: str, *arguments: Any) -> Any:
        """Return the answer of a member; through another one if there is no direct way. Raises ShardDown."""
