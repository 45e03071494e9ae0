"""Placement of tenants on shards: the topology file, the hash that assigns a tenant, and what a new topology would move.

The topology file is TOML:

[[shards]]
name = "eu"
address = "https://eu.example"     # optional: where clients reach it
region = "eu"                      # optional; required to serve tenants that name regions
count = 3                          # optional: eu-1, eu-2, eu-3
operations_per_hour = 2000000      # optional: capacity
bytes = 500000000000               # optional: capacity
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from tenantq.domain.names import FIFO_SUFFIX, OptionalRegionName, ShardName
from tenantq.domain.validation import between, build
from tenantq.errors import Invalid
from tenantq.runtime.toml_files import read_toml

SHARDS_MAX: Final = 100_000
MULTIPLIER: Final = 2_862_933_555_777_941_757
KEY_BITS: Final = 64
_MASK: Final = (1 << KEY_BITS) - 1
_DEAD_LETTERS: Final = "-dlq"
_Capacity = Annotated[int, msgspec.Meta(ge=1)]


class TopologyShard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard of a topology. A capacity of None is unknown."""

    name: ShardName
    region: OptionalRegionName = ""
    address: str = ""
    operations_per_hour: _Capacity | None = None
    bytes: _Capacity | None = None


class _Entry(TopologyShard, frozen=True, forbid_unknown_fields=True):
    """One table of the file. ``count`` creates that many shards: name-1, name-2, …."""

    count: Annotated[int, between(1, SHARDS_MAX)] | None = None

    def expanded(self) -> list[TopologyShard]:
        names = [self.name] if self.count is None else [f"{self.name}-{at}" for at in range(1, self.count + 1)]
        return [TopologyShard(name, self.region, self.address, self.operations_per_hour, self.bytes) for name in names]


class _ShardEntries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shards: list[_Entry]


class Topology(msgspec.Struct, frozen=True):
    """Shards in order. The hash depends on the order, so new shards go to the end."""

    shards: tuple[TopologyShard, ...]

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in order of first appearance."""
        return tuple(dict.fromkeys(shard.region for shard in self.shards))

    def eligible(self, allowed: Iterable[str]) -> list[int]:
        """Return the indexes of the shards in the allowed regions; without allowed regions, of all shards."""
        wanted = set(allowed)
        return [at for at, shard in enumerate(self.shards) if not wanted or shard.region in wanted]

    def route(self, tenant: str, allowed: Iterable[str] = ()) -> TopologyShard:
        """Return the tenant's shard: the jump hash of its name over the shards in its allowed regions.

        Raises Invalid if no shard is in an allowed region. There is no fallback to another region.
        """
        regions = tuple(allowed)
        places = self.eligible(regions)
        if not places:
            raise Invalid(f"no shard is in a region that the tenant allows: {', '.join(regions)}")
        return self.shards[places[jump_hash(tenant_key(tenant), len(places))]]

    def grown(self, shards: int = 0, regions: Mapping[str, int] | None = None) -> Topology:
        """Return a topology with ``shards`` more, spread over its regions in turn, and ``regions[name]`` more in each named region.

        A new shard gets the capacities of the last shard of its region, or of the last shard overall.
        """
        wanted = [self.regions[at % len(self.regions)] for at in range(shards)]
        wanted += [region for region, more in (regions or {}).items() for _ in range(more)]
        if len(self.shards) + len(wanted) > SHARDS_MAX:
            raise Invalid(f"topology: more than {SHARDS_MAX} shards")
        taken, last = {shard.name for shard in self.shards}, {shard.region: shard for shard in self.shards}
        numbers = {region: count(1) for region in wanted}
        found = list(self.shards)
        for region in wanted:
            names = (f"{region or 'shard'}-new-{number}" for number in numbers[region])
            name = next(name for name in names if name not in taken)
            like = last.get(region, self.shards[-1])
            found.append(TopologyShard(name, region, "", like.operations_per_hour, like.bytes))
            taken.add(name)
        return Topology(tuple(found))


def load_topology(file: Path) -> Topology:
    """Read a topology file. Raises Invalid if it is malformed."""
    where = f"topology {file}: "
    entries = build(_ShardEntries, read_toml(file, dict[str, Any], "topology"), where).shards
    if sum(entry.count or 1 for entry in entries) > SHARDS_MAX:
        raise Invalid(f"{where}more than {SHARDS_MAX} shards")
    shards = [shard for entry in entries for shard in entry.expanded()]
    if not shards:
        raise Invalid(f"{where}names no shard")
    if len({shard.name for shard in shards}) < len(shards):
        raise Invalid(f"{where}two shards have the same name")
    return Topology(tuple(shards))


def tenant_key(name: str) -> int:
    """Return a tenant's hash key: the first 64 bits of its name's SHA-256, which is the same on every server."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[: KEY_BITS // 8])


def jump_hash(key: int, buckets: int) -> int:
    """Return the bucket, 0 to ``buckets`` - 1, of a 64-bit key (Lamping and Veach, 2014).

    Adding a bucket moves about one key in ``buckets`` + 1, always to the new bucket.
    Raises Invalid if ``buckets`` is 0 or the key is longer.
    """
    if buckets < 1:
        raise Invalid(f"buckets: {buckets} is none to choose from")
    if not 0 <= key <= _MASK:
        raise Invalid(f"key {key}: has 64 bits")
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        key = (key * MULTIPLIER + 1) & _MASK
        following = int((bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return bucket


GROUP_SEPARATOR: Final = "/"
"""Between a tenant and a group of its queues. No name contains it."""


def placement_group(queue: str) -> str:
    """Return the group that a queue is placed with: itself, without the endings of dead-letter queues.

    A dead letter moves in one commit, so a queue and the queue of its dead letters are on one shard.
    """
    stem, fifo = (queue[: -len(FIFO_SUFFIX)], FIFO_SUFFIX) if queue.endswith(FIFO_SUFFIX) else (queue, "")
    while stem.endswith(_DEAD_LETTERS) and stem != _DEAD_LETTERS:
        stem = stem[: -len(_DEAD_LETTERS)]
    return stem + fifo


def unit_name(tenant: str, queue: str) -> str:
    """Return the name of what moves with a queue of a tenant that is spread over shards."""
    return f"{tenant}{GROUP_SEPARATOR}{placement_group(queue)}"


def split_unit(unit: str) -> tuple[str, str]:
    """Return the tenant and the group of queues that a name of the directory means; no group: the whole tenant."""
    tenant, _, group = unit.partition(GROUP_SEPARATOR)
    return tenant, group


def spread_shard(tenant: str, queue: str, shards: Sequence[int]) -> int:
    """Return the shard of a queue: the jump hash of tenant and group over the tenant's shards."""
    return shards[jump_hash(tenant_key(unit_name(tenant, queue)), len(shards))]


class HeldTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as reported by the server that holds it."""

    name: str
    regions: tuple[str, ...]  # allowed regions; empty: all
    queues: int
    messages: int
    bytes: int


class ShardLoad(msgspec.Struct, kw_only=True):
    """What a shard holds before and after a change of topology."""

    name: str
    region: str
    tenants_before: int = 0
    tenants_after: int = 0
    queues_before: int = 0
    queues_after: int = 0
    messages_before: int = 0
    messages_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class TenantMove(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that moves to another shard."""

    tenant: str
    from_shard: str
    to_shard: str
    from_region: str
    to_region: str
    queues: int
    messages: int
    bytes: int


class UnplacedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant without an eligible shard."""

    tenant: str
    regions: tuple[str, ...]


class MovePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of topology would move."""

    tenants: int
    moved_tenants: int
    moved_share: float  # of the tenants
    moved_queues: int
    moved_messages: int
    moved_bytes: int
    shards: list[ShardLoad]
    moves: list[TenantMove]


def unplaced_tenants(topology: Topology, tenants: Iterable[tuple[str, tuple[str, ...]]]) -> list[UnplacedTenant]:
    """Return the tenants that have no eligible shard. Each is given as (name, allowed regions)."""
    return [UnplacedTenant(tenant=name, regions=regions) for name, regions in tenants if not topology.eligible(regions)]


def plan_moves(tenants: Iterable[HeldTenant], before: Topology, after: Topology) -> MovePlan:
    """Return what would move. Raises Invalid if a tenant has no eligible shard in either topology."""
    loads: dict[str, ShardLoad] = {}
    for shard in (*before.shards, *after.shards):
        loads[shard.name] = ShardLoad(name=shard.name, region=shard.region)
    found: list[TenantMove] = []
    count = 0
    for tenant in tenants:
        count += 1
        old, new = before.route(tenant.name, tenant.regions), after.route(tenant.name, tenant.regions)
        left, taken = loads[old.name], loads[new.name]
        left.tenants_before += 1
        left.queues_before += tenant.queues
        left.messages_before += tenant.messages
        left.bytes_before += tenant.bytes
        taken.tenants_after += 1
        taken.queues_after += tenant.queues
        taken.messages_after += tenant.messages
        taken.bytes_after += tenant.bytes
        if old.name != new.name:
            found.append(_tenant_move(tenant, old, new))
    return MovePlan(
        tenants=count,
        moved_tenants=len(found),
        moved_share=len(found) / count if count else 0.0,
        moved_queues=sum(move.queues for move in found),
        moved_messages=sum(move.messages for move in found),
        moved_bytes=sum(move.bytes for move in found),
        shards=list(loads.values()),
        moves=found,
    )


def _tenant_move(tenant: HeldTenant, old: TopologyShard, new: TopologyShard) -> TenantMove:
    return TenantMove(
        tenant=tenant.name, from_shard=old.name, to_shard=new.name, from_region=old.region, to_region=new.region,
        queues=tenant.queues, messages=tenant.messages, bytes=tenant.bytes,
    )  # fmt: skip
