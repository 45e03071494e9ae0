"""Credentials that other shards of the same server know: a key is stored with its tenant, the platform's keys on shard 0."""

import asyncio
from collections import OrderedDict
from typing import Final

from tenantq.cluster.directory import Directory
from tenantq.cluster.peer_calls import PeerCalls
from tenantq.cluster.peer_queries import PeerQueries
from tenantq.cluster.peers import QUICK_MS
from tenantq.domain.access import StoredKey
from tenantq.gates.authenticate import REMOTE_TRUST_MS
from tenantq.runtime.clock import Clock

UNKNOWN_MAX: Final = 10_000
"""Tokens that no shard knew lately, and for which no shard is asked again at once."""


class ClusterCredentials:
    """Looks credentials up on the other shards. See ``gates.authenticate.OtherShardCredentials``."""

    def __init__(self, calls: PeerCalls, directory: Directory, queries: PeerQueries, clock: Clock) -> None:
        self._calls = calls
        self._directory = directory
        self._queries = queries
        self._clock = clock
        self._unknown: OrderedDict[bytes, int] = OrderedDict()  # by hash: until when
        self._asking: dict[bytes, asyncio.Future[StoredKey | None]] = {}

    def is_here(self, tenant: str | None) -> bool:
        """Return whether this shard knows what is revoked in a tenant. The platform has no tokens that could be revoked.

        An unknown tenant is not here: it may belong to a shard that does not run, or be created at any moment.
        """
        return tenant is None or self._directory.find(tenant) == self._directory.number

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the key of this hash that another shard has. Concurrent calls for one hash ask once."""
        if self._unknown.get(hash, 0) > self._clock.monotonic_ms():
            return None
        asking = self._asking.get(hash)
        if asking is None:
            asking = self._asking[hash] = asyncio.ensure_future(self._ask(hash))
            asking.add_done_callback(lambda _: self._asking.pop(hash))
        return await asyncio.shield(asking)

    async def _ask(self, hash: bytes) -> StoredKey | None:
        found: StoredKey | None = await self._calls.query_first("peer.key", hash, timeout_ms=QUICK_MS)
        if found is None:
            self._unknown[hash] = self._clock.monotonic_ms() + REMOTE_TRUST_MS
            while len(self._unknown) > UNKNOWN_MAX:
                self._unknown.popitem(last=False)
        return found

    async def token_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        """Ask the tenant's own shard; raise ShardDown if that may be one that does not run."""
        owner = self._directory.find(tenant)
        if owner is None:
            self._directory.check_whole()
        if owner is None or owner == self._directory.number:
            return await self._queries.is_token_revoked(tenant, token_id, principal)
        found: bool = await self._calls.query(
            owner, "peer.is_token_revoked", tenant, token_id, principal, timeout_ms=QUICK_MS
        )
        return found
