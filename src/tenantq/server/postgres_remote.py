"""A remote store in PostgreSQL."""

from pathlib import Path
from typing import Literal

from tenantq.store.interface import Store, StoreReader
from tenantq.store.postgres.address import PostgresAddress
from tenantq.store.postgres.client import PostgresClient
from tenantq.store.postgres.registry import PostgresRegistry
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.postgres.shard_reader import ShardReader
from tenantq.store.postgres.store import PostgresStore
from tenantq.store.shard_lease import ReleaseSignal


class PostgresRemote:
    """A ``RemoteStore`` in PostgreSQL. All shards of the process share a client."""

    def __init__(
        self, address: PostgresAddress, settings: PostgresSettings, durability: Literal["fsync", "os"]
    ) -> None:
        self._client = PostgresClient(address, settings, durability)
        self.shown_name = f"postgres.name {settings.name!r}"

    def registry(self) -> PostgresRegistry:
        client = self._client
        return PostgresRegistry(client.address, client.settings, client.durability)

    def open_shard(self, path: Path, shard: str, wait_ms: int, released: ReleaseSignal) -> Store:
        return PostgresStore(path, self._client, shard, wait_ms=wait_ms, released=released)

    def read_shard(self, path: Path, shard: str) -> StoreReader:
        return ShardReader(path, self._client, shard)

    def read_free_shard(self, path: Path, shard: str) -> StoreReader:
        return ShardReader(path, self._client, shard, must_be_free=True)
