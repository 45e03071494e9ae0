"""Queues on the wire, and what is done to all of one's messages."""

from __future__ import annotations

from typing import Any, Literal

from tenantq.wire.acts import SuspensionItem
from tenantq.wire.kinds import Wire, WireReply


class PurgeReply(WireReply, frozen=True, kw_only=True):
    """How many messages went."""

    purged: int


class RedriveChoice(Wire, frozen=True, kw_only=True):
    """Which dead letters are meant; every condition given must hold."""

    source: str | None = None  # the queue they came from
    reason: str | None = None  # a part of it
    ids: list[str] | None = None
    limit: int | None = None  # at most so many


class RedriveRequest(Wire, frozen=True, kw_only=True):
    """Send dead letters back where they came from."""

    filter: RedriveChoice = RedriveChoice()
    rate: int | None = None
    dry_run: bool = False


class RedriveReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """How a redrive stands."""

    task: str
    state: Literal["running", "done", "cancelled"]
    moved: int  # or, in a dry run, would be moved
    skipped: int  # did not pass the filter, or their queue is gone
    dry_run: bool


class QueueReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A queue: configuration and figures."""

    name: str
    id: int  # inside its tenant; with the tenant's, what a topology goes by
    tenant: str
    status: Literal["active", "paused", "draining"]
    suspension: SuspensionItem | None = None
    config: dict[str, Any]
    ready: int
    delayed: int
    in_flight: int
    blocked: int
    dead: int
    bytes: int
    oldest_age_ms: int
    added_total: int
    added_bytes_total: int
    delivered_total: int
    acked_total: int
    nacked_total: int
    lease_expired_total: int
    dead_total: int
    expired_total: int
    removed_total: int
    healed_total: int


class QueuesReply(WireReply, frozen=True, kw_only=True):
    """A page of a tenant's queues, and the name after which the next one starts."""

    queues: list[QueueReply]
    cursor: str | None = None


class DigestReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """What a queue holds, so that two servers can be held against each other."""

    messages: int
    bytes: int  # of their bodies
    results: int
    digest: str  # over ids, sizes, priorities and attempts of messages, and over ids of results
    now: int  # the server's clock
    part: int = 0  # the last part that it has taken in of the export that was named
