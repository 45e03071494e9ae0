"""Where the shards of a server keep their data, and how many there are.

The data directory itself is shard 0's, so that a server of one shard grows without moving anything. Shard k lies in ``shards/<k>``, and
``shards.json`` remembers how many there are; without that file it is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from tenantq.durable_files import write_durably
from tenantq.errors import StoreDamaged

if TYPE_CHECKING:
    from pathlib import Path

SHARDS_MAX: Final = 64
TENANT_ID_BITS: Final = 26
"""Shard k numbers its tenants from k << 26 on, so that an id stands for one tenant on all shards."""

HOME: Final = 0
"""The shard that has the tenant 'default' and the platform's own keys, and says where a new tenant goes."""

REMEMBERED: Final = "shards.json"
DIRECTORY: Final = "shards"


class _Remembered(msgspec.Struct, frozen=True):
    shards: Annotated[int, msgspec.Meta(ge=1, le=SHARDS_MAX)]


def shard_count(data_dir: Path) -> int:
    """Return how many shards a data directory has; StoreDamaged where that cannot be read."""
    file = data_dir / REMEMBERED
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Remembered).shards
    except (FileNotFoundError, NotADirectoryError):
        return 1
    except (OSError, msgspec.DecodeError) as error:
        raise StoreDamaged(
            f"{file} cannot be read: {error}; it holds the number of shards, such as {{'shards': 3}}"
        ) from error


def remember_count(data_dir: Path, count: int) -> None:
    """Remember, durably, how many shards a data directory has."""
    write_durably(data_dir / REMEMBERED, msgspec.json.encode(_Remembered(count)) + b"\n")


def shard_dir(data_dir: Path, number: int) -> Path:
    """Return where a shard's data is."""
    return data_dir if number == HOME else data_dir / DIRECTORY / str(number)


def shard_dirs(data_dir: Path) -> list[Path]:
    """Return the directories of all shards of a data directory, in their order; those that were never made left out."""
    dirs = [shard_dir(data_dir, number) for number in range(shard_count(data_dir))]
    return [path for number, path in enumerate(dirs) if number == HOME or path.is_dir()]


def parent_of(data_dir: Path) -> Path | None:
    """Return the data directory that this one is a shard of; None: it is none of the others'."""
    place = data_dir.absolute()
    home = place.parent.parent
    return home if place.parent.name == DIRECTORY and (home / REMEMBERED).exists() else None


def first_tenant_id(number: int) -> int:
    """Return the id of the first tenant that a shard makes; 0 stands for the platform itself."""
    return (number << TENANT_ID_BITS) + 1
