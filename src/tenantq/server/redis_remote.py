"""A remote store in Redis."""

from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

from tenantq.doctor.running_shard import RunningShard
from tenantq.errors import StoreLocked
from tenantq.store.interface import Store, StoreReader
from tenantq.store.redis.address import RedisAddress
from tenantq.store.redis.registry import RedisRegistry
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.redis.store import RedisStore
from tenantq.store.shard_lease import ReleaseSignal


class RedisRemote:
    """A ``RemoteStore`` in Redis."""

    def __init__(self, address: RedisAddress, settings: RedisSettings, durability: Literal["fsync", "os"]) -> None:
        self._address, self._settings, self._durability = address, settings, durability
        self.shown_name = f"redis.name {settings.name!r}"

    def registry(self) -> RedisRegistry:
        return RedisRegistry(self._address, self._settings, self._durability)

    def open_shard(self, path: Path, shard: str, wait_ms: int, released: ReleaseSignal) -> Store:
        return RedisStore(
            path, self._address, self._settings, shard, durability=self._durability, wait_ms=wait_ms, released=released
        )

    def read_shard(self, path: Path, shard: str) -> StoreReader:
        with closing(self.registry()) as registry:
            is_served = registry.is_served()  # then no shard may be claimed, even during a handover
        if not is_served:
            with suppress(StoreLocked):
                return self.read_free_shard(path, shard)
        return RunningShard(path, self._address, self._settings, shard)

    def read_free_shard(self, path: Path, shard: str) -> StoreReader:
        return RedisStore(path, self._address, self._settings, shard, read_only=True)
