"""Stores that commands examine: the embedded one in a data directory, or a remote one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tenantq.cli.options import Count, options
from tenantq.errors import Invalid, Unavailable
from tenantq.server.remote_store import RemoteStore, open_remote
from tenantq.store.interface import StoreOpener, StoreReader
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.shard_directories import numbered_dirs, shard_dir

T = TypeVar("T")

whole_store_options: Final = options(
    click.option("--store", envvar="TENANTQ_STORE", metavar="URL", show_envvar=True, help="Redis or PostgreSQL store to use instead of the data directory."),
    click.option("--store-name", default=RedisSettings().name, envvar=["TENANTQ_REDIS__NAME", "TENANTQ_POSTGRES__NAME"], metavar="NAME", help="Name of that store, the setting redis.name or postgres.name of its servers."),
)  # fmt: skip
store_options: Final = options(
    whole_store_options,
    click.option("--shard", type=Count(min=0), help="Only this shard of that store.  [default: all]"),
)


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


def segments_option(help: str) -> Callable[[Any], Any]:
    """Return an option for the location of exported segments. A local directory must exist."""

    def check(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
        with files_to_examine():
            if given is not None and "://" not in given and not Path(given).is_dir():
                raise Invalid(f"segments: no such directory: {given}")
        return given

    return click.option("--segments", metavar="URL", callback=check, help=help)


RemoteShards = list[tuple[str, Path, StoreOpener]]


def free_shards(url: str, name: str, data_dir: Path) -> RemoteShards:
    """Return name, local directory and opener of each shard of a remote store. They open read-only, unless a server owns them."""
    remote = _remote(url, name)
    return _shards(range(_count(remote)), data_dir, remote.read_free_shard)


def examined_shards(
    url: str | None, name: str, shard: int | None, data_dir: Path, embedded: T
) -> Sequence[tuple[str, Path, StoreOpener | T]]:
    """Return the shards of a remote store, or one, or those in a data directory with the opener ``embedded``.

    They open also while servers own them.
    """
    if url is None:
        return [(str(number), path, embedded) for number, path in numbered_dirs(data_dir)]
    remote = _remote(url, name)
    return _shards(range(_count(remote)) if shard is None else [shard], data_dir, remote.read_shard)


def _remote(url: str, name: str) -> RemoteStore:
    return open_remote(url, RedisSettings(name=name), PostgresSettings(name=name), "os")


def _shards(numbers: Iterable[int], data_dir: Path, open_shard: Callable[..., StoreReader]) -> RemoteShards:
    return [(str(one), shard_dir(data_dir, one), partial(open_shard, shard=str(one))) for one in numbers]


def _count(remote: RemoteStore) -> int:
    with closing(remote.registry()) as registry:
        found = registry.find()
        return found.shards if found is not None else 1  # a store of an earlier version has one shard
