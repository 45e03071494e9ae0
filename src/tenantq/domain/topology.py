"""Shards and their regions, read from TOML; where a tenant belongs among them, and what they become when some are added.

[[shards]]
name = "eu"
address = "https://eu.example"     # optional: where clients reach it
region = "eu"                      # optional; a tenant that names regions is not served by a shard without one
count = 3                          # optional: eu-1, eu-2, eu-3
operations_per_hour = 2000000      # optional: what the shard can take
bytes = 500000000000               # optional: what it can hold
"""

from __future__ import annotations

import re
import tomllib
from itertools import count
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.domain.jump_hash import jump_hash, tenant_key
from tenantq.domain.names import check_shard_name
from tenantq.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SHARDS_MAX: Final = 100_000
_REGION: Final = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?)?")


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard; capacities are per shard, none means that it is not known."""

    name: str
    region: str = ""
    address: str = ""
    operations_per_hour: int | None = None
    bytes: int | None = None


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    region: str = ""
    address: str = ""
    operations_per_hour: int | None = None
    bytes: int | None = None
    count: int | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shards: list[_Entry]


class Topology(msgspec.Struct, frozen=True):
    """Shards in their order, which is what the hash goes by: new ones are added at the end."""

    shards: tuple[Shard, ...]

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in the order in which they first appear."""
        return tuple(dict.fromkeys(shard.region for shard in self.shards))

    def eligible(self, allowed: Iterable[str]) -> list[int]:
        """Return the places of the shards that a tenant of these regions may be on; none allowed: all of them."""
        wanted = set(allowed)
        return [at for at, shard in enumerate(self.shards) if not wanted or shard.region in wanted]

    def route(self, tenant: str, allowed: Iterable[str] = ()) -> Shard:
        """Return the shard where a tenant belongs: the jump hash of its name over the shards in regions that it allows.

        Raises Invalid where there is no such shard; another region is never a way out.
        """
        regions = tuple(allowed)
        places = self.eligible(regions)
        if not places:
            raise Invalid(f"no shard is in a region that the tenant allows: {', '.join(regions)}")
        return self.shards[places[jump_hash(tenant_key(tenant), len(places))]]

    def grown(self, shards: int = 0, regions: Mapping[str, int] | None = None) -> Topology:
        """Return it with so many shards more, dealt to its regions in turn, and so many more in each named region.

        A new shard can take what the last one of its region can, or else what the last of all can.
        """
        wanted = [self.regions[at % len(self.regions)] for at in range(shards)]
        wanted += [region for region, more in (regions or {}).items() for _ in range(more)]
        if len(self.shards) + len(wanted) > SHARDS_MAX:
            raise Invalid(f"topology: more than {SHARDS_MAX} shards")
        taken, last = {shard.name for shard in self.shards}, {shard.region: shard for shard in self.shards}
        numbers = {region: count(1) for region in wanted}
        found = list(self.shards)
        for region in wanted:
            name = next(
                name
                for name in (f"{region or 'shard'}-new-{number}" for number in numbers[region])
                if name not in taken
            )
            like = last.get(region, self.shards[-1])
            found.append(Shard(name, region, "", like.operations_per_hour, like.bytes))
            taken.add(name)
        return Topology(tuple(found))


def load_topology(file: Path) -> Topology:
    """Read and check a topology; raise Invalid naming what is wrong."""
    try:
        given = msgspec.convert(tomllib.loads(file.read_text()), _File)
    except OSError as error:
        raise Invalid(f"topology {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Invalid(f"topology {file}: {error}") from error
    shards: list[Shard] = []
    for entry in given.shards:
        _check(f"topology {file}: shard {entry.name!r}", entry, len(shards))
        names = [entry.name] if entry.count is None else [f"{entry.name}-{at}" for at in range(1, entry.count + 1)]
        shards += [Shard(name, entry.region, entry.address, entry.operations_per_hour, entry.bytes) for name in names]
    if not shards:
        raise Invalid(f"topology {file}: names no shard")
    if len({shard.name for shard in shards}) < len(shards):
        raise Invalid(f"topology {file}: two shards have the same name")
    return Topology(tuple(shards))


def check_region(where: str, region: str) -> str:
    """Return ``region`` if it may name one, else raise Invalid."""
    if _REGION.fullmatch(region) is None:
        raise Invalid(f"{where}: region {region!r}: 1 to 32 characters of a-z, 0-9 and '-', alphanumeric at both ends")
    return region


def _check(where: str, entry: _Entry, before: int) -> None:
    check_shard_name(where, entry.name)
    check_region(where, entry.region)
    for name in ("operations_per_hour", "bytes", "count"):
        value = getattr(entry, name)
        if value is not None and value < 1:
            raise Invalid(f"{where}: {name} must be 1 or more")
    if before + (entry.count or 1) > SHARDS_MAX:
        raise Invalid(f"{where}: more than {SHARDS_MAX} shards")
