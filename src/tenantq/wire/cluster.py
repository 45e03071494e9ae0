"""The members and shards of a cluster on the wire."""

from typing import Literal

from tenantq.wire.base_types import Wire, WireReply


class MemberItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """One server process of a cluster."""

    id: str
    url: str  # for clients
    peer_address: str  # for other members
    region: str
    version: str
    joined_at: int
    capacity: float
    load: float  # in busy cores
    shards: int  # that it owns
    draining: bool
    assigner: bool  # it assigns the shards


class ClusterShardItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """One shard of a cluster."""

    number: int
    region: str
    owner: str | None  # id of the member that serves it; None: no member at the moment
    epoch: int | None  # counts its owners
    moving_to: str | None  # id of the member that it is on its way to
    load: float


class TenantMoveItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A tenant, or a queue of one that is spread over shards, on its way to another shard."""

    tenant: str
    queue: str  # with its dead letters; empty: the whole tenant
    source: int
    target: int
    stage: Literal["planned", "waiting", "copying", "switching", "deleting"]
    rows: int  # copied so far
    problem: str  # why the last attempt failed; empty if none did


class ClusterReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A cluster as one of its members sees it."""

    id: str
    this_member: str
    problem: str  # why the rows of the cluster cannot be read; empty if they can
    members: list[MemberItem]
    shards: list[ClusterShardItem]
    moves: list[TenantMoveItem]


class PlacementReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Where a tenant lives."""

    tenant: str
    shard: int
    region: str
    spread: int  # number of shards that its queues are spread over
    shards: list[int]  # these, its home first
    changing: bool  # whether the spread is being changed
    problem: str  # why the last attempt to change it failed; empty if none did
    pinned: bool
    dedicated: bool
    version: int  # of the directory when this was last changed
    moves: list[TenantMoveItem]  # of this tenant, and of others that make room for it


class PlacementRequest(Wire, frozen=True, kw_only=True):
    """The wanted placement of a tenant."""

    shard: int | None = None  # None: stays, or with ``dedicated`` any that can be emptied
    pinned: bool = True  # false: the tenant is like others again
    dedicated: bool = False  # no other tenant on its shard
    spread: int | None = None  # instead of all others: number of shards for its queues
    dry_run: bool = False  # only check and plan


class GrowRequest(Wire, frozen=True, kw_only=True):
    """The new number of shards."""

    shards: int
    dry_run: bool = False  # only check


class DrainRequest(Wire, frozen=True, kw_only=True):
    """Whether a member hands over its shards."""

    drain: bool = True
