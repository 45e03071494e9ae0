"""What moves when one topology takes another's place: every queue's shard before and after, and what each shard holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenantq.names import dead_letter_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tenantq.topology import Shard, Topology


class HeldQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as the server that holds it tells of it."""

    tenant: str
    tenant_id: int
    regions: tuple[str, ...]  # that its tenant allows; none: all
    name: str
    home_id: int  # the queue id that it is placed by: its own, or that of the queue whose dead letters it takes
    messages: int
    bytes: int


class Load(msgspec.Struct, kw_only=True):
    """What a shard holds, before and after."""

    name: str
    region: str
    queues_before: int = 0
    queues_after: int = 0
    messages_before: int = 0
    messages_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that goes from one shard to another."""

    tenant: str
    queue: str
    from_shard: str
    to_shard: str
    from_region: str
    to_region: str
    messages: int
    bytes: int


class Homeless(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant for which there is no shard."""

    tenant: str
    regions: tuple[str, ...]


class Moves(msgspec.Struct, frozen=True, kw_only=True):
    """What would move."""

    queues: int
    moved_queues: int
    moved_share: float  # of the queues
    moved_messages: int
    moved_bytes: int
    shards: list[Load]
    moves: list[Move]


def home_ids(queues: Mapping[str, tuple[int, str | None]]) -> dict[str, int]:
    """Return the id that each queue of a tenant is placed by, from ids and configured dead-letter queues by name.

    Dead letters lie with their queue; where several queues share a dead-letter queue, with the oldest of them.
    """
    owners: dict[str, str] = {}  # of dead-letter queues
    for name, (_, dead_letter) in sorted(queues.items(), key=lambda one: -one[1][0]):
        letters = dead_letter or dead_letter_name(name)
        if letters in queues and letters != name:
            owners[letters] = name
    found: dict[str, int] = {}
    for name in queues:
        seen, home = {name}, name
        while home in owners and owners[home] not in seen:  # dead letters of dead letters go the whole way
            home = owners[home]
            seen.add(home)
        found[name] = queues[home][0]
    return found


def homeless(topology: Topology, tenants: Iterable[tuple[str, tuple[str, ...]]]) -> list[Homeless]:
    """Return the tenants, given with the regions that they allow, that no shard may hold."""
    return [Homeless(tenant=name, regions=regions) for name, regions in tenants if not topology.eligible(regions)]


def moves(queues: Iterable[HeldQueue], before: Topology, after: Topology) -> Moves:
    """Return what would move; raises Invalid where a tenant has no shard in either."""
    loads: dict[str, Load] = {}
    for shard in (*before.shards, *after.shards):
        loads[shard.name] = Load(name=shard.name, region=shard.region)
    found: list[Move] = []
    count = 0
    for queue in queues:
        count += 1
        old = before.route(queue.tenant_id, queue.home_id, queue.regions)
        new = after.route(queue.tenant_id, queue.home_id, queue.regions)
        left, taken = loads[old.name], loads[new.name]
        left.queues_before += 1
        left.messages_before += queue.messages
        left.bytes_before += queue.bytes
        taken.queues_after += 1
        taken.messages_after += queue.messages
        taken.bytes_after += queue.bytes
        if old.name != new.name:
            found.append(_move(queue, old, new))
    return Moves(
        queues=count,
        moved_queues=len(found),
        moved_share=len(found) / count if count else 0.0,
        moved_messages=sum(move.messages for move in found),
        moved_bytes=sum(move.bytes for move in found),
        shards=list(loads.values()),
        moves=found,
    )


def _move(queue: HeldQueue, old: Shard, new: Shard) -> Move:
    return Move(
        tenant=queue.tenant,
        queue=queue.name,
        from_shard=old.name,
        to_shard=new.name,
        from_region=old.region,
        to_region=new.region,
        messages=queue.messages,
        bytes=queue.bytes,
    )
