"""Stores that commands examine: the embedded one in a data directory, or one in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import click

from tenantq.cli.options import options
from tenantq.cluster.layout import shard_dir
from tenantq.domain.validation import validated
from tenantq.errors import Invalid, StoreLocked, Unavailable
from tenantq.store.interface import Store, StoreReader
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
    "--shard", type=click.IntRange(min=0), metavar="N", help="Only this shard of the Redis store.  [default: all]"
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


def redis_shards(
    url: str, name: str, shard: int | None, data_dir: Path
) -> list[tuple[str, Path, Callable[[Path], Store]]]:
    """Return name, local directory and opener of the shards of a Redis store, or of one. They open read-only, unless a server owns them."""
    try:
        from tenantq.store.redis.registry import RedisRegistry  # noqa: PLC0415  # needs redis, which is an extra
        from tenantq.store.redis.store import RedisStore  # noqa: PLC0415  # as above
    except ImportError as error:
        raise Invalid("store: Redis requires its client library: run pip install '.[redis]' in the checkout") from error
    address, settings = parse_address(url), validated(RedisSettings(name=name), "redis.")
    if shard is None:
        registry = RedisRegistry(address, settings, "os")
        try:
            found = registry.find()
            numbers = range(found.shards if found is not None else 1)  # a store of an earlier version has one shard
        finally:
            registry.close()
    else:
        numbers = range(shard, shard + 1)

    def opener(number: int) -> Callable[[Path], Store]:
        return lambda path: RedisStore(path, address, settings, str(number), read_only=True)

    return [(str(number), shard_dir(data_dir, number), opener(number)) for number in numbers]


def examined_shards(
    url: str, name: str, shard: int | None, data_dir: Path
) -> list[tuple[str, Path, Callable[[Path], StoreReader]]]:
    """Return name, local directory and opener of the shards of a Redis store, or of one, also while servers own them."""
    free = redis_shards(url, name, shard, data_dir)
    from tenantq.doctor.running_shard import RunningShard  # noqa: PLC0415  # needs redis, which is an extra
    from tenantq.store.redis.registry import RedisRegistry  # noqa: PLC0415  # as above

    address, settings = parse_address(url), RedisSettings(name=name)

    def opener(number: str, open_free: Callable[[Path], Store]) -> Callable[[Path], StoreReader]:
        def open_shard(path: Path) -> StoreReader:
            with closing(RedisRegistry(address, settings, "os")) as registry:
                is_served = registry.is_served()  # then no shard may be claimed, even during a handover
            if not is_served:
                with suppress(StoreLocked):
                    return open_free(path)
            return RunningShard(path, address, settings, number)

        return open_shard

    return [(number, path, opener(number, open_free)) for number, path, open_free in free]
