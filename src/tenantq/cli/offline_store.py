"""Stores that commands examine while no server runs: the embedded one in a data directory, or one in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from tenantq.cli.options import options
from tenantq.domain.validation import validated
from tenantq.errors import Invalid, Unavailable
from tenantq.store.interface import Store
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.settings import RedisSettings

_STORE: Final = click.option(
    "--store",
    envvar="TENANTQ_STORE",
    metavar="URL",
    show_envvar=True,
    help="Redis store to use instead of the data directory.",
)
_STORE_NAME: Final = click.option(
    "--store-name",
    default=RedisSettings().name,
    show_default=True,
    envvar="TENANTQ_REDIS__NAME",
    metavar="NAME",
    help="Name of the Redis store, the setting redis.name of its servers.",
)
_SHARD: Final = click.option(
    "--shard", default="0", show_default=True, metavar="NAME", help="Shard of the Redis store."
)
store_options = options(_STORE, _STORE_NAME, _SHARD)


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


def open_redis(url: str, name: str, shard: str) -> Callable[[Path], Store]:
    """Return a function that opens a Redis store for reading, unless a server owns it."""
    try:
        from tenantq.store.redis.store import RedisStore  # noqa: PLC0415  # needs redis, which is an extra
    except ImportError as error:
        raise Invalid("store: Redis requires its client library; install tenantq[redis]") from error
    address, settings = parse_address(url), validated(RedisSettings(name=name), "redis.")
    return lambda data_dir: RedisStore(data_dir, address, settings, shard, read_only=True)
