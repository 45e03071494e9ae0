"""Remote stores: what a server, and the commands that examine one, need of any kind of them."""

from pathlib import Path
from typing import Literal, Protocol

from tenantq.cluster.registry import Registry
from tenantq.domain.validation import validated
from tenantq.errors import Invalid
from tenantq.store.address import parse_store
from tenantq.store.interface import Store, StoreReader
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.redis.address import RedisAddress
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.shard_lease import ReleaseSignal


class RemoteStore(Protocol):
    """A remote store under one name."""

    shown_name: str
    """The setting that names it, and its value, for messages."""

    def registry(self) -> Registry:
        """Return the cluster's rows; the first call connects."""

    def open_shard(self, path: Path, shard: str, wait_ms: int, released: ReleaseSignal) -> Store:
        """Own a shard. Blocks; raises StoreLocked if another server still owns it after ``wait_ms``."""

    def read_shard(self, path: Path, shard: str) -> StoreReader:
        """Open a shard to examine it, also while a server owns it."""

    def read_free_shard(self, path: Path, shard: str) -> StoreReader:
        """Open a shard to examine it. Raises StoreLocked while a server owns it."""


def open_remote(
    url: str, redis: RedisSettings, postgres: PostgresSettings, durability: Literal["fsync", "os"]
) -> RemoteStore:
    """Return the store of a URL; nothing connects yet. Raises Invalid if its library is missing."""
    address = parse_store(url)
    if isinstance(address, RedisAddress):
        try:
            from tenantq.server.redis_remote import RedisRemote  # noqa: PLC0415  # needs redis, which is an extra
        except ImportError as error:
            raise _missing("redis") from error
        return RedisRemote(address, validated(redis, "redis."), durability)
    try:
        from tenantq.server.postgres_remote import PostgresRemote  # noqa: PLC0415  # needs psycopg, which is an extra
    except ImportError as error:
        raise _missing("postgres") from error
    return PostgresRemote(address, validated(postgres, "postgres."), durability)


def _missing(extra: str) -> Invalid:
    return Invalid(f"store: its client library is not installed: run pip install '.[{extra}]' in the checkout")
