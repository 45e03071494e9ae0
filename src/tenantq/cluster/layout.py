"""Where the shards of a server keep their data, and how many there are.

The data directory itself is shard 0's, so that a server of one shard grows without moving anything. Shard k lies in ``shards/<k>``, and
``shards.json`` remembers how many there are and which of them were made; without that file it is one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from tenantq.errors import StoreDamaged
from tenantq.runtime.durable_files import write_durably

SHARDS_MAX: Final = 64
TENANT_ID_BITS: Final = 26
"""Shard k numbers its tenants from k << 26 on, so that an id stands for one tenant on all shards."""

HOME: Final = 0
"""The shard that has the tenant 'default' and the platform's own keys, and says where a new tenant goes."""

REMEMBERED: Final = "shards.json"
DIRECTORY: Final = "shards"


class _Remembered(msgspec.Struct, frozen=True):
    shards: Annotated[int, msgspec.Meta(ge=1, le=SHARDS_MAX)]
    made: tuple[int, ...] = ()  # those but the first that have had a store: without it they do not open


def shard_count(data_dir: Path) -> int:
    """Return how many shards a data directory has; StoreDamaged where that cannot be read."""
    return _remembered(data_dir).shards


def _remembered(data_dir: Path) -> _Remembered:
    file = data_dir / REMEMBERED
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Remembered)
    except (FileNotFoundError, NotADirectoryError):
        return _Remembered(1)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreDamaged(
            f"{file} cannot be read: {error}; it holds the number of shards, such as {{'shards': 3}}"
        ) from error


def remember_count(data_dir: Path, count: int) -> None:
    """Remember, durably, how many shards a data directory has, and which of them have their store by now."""
    before = _remembered(data_dir).made
    made = tuple(number for number in range(HOME + 1, count) if number in before or _has_store(data_dir, number))
    write_durably(data_dir / REMEMBERED, msgspec.json.encode(_Remembered(count, made)) + b"\n")


def check_there(data_dir: Path, only: int | None = None) -> None:
    """Raise StoreDamaged where a shard that was made has no store any more: its disk is not there, and an empty shard is not the same."""
    for number in _remembered(data_dir).made:
        if only in {None, number} and not _has_store(data_dir, number):
            raise StoreDamaged(
                f"shard {number} was made in {shard_dir(data_dir, number)}, and is not there: mount its disk, or restore a backup of"
                f" the server. To go on without what it held, take {number} out of 'made' in {data_dir / REMEMBERED}"
            )


def _has_store(data_dir: Path, number: int) -> bool:
    return (shard_dir(data_dir, number) / "format").is_file()


def shard_dir(data_dir: Path, number: int) -> Path:
    """Return where a shard's data is."""
    return data_dir if number == HOME else data_dir / DIRECTORY / str(number)


def numbered_dirs(data_dir: Path) -> list[tuple[int, Path]]:
    """Return all shards of a data directory with where each is; those that were never made left out. StoreDamaged where one is missing."""
    check_there(data_dir)
    dirs = [(number, shard_dir(data_dir, number)) for number in range(shard_count(data_dir))]
    return [(number, path) for number, path in dirs if number == HOME or path.is_dir()]


def shard_dirs(data_dir: Path) -> list[Path]:
    """Return where all shards of a data directory are, in their order: see ``numbered_dirs``."""
    return [path for _, path in numbered_dirs(data_dir)]


def parent_of(data_dir: Path) -> Path | None:
    """Return the data directory that this one is a shard of; None: it is none of the others'."""
    place = data_dir.absolute()
    home = place.parent.parent
    return home if place.parent.name == DIRECTORY and (home / REMEMBERED).exists() else None


def first_tenant_id(number: int) -> int:
    """Return the id of the first tenant that a shard makes; 0 stands for the platform itself."""
    return (number << TENANT_ID_BITS) + 1
