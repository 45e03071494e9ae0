"""Credentials of a process with many shards: looked up in memory, and on other members if no shard here has them."""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

from tenantq.cluster.host import ShardHost
from tenantq.cluster.tenant_directory import TenantDirectory
from tenantq.domain.access import StoredKey
from tenantq.gates.authenticate import REMOTE_TRUST_MS
from tenantq.runtime.clock import Clock

_R = TypeVar("_R")

UNKNOWN_MAX: Final = 10_000
"""Tokens that no member knew lately, and for which none is asked again at once."""


class OtherMembers(Protocol):
    """Asks the other members of the cluster, on the main event loop."""

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the key of a hash that another member has. Raises ShardDown if it may be one that does not answer."""

    async def token_revoked(self, shard: int, tenant: str, token_id: str | None, principal: str) -> bool:
        """Ask the owner of a shard whether a token is revoked."""


class NoKeys:
    """The stored credentials of transports without a shard: none."""

    version = 0

    def key(self, _: bytes) -> StoredKey | None:
        """Return None."""
        return None

    def key_of_id(self, _: str) -> StoredKey | None:
        """Return None."""
        return None

    def token_revoked(self, _tenant: str | None, _token_id: str | None, _principal: str, _now_ms: int) -> bool:
        """Return False."""
        return False


class HostCredentials:
    """Looks credentials up for one shard, or for the transports. See ``gates.authenticate.OtherShardCredentials``."""

    def __init__(
        self,
        number: int | None,
        host: ShardHost,
        directory: TenantDirectory,
        members: OtherMembers,
        main: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        """Prepare. ``number`` None: for the transports, which have no shard."""
        self._number = number
        self._host = host
        self._directory = directory
        self._members = members
        self._main = main
        self._clock = clock
        self._unknown: OrderedDict[bytes, int] = OrderedDict()  # by hash: until when

    def is_here(self, tenant: str | None) -> bool:
        """Return whether this shard stores the revocations of a tenant. The platform has no tokens that could be revoked."""
        return tenant is None or (self._number is not None and self._directory.find(tenant) == self._number)

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the key of this hash from another shard."""
        found = self._host.find_key(hash)
        if found is not None:
            return found
        if self._unknown.get(hash, 0) > self._clock.monotonic_ms():
            return None
        found = await self._on_main(self._members.key(hash))
        if found is None:
            self._unknown[hash] = self._clock.monotonic_ms() + REMOTE_TRUST_MS
            while len(self._unknown) > UNKNOWN_MAX:
                self._unknown.popitem(last=False)
        return found

    async def token_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        """Ask the tenant's own shard; False for an unknown tenant."""
        shard = self._directory.find(tenant)
        if shard is None:
            return False
        found = self._host.token_revoked(shard, tenant, token_id, principal)
        if found is not None:
            return found
        return await self._on_main(self._members.token_revoked(shard, tenant, token_id, principal))

    async def _on_main(self, work: Coroutine[Any, Any, _R]) -> _R:
        if asyncio.get_running_loop() is self._main:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._main))
