"""Credentials that other shards know: a key is stored with its tenant, the platform's keys on the first shard."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from tenantq.cluster.member_queries import FoundKey, OtherMembers
from tenantq.cluster.shard_calls import ShardCalls, on_loop
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.cluster.shard_routing import RoutingDirectory
from tenantq.domain.access import StoredKey
from tenantq.errors import ShardDown, TenantqError
from tenantq.gates.authenticate import REMOTE_TRUST_MS
from tenantq.runtime.bounded_dict import BoundedDict
from tenantq.runtime.clock import Clock
from tenantq.store.shard_directories import HOME

UNKNOWN_MAX: Final = 10_000
"""Tokens that no shard knew lately, and for which no shard is asked again at once."""


class NoKeys:
    """The stored credentials of transports without a shard: none."""

    version = 0

    def key(self, _: bytes) -> StoredKey | None:
        """Return None."""
        return None

    def token_revoked(self, _tenant: str | None, _token_id: str | None, _principal: str, _now_ms: int) -> bool:
        """Return False."""
        return False


class CredentialLookups:
    """Looks credentials up in other processes, for all shards of this one. Used on the main event loop."""

    def __init__(
        self,
        memory: ShardMemory,
        members: OtherMembers,
        calls: ShardCalls,
        clock: Clock,
        copied: Callable[[bytes], StoredKey | None] = lambda _: None,
    ) -> None:
        """Prepare. ``copied`` finds a key of the platform while the first shard has no owner."""
        self.memory = memory
        self._copied = copied
        self._members = members
        self._calls = calls
        self._clock = clock
        self._unknown: BoundedDict[bytes, int] = BoundedDict(UNKNOWN_MAX)  # by hash: until when
        self._asking: dict[bytes, asyncio.Future[StoredKey | None]] = {}  # by hash

    def is_unknown(self, hash: bytes) -> bool:
        """Return whether no shard knew a token lately. Safe from any thread."""
        return self._unknown.get(hash, 0) > self._clock.monotonic_ms()

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the key of a hash. Raises ShardDown if it may be on a shard that nobody has at the moment.

        Callers that ask at the same time share the answer: while a shard has no owner, there may be many.
        """
        asking = self._asking.get(hash)
        if asking is None:
            asking = self._asking[hash] = asyncio.ensure_future(self._find_key(hash))
            asking.add_done_callback(lambda _: self._asking.pop(hash))
        return await asyncio.shield(asking)

    async def _find_key(self, hash: bytes) -> StoredKey | None:
        until_ms = self._clock.monotonic_ms() + self._calls.hold_ms
        while True:
            missing = set(range(self._calls.count)).difference(self.memory.numbers())
            found = self.memory.find_key(hash)
            if found is None and missing:
                found, have_all_answered = await self._ask_others(hash, missing)
                if have_all_answered and HOME in missing:  # nobody can have changed these keys
                    found = self._copied(hash)
            if found is not None:
                return found
            if not missing:
                break
            await self._calls.hold(min(missing), until_ms)
        self._unknown[hash] = self._clock.monotonic_ms() + REMOTE_TRUST_MS
        return None

    async def _ask_others(self, hash: bytes, missing: set[int]) -> tuple[StoredKey | None, bool]:
        """Return a key that another process has, and whether all of them have answered.

        Remove the shards that do not have the key from ``missing``.
        """
        asked: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._members.ask(member, "member.key", hash)) for member in self._members.others()
        ]
        answered = 0
        try:
            for answering in asyncio.as_completed(asked):
                with contextlib.suppress(TenantqError):
                    answer: FoundKey = await answering
                    answered += 1
                    if answer.key is not None:
                        return answer.key, False
                    missing.difference_update(answer.shards)
                if not missing:
                    break
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return None, answered == len(asked)

    async def token_revoked(self, shard: int, tenant: str, token_id: str | None, principal: str) -> bool:
        """Ask the owner of a shard whether a token is revoked."""
        until_ms = self._clock.monotonic_ms() + self._calls.hold_ms
        asked = (shard, tenant, token_id, principal)
        while True:
            here = self.memory.token_revoked(*asked)
            if here is not None:
                return here
            owner = self._members.owner(shard)
            if owner is not None:
                try:
                    return bool(await self._members.ask(owner, "member.token_revoked", *asked))
                except ShardDown:
                    self._members.hurry()
            await self._calls.hold(shard, until_ms)


class ShardCredentials:
    """Looks credentials up for one shard, or for the transports. See ``gates.authenticate.OtherShardCredentials``."""

    def __init__(
        self,
        number: int | None,
        directory: RoutingDirectory,
        lookups: CredentialLookups,
        main: asyncio.AbstractEventLoop,
    ) -> None:
        """Prepare. ``number`` None: for the transports, which have no shard. ``main`` is the event loop of the lookups."""
        self._number = number
        self._directory = directory
        self._lookups = lookups
        self._main = main

    def is_here(self, tenant: str | None) -> bool:
        """Return whether this shard stores the revocations of a tenant. The platform has no tokens that could be revoked.

        An unknown tenant is not here: it may belong to a shard that does not run, or be created at any moment.
        """
        return tenant is None or (self._number is not None and self._directory.find(tenant) == self._number)

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the key of this hash from another shard."""
        found = self._lookups.memory.find_key(hash)
        if found is not None or self._lookups.is_unknown(hash):
            return found
        return await on_loop(self._main, self._lookups.key(hash))

    async def token_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        """Ask the tenant's own shard. False for an unknown tenant; ShardDown if its shard may be one that does not run."""
        shard = self._directory.find(tenant)
        if shard is None:
            self._directory.check_all_run()
            return False
        found = self._lookups.memory.token_revoked(shard, tenant, token_id, principal)
        if found is not None:
            return found
        return await on_loop(self._main, self._lookups.token_revoked(shard, tenant, token_id, principal))
