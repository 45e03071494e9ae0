"""Options that several commands share."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tenantq.errors import Invalid, Unavailable
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.settings import RedisSettings, check_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenantq.store.interface import Store

_C = TypeVar("_C", bound="Callable[..., Any]")

DATA_DIR: Final = Path("tenantq-data")


def shards_by_region(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    """Return shards to add by region, as ``REGION=N`` gives them."""
    found: dict[str, int] = {}
    for text in given:
        region, _equals, number = text.partition("=")
        if not region or not number.isdecimal() or int(number) < 1:
            raise click.BadParameter(f"{text!r} is not REGION=SHARDS, such as us-east=4")
        found[region] = found.get(region, 0) + int(number)
    return found


data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DATA_DIR,
    show_default="./tenantq-data",
    envvar="TENANTQ_DATA_DIR",
    show_envvar=True,
    metavar="DIR",
    help="The data directory.",
)


def store_options(command: _C) -> _C:
    """Let a command that examines a store at rest name one in Redis."""
    for option in (
        click.option("--shard", default="0", show_default=True, metavar="NAME", help="Of a Redis store: which shard."),
        click.option(
            "--store-name",
            default=RedisSettings().name,
            show_default=True,
            envvar="TENANTQ_REDIS__NAME",
            metavar="NAME",
            help="Of a Redis store: the setting redis.name of its servers.",
        ),
        click.option(
            "--store",
            envvar="TENANTQ_STORE",
            metavar="URL",
            help="A Redis store, in place of the embedded one in the data directory.  [env: TENANTQ_STORE]",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def files_to_examine() -> Iterator[None]:
    """Raise Unavailable where a file cannot be used: that says nothing about what is in it."""
    try:
        yield
    except OSError as error:
        raise cannot_use(error) from error


def cannot_use(error: OSError) -> Unavailable:
    """Return what is told where a file cannot be opened, read or written."""
    where = f"{error.filename}: " if error.filename is not None else ""
    return Unavailable(f"{where}{error.strerror or error}; check the path and its permissions")


def store_to_read(url: str, name: str, shard: str) -> Callable[[Path], Store]:
    """Return what opens a Redis store only to read, for as long as no server owns it."""
    try:
        from tenantq.store.redis.store import RedisStore  # noqa: PLC0415  # needs redis, which is an extra
    except ImportError as error:
        raise Invalid("store: Redis needs its client library: install tenantq[redis]") from error
    address, settings = parse_address(url), check_redis(RedisSettings(name=name))
    return lambda data_dir: RedisStore(data_dir, address, settings, shard, read_only=True)
