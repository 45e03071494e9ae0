"""A copy of the platform's keys, used while the first shard, which stores them, has no owner."""

import asyncio
import logging
from typing import Final

import msgspec

from tenantq.cluster.member_queries import OtherMembers
from tenantq.cluster.shard_memory import OpenShards
from tenantq.domain.access import StoredKey
from tenantq.engine.access_store import PLATFORM
from tenantq.errors import TenantqError
from tenantq.runtime.clock import Clock, sleep_ms
from tenantq.store.shard_directories import HOME

log = logging.getLogger("tenantq.cluster")

INTERVAL_MS: Final = 250
"""Pause between two reads. A key that is revoked in the last moments of an owner stays valid until the next owner opens the shard."""


class PlatformKeys(msgspec.Struct, frozen=True):
    """The platform's keys as an owner of the first shard has them."""

    epoch: int  # of the ownership
    version: int  # of the owner's credentials: grows with every change
    keys: list[StoredKey] | None  # None: the caller has this version


def read_platform_keys(host: OpenShards, epoch: int, version: int) -> PlatformKeys | None:
    """Return the platform's keys if the first shard is here; without the keys if the caller has this version."""
    for one in host.threads():
        if one.number == HOME:
            state = one.shard.state
            now = (
                state.store.ownership.epoch,
                state.access.version,
            )  # read before the keys, which may change meanwhile
            keys = None if now == (epoch, version) else list(state.access.keys(PLATFORM).values())
            return PlatformKeys(*now, keys)
    return None


class PlatformKeyCopy:
    """The platform's keys as they were last read from the owner of the first shard. Used on the main event loop."""

    def __init__(self, host: OpenShards, members: OtherMembers, clock: Clock) -> None:
        self._host, self._members, self._clock = host, members, clock
        self._epoch = self._version = -1  # nothing was read yet
        self._by_hash: dict[bytes, StoredKey] = {}
        self._task: asyncio.Task[None] | None = None

    def find(self, hash: bytes) -> StoredKey | None:
        """Return the key of a hash, revoked or not. None: it is not a key of the platform, or not known here."""
        return self._by_hash.get(hash)

    def start(self) -> None:
        """Read the keys, and read them again at an interval."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.refresh()
            except TenantqError as error:  # the copy is for this case
                log.debug("the platform's keys were not read: %s", error)
            except Exception:
                log.exception("the platform's keys were not read; the next attempt follows")
            await sleep_ms(self._clock, INTERVAL_MS)

    async def refresh(self) -> None:
        """Read the keys, if the first shard has an owner. Raises ShardDown if the owner does not answer."""
        found = read_platform_keys(self._host, self._epoch, self._version)
        if found is None and (owner := self._members.owner(HOME)) is not None:
            found = await self._members.ask(owner, "member.platform_keys", self._epoch, self._version)
        if found is not None and found.keys is not None:
            self._epoch, self._version = found.epoch, found.version
            self._by_hash = {key.token_hash: key for key in found.keys}
