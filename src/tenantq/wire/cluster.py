"""The members and shards of a cluster on the wire."""

from __future__ import annotations

from tenantq.wire.kinds import Wire, WireReply


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
    owner: str | None  # id of the member that serves it; None: nobody at the moment
    epoch: int | None  # counts its owners
    moving_to: str | None  # id of the member that it is on its way to
    load: float


class ClusterReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A cluster as one of its members sees it."""

    id: str
    this_member: str
    problem: str  # why the rows of the cluster cannot be read; empty if they can
    members: list[MemberItem]
    shards: list[ClusterShardItem]


class DrainRequest(Wire, frozen=True, kw_only=True):
    """Whether a member hands its shards over."""

    drain: bool = True
