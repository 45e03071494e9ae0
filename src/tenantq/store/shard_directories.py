"""The directories of a server's embedded shards, and their number.

The data directory itself belongs to shard 0, so a server with one shard can grow without moving files. Shard k is in
``shards/<k>``. ``shards.json`` holds the number of shards and which of them were created; without that file there is one.
"""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from tenantq.errors import StoreDamaged
from tenantq.runtime.durable_files import write_durably

SHARDS_MAX: Final = 64
TENANT_ID_BITS: Final = 26
"""Shard k numbers its tenants from k << 26 on, so that IDs are unique on all shards."""

_WRAP_BITS: Final = 4

HOME: Final = 0
"""The shard with the tenant 'default' and the platform's keys. It places new tenants."""

REMEMBERED: Final = "shards.json"
DIRECTORY: Final = "shards"


class _Remembered(msgspec.Struct, frozen=True):
    shards: Annotated[int, msgspec.Meta(ge=1, le=SHARDS_MAX)]
    made: tuple[int, ...] = ()  # all but the first that have had a store: they do not open without it


def shard_count(data_dir: Path) -> int:
    """Return the number of shards of a data directory. Raises StoreDamaged if it cannot be read."""
    return _remembered(data_dir).shards


def _remembered(data_dir: Path) -> _Remembered:
    file = data_dir / REMEMBERED
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Remembered)
    except (FileNotFoundError, NotADirectoryError):
        return _Remembered(1)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreDamaged(
            f"{file} cannot be read: {error}. It contains the number of shards, such as {{'shards': 3}}."
        ) from error


def remember_count(data_dir: Path, count: int) -> None:
    """Store the number of shards of a data directory, and which of them have a store."""
    before = _remembered(data_dir).made
    made = tuple(number for number in range(HOME + 1, count) if number in before or _has_store(data_dir, number))
    write_durably(data_dir / REMEMBERED, msgspec.json.encode(_Remembered(count, made)) + b"\n")


def check_there(data_dir: Path, only: int | None = None) -> None:
    """Raise StoreDamaged if the store of a shard is missing, for example because its disk is not mounted."""
    for number in _remembered(data_dir).made:
        if only in {None, number} and not _has_store(data_dir, number):
            raise StoreDamaged(
                f"shard {number} is missing in {shard_dir(data_dir, number)}. Mount its disk, or restore a backup of the server."
                f" To continue without its data, remove {number} from 'made' in {data_dir / REMEMBERED}."
            )


def _has_store(data_dir: Path, number: int) -> bool:
    return (shard_dir(data_dir, number) / "format").is_file()


def shard_dir(data_dir: Path, number: int) -> Path:
    """Return the directory of a shard."""
    return data_dir if number == HOME else data_dir / DIRECTORY / str(number)


def numbered_dirs(data_dir: Path) -> list[tuple[int, Path]]:
    """Return the shards of a data directory that were created, with their directories. Raises StoreDamaged if one is missing."""
    check_there(data_dir)
    dirs = [(number, shard_dir(data_dir, number)) for number in range(shard_count(data_dir))]
    return [(number, path) for number, path in dirs if number == HOME or path.is_dir()]


def shard_dirs(data_dir: Path) -> list[Path]:
    """Return the directories of all shards, in order; see ``numbered_dirs``."""
    return [path for _, path in numbered_dirs(data_dir)]


def parent_of(data_dir: Path) -> Path | None:
    """Return the data directory that this one is a shard of; None if it is not a shard's."""
    place = data_dir.absolute()
    home = place.parent.parent
    return home if place.parent.name == DIRECTORY and (home / REMEMBERED).exists() else None


def first_tenant_id(number: int) -> int:
    """Return the ID of the first tenant of a shard; 0 is the platform.

    Shards from 64 on, which only a cluster has, begin inside the range of a lower one, far above the IDs in use there.
    """
    wraps, place = divmod(number, SHARDS_MAX)
    return (place << TENANT_ID_BITS) + (wraps << (TENANT_ID_BITS - _WRAP_BITS)) + 1
