"""What moves when one topology takes another's place: every tenant's shard before and after, and what each shard holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenantq.domain.topology import Shard, Topology


class HeldTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as the server that holds it tells of it."""

    name: str
    regions: tuple[str, ...]  # that it allows; none: all
    queues: int
    messages: int
    bytes: int


class Load(msgspec.Struct, kw_only=True):
    """What a shard holds, before and after."""

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


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that goes from one shard to another."""

    tenant: str
    from_shard: str
    to_shard: str
    from_region: str
    to_region: str
    queues: int
    messages: int
    bytes: int


class Homeless(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant for which there is no shard."""

    tenant: str
    regions: tuple[str, ...]


class Moves(msgspec.Struct, frozen=True, kw_only=True):
    """What would move."""

    tenants: int
    moved_tenants: int
    moved_share: float  # of the tenants
    moved_queues: int
    moved_messages: int
    moved_bytes: int
    shards: list[Load]
    moves: list[Move]


def homeless(topology: Topology, tenants: Iterable[tuple[str, tuple[str, ...]]]) -> list[Homeless]:
    """Return the tenants, given with the regions that they allow, that no shard may hold."""
    return [Homeless(tenant=name, regions=regions) for name, regions in tenants if not topology.eligible(regions)]


def moves(tenants: Iterable[HeldTenant], before: Topology, after: Topology) -> Moves:
    """Return what would move; raises Invalid where a tenant has no shard in either."""
    loads: dict[str, Load] = {}
    for shard in (*before.shards, *after.shards):
        loads[shard.name] = Load(name=shard.name, region=shard.region)
    found: list[Move] = []
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
            found.append(_move(tenant, old, new))
    return Moves(
        tenants=count,
        moved_tenants=len(found),
        moved_share=len(found) / count if count else 0.0,
        moved_queues=sum(move.queues for move in found),
        moved_messages=sum(move.messages for move in found),
        moved_bytes=sum(move.bytes for move in found),
        shards=list(loads.values()),
        moves=found,
    )


def _move(tenant: HeldTenant, old: Shard, new: Shard) -> Move:
    return Move(
        tenant=tenant.name,
        from_shard=old.name,
        to_shard=new.name,
        from_region=old.region,
        to_region=new.region,
        queues=tenant.queues,
        messages=tenant.messages,
        bytes=tenant.bytes,
    )
