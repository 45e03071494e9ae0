"""Credentials that other shards of the same server know: a key lies with its tenant, and the platform's with shard 0."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.cluster.peers import QUICK_MS
from tenantq.domain.access import StoredKey
from tenantq.gates.api_key import is_over
from tenantq.gates.authenticate import REMOTE_TRUST_MS

if TYPE_CHECKING:
    from tenantq.cluster.peers import Peers
    from tenantq.cluster.server import Asked
    from tenantq.engine.shard import Shard
    from tenantq.gates.authenticate import Authenticator
    from tenantq.runtime.clock import Clock

UNKNOWN_MAX: Final = 10_000
"""Tokens that nobody knew lately; so long nobody is asked again."""

_KEY: Final = "key"
_REVOKED: Final = "token_revoked"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_key: Final = msgspec.msgpack.Decoder(StoredKey).decode


class _Token(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    token_id: str | None
    principal: str


_decode_token: Final = msgspec.msgpack.Decoder(_Token).decode


class CredentialsElsewhere:
    """Asks the other shards, and answers them. See ``gates.authenticate.OtherShardCredentials``."""

    def __init__(self, peers: Peers, shard: Shard, authenticator: Authenticator, clock: Clock) -> None:
        self._peers = peers
        self._shard = shard
        self._authenticator = authenticator
        self._clock = clock
        self._unknown: OrderedDict[bytes, int] = OrderedDict()  # by hash: until when it counts
        self._asking: dict[bytes, asyncio.Future[StoredKey | None]] = {}
        peers.answers(_KEY, self._tell_key)
        peers.answers(_REVOKED, self._tell_revoked)

    def is_here(self, tenant: str | None) -> bool:
        """Tell whether this shard has the tenant; the platform has no tokens that could be revoked.

        One that nobody is known to have is not here: it may be a silent shard's, or be made at any moment.
        """
        return tenant is None or self._peers.directory.find(tenant) == self._peers.number

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the key of this hash that another shard has; several who want to know at a time ask once."""
        if self._unknown.get(hash, 0) > self._clock.monotonic_ms():
            return None
        asking = self._asking.get(hash)
        if asking is None:
            asking = self._asking[hash] = asyncio.ensure_future(self._ask(hash))
            asking.add_done_callback(lambda _: self._asking.pop(hash))
        return await asyncio.shield(asking)

    async def _ask(self, hash: bytes) -> StoredKey | None:
        found = await self._peers.ask_for_one(_KEY, hash)  # raises where it may be a key of one that could not be asked
        if found:
            return _decode_key(found)
        self._unknown[hash] = self._clock.monotonic_ms() + REMOTE_TRUST_MS
        while len(self._unknown) > UNKNOWN_MAX:
            self._unknown.popitem(last=False)
        return None

    async def token_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        """Ask the tenant's own shard; ShardDown, where that may be one that does not run."""
        shard = self._peers.directory.find(tenant)
        if shard is None:
            self._peers.directory.check_whole()
        if shard is None or shard == self._peers.number:
            return self._is_revoked(tenant, token_id, principal)
        asked = _encode(_Token(tenant, token_id, principal))
        return bool(await self._peers.ask(shard, _REVOKED, asked, QUICK_MS))

    async def _tell_key(self, asked: Asked) -> bytes:
        key = self._shard.state.access.key(asked.payload)
        if key is None:
            return b""
        now_ms = self._clock.wall_ms()
        if not is_over(key, now_ms):  # else it is not let in
            self._authenticator.last_used[key.id] = now_ms
        return _encode(key)

    async def _tell_revoked(self, asked: Asked) -> bytes:
        token = _decode_token(asked.payload)
        return b"revoked" if self._is_revoked(token.tenant, token.token_id, token.principal) else b""

    def _is_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        return self._shard.state.access.token_revoked(tenant, token_id, principal, self._clock.wall_ms())
