"""Stores that commands examine: the embedded one in a data directory, or a remote one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import click

from tenantq.cli.options import options
from tenantq.cluster.layout import shard_dir
from tenantq.errors import Unavailable
from tenantq.server.remote_store import RemoteStore, open_remote
from tenantq.store.interface import StoreReader
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.redis.settings import RedisSettings

_STORE: Final = click.option(
    "--store",
    envvar="TENANTQ_STORE",
    metavar="URL",
    show_envvar=True,
    help="Redis or PostgreSQL store to use instead of the data directory.",
)
_STORE_NAME: Final = click.option(
    "--store-name",
    default=RedisSettings().name,
    show_default=True,
    envvar=["TENANTQ_REDIS__NAME", "TENANTQ_POSTGRES__NAME"],
    metavar="NAME",
    help="Name of that store, the setting redis.name or postgres.name of its servers.",
)
_SHARD: Final = click.option(
    "--shard", type=click.IntRange(min=0), metavar="N", help="Only this shard of that store.  [default: all]"
)
store_options = options(_STORE, _STORE_NAME, _SHARD)
whole_store_options = options(_STORE, _STORE_NAME)


@contextmanager
def files_to_examine() -> Iterator[None]:
    """Raise Unavailable if a file cannot be read, because that says nothing about its content."""
    try:
        yield
    except OSError as error:
        raise file_error(error) from error


def file_error(error: OSError) -> Unavailable:
    """Return the error to raise if a file cannot be opened, read or written."""
    where = f"{error.filename}: " if error.filename is not None else ""
    return Unavailable(f"{where}{error.strerror or error}; check the path and its permissions")


Shards = list[tuple[str, Path, Callable[[Path], StoreReader]]]
"""Name, local directory and opener of each."""


def free_shards(url: str, name: str, shard: int | None, data_dir: Path) -> Shards:
    """Return the shards of a remote store, or one. They open read-only, unless a server owns them."""
    remote = _remote(url, name)
    return _shards(remote, shard, data_dir, remote.read_free_shard)


def examined_shards(url: str, name: str, shard: int | None, data_dir: Path) -> Shards:
    """Return the shards of a remote store, or one, also while servers own them."""
    remote = _remote(url, name)
    return _shards(remote, shard, data_dir, remote.read_shard)


def _remote(url: str, name: str) -> RemoteStore:
    return open_remote(url, RedisSettings(name=name), PostgresSettings(name=name), "os")


def _shards(
    remote: RemoteStore, shard: int | None, data_dir: Path, open_shard: Callable[[Path, str], StoreReader]
) -> Shards:
    numbers = range(_count(remote)) if shard is None else range(shard, shard + 1)

    def opener(number: int) -> Callable[[Path], StoreReader]:
        return lambda path: open_shard(path, str(number))

    return [(str(number), shard_dir(data_dir, number), opener(number)) for number in numbers]


def _count(remote: RemoteStore) -> int:
    with closing(remote.registry()) as registry:
        found = registry.find()
        return found.shards if found is not None else 1  # a store of an earlier version has one shard
