"""Requests and replies about queues."""

from typing import Annotated, Any, Literal

from tenantq.domain.limits import REDRIVE_IDS_MAX, Reason, RedriveLimit, RedriveRate
from tenantq.domain.names import QueueName
from tenantq.domain.validation import items
from tenantq.wire.base_types import Wire, WireReply
from tenantq.wire.lifecycle import SuspensionItem
from tenantq.wire.messages import MessageId


class PurgeReply(WireReply, frozen=True, kw_only=True):
    """How many messages were deleted."""

    purged: int


class RedriveChoice(Wire, frozen=True, kw_only=True):
    """Selects dead letters. Every given condition must hold."""

    source: QueueName | None = None  # the queue they came from
    reason: Reason | None = None  # a part of it
    ids: Annotated[list[MessageId], items(0, REDRIVE_IDS_MAX)] | None = None
    limit: RedriveLimit | None = None


class RedriveRequest(Wire, frozen=True, kw_only=True):
    """Send dead letters back where they came from."""

    filter: RedriveChoice = RedriveChoice()
    rate: RedriveRate | None = None
    dry_run: bool = False


class RedriveReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Progress of a redrive."""

    task: str
    state: Literal["running", "done", "cancelled", "failed"]
    moved: int  # or, in a dry run, would be moved
    skipped: int  # not selected, or their queue no longer exists
    dry_run: bool
    reason: str | None = None  # why it failed, or was cancelled by the server


class QueueReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A queue: configuration and figures."""

    name: str
    id: int  # unique inside its tenant
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


class WorkerItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A worker of a queue. Times are milliseconds since 1970."""

    queue: str
    worker: str  # its name, or its address
    principal: str
    remote: str
    version: str  # of its client
    since: int
    last_seen: int


class WorkersReply(WireReply, frozen=True, kw_only=True):
    """The workers of a tenant by queue."""

    workers: list[WorkerItem]


class DigestReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A digest of a queue's content, to compare two servers."""

    messages: int
    bytes: int  # of their bodies
    results: int
    digest: str  # over ids, sizes, priorities and attempts of messages, and over ids of results
    now: int  # the server's clock
    part: int = 0  # the last imported part of the named export
