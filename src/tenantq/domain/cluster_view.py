"""A cluster as the store describes it: its members, its shards, and the member that each shard is assigned to."""

from collections.abc import Container, Mapping
from typing import Annotated, Final

import msgspec

from tenantq.domain.names import OptionalRegionName

CLUSTER_SHARDS: Final = 64
"""Shards of a cluster whose creator names no number."""

CLUSTER_SHARDS_MAX: Final = 1_024

FIRST_FORMAT: Final = "1"
"""The format of the rows of a new cluster."""

SPREAD_FORMAT: Final = "2"
"""The format since the first tenant was spread over shards. Programs that do not know parts of tenants refuse it."""

FORMATS: Final = (FIRST_FORMAT, SPREAD_FORMAT)
"""The formats that this program reads."""


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One server process of a cluster, as its heartbeat describes it."""

    id: str  # new with every start
    peer_address: str  # HOST:PORT, for other members
    url: str = ""  # for clients, over HTTP
    rpc: str = ""  # for clients, over Cap'n Proto
    region: OptionalRegionName = ""
    capacity: float = 1.0  # relative to other members
    draining: bool = False  # it hands all its shards over
    owned: dict[int, int] = {}  # by shard: the epoch of its ownership
    acquiring: tuple[int, ...] = ()  # shards that it can serve as soon as their owners release them
    cannot_open: tuple[int, ...] = ()  # shards that it could not open lately
    loads: dict[int, float] = {}  # by shard: smoothed, in units of one busy core
    version: str = ""  # of the program
    format: str = FIRST_FORMAT  # the newest that it reads
    shards: int = 0  # its setting ``cluster.shards``; 0: it takes the number from the store
    joined_at: int = 0  # wall time in ms
    unreachable: tuple[str, ...] = ()  # members that have not answered it for a while
    machine: str = ""  # members of the same one reach each other over loopback; empty: not known

    @property
    def load(self) -> float:
        return sum(self.loads.values())


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a cluster, created with its store."""

    id: str
    format: str
    shards: Annotated[int, msgspec.Meta(ge=1, le=CLUSTER_SHARDS_MAX)]
    regions: tuple[str, ...] = ()  # shard k is in region k modulo their number; none: shards may be anywhere

    def region_of(self, shard: int) -> str:
        """Return the region of a shard; empty: any."""
        return self.regions[shard % len(self.regions)] if self.regions else ""

    def shards_in(self, regions: tuple[str, ...], served: Container[str] | None = None) -> list[int]:
        """Return the shards in the allowed regions; without allowed regions, all shards.

        With ``served``, the regions that have servers, without the shards that no server can own.
        """
        names = [(shard, self.region_of(shard)) for shard in range(self.shards)]
        return [
            shard
            for shard, region in names
            if (not regions or region in regions) and (not region or served is None or region in served)
        ]


class Heartbeats(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a cluster as one heartbeat reads them."""

    cluster: Cluster
    members: dict[str, Member]  # by id, dead ones included
    beats: dict[str, int]  # by id: changes with every heartbeat
    assignment: dict[int, str]
    assigner: str
    directory_version: int
    drains: frozenset[str] = frozenset()  # members that an operator wants to drain


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """One consistent reading of the cluster's rows."""

    cluster: Cluster
    members: Mapping[str, Member]  # by id: the members that are alive
    assignment: Mapping[int, str]  # by shard: the id of the member that should own it
    assigner: str = ""  # the member that assigns shards; empty: none at the moment
    directory_version: int = 0  # counts changes of the tenant directory
    isolated: frozenset[str] = frozenset()  # members that no other one reaches

    def owner_of(self, shard: int) -> Member | None:
        """Return the member that owns a shard; of two that claim it, the one with the higher epoch."""
        owners = [member for member in self.members.values() if shard in member.owned]
        return max(owners, key=lambda member: member.owned[shard], default=None)

    def waiting_for(self, shard: int) -> set[str]:
        """Return the ids of the members that claim a shard as soon as it is free."""
        return {member.id for member in self.members.values() if shard in member.acquiring}

    @property
    def moves(self) -> dict[int, str]:
        """By shard: the living member that it is on its way to."""
        found: dict[int, str] = {}
        for shard, wanted in self.assignment.items():
            owner = self.owner_of(shard)
            if wanted in self.members and (owner is None or owner.id != wanted):
                found[shard] = wanted
        return found


class TenantPlacement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A directory row: where a tenant lives, or a group of its queues that is not where its hash says.

    The name of such a group is ``tenant/group``. Of its row only ``shard``, ``version`` and ``moving_to`` are used.
    """

    shard: int  # its home
    shards: tuple[int, ...] = ()  # that its queues are spread over, its home first; none: all are at home
    version: int = 0  # of the directory when the row was written
    regions: tuple[str, ...] = ()
    pinned: bool = False  # placed by an operator
    dedicated: bool = False  # its shards hold no other tenant
    moving_to: int | None = None  # the shard that its rows are being copied to
    next_shards: tuple[int, ...] = ()  # to spread its queues over; none: ``shards`` is final
    leaving: tuple[int, ...] = ()  # shards that still have a part of it, which is to be moved away

    @property
    def spread(self) -> int:
        """Over how many shards its queues are spread."""
        return max(1, len(self.shards))

    @property
    def parts(self) -> tuple[int, ...]:
        """All shards that may have a part of it, its home first."""
        return tuple(dict.fromkeys((self.shard, *self.shards, *self.next_shards, *self.leaving)))
