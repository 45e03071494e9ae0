"""Messages on the wire: added, leased, settled, looked at."""

from __future__ import annotations

from typing import Any, Literal

from tenantq.wire.kinds import Wire, WireError, WireReply


class WireMessage(Wire, frozen=True, kw_only=True, gc=False):
    """A message to add."""

    body: str | None = None
    body_base64: str | None = None
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int | None = None
    key: str | None = None
    group: str | None = None
    attributes: dict[str, str] = {}
    max_attempts: int | None = None


class AddRequest(Wire, frozen=True, kw_only=True):
    """Messages to add to one queue."""

    messages: list[WireMessage]
    key: str | None = None  # idempotency key of the whole batch: the same request again adds nothing again


class AddedItem(WireReply, frozen=True, kw_only=True, gc=False, omit_defaults=False):
    """What became of one message: an id, or an error."""

    id: str | None = None
    duplicate: bool = False
    error: WireError | None = None


class AddReply(WireReply, frozen=True, kw_only=True):
    """One item per message, in order."""

    messages: list[AddedItem]


class PollRequest(Wire, frozen=True, kw_only=True):
    """Lease messages of one queue."""

    max: int = 1
    wait_ms: int = 0
    lease_ms: int | None = None
    consumer: str | None = None  # who polls, where several consumers share a credential and an address


class FleetPollRequest(Wire, frozen=True, kw_only=True):
    """Lease messages of one queue name in many tenants; ``tenants`` None: every tenant the caller is granted."""

    queue: str
    tenants: list[str] | None = None
    max: int = 1
    wait_ms: int = 0
    lease_ms: int | None = None
    consumer: str | None = None


class DeliveredItem(WireReply, frozen=True, kw_only=True, gc=False):
    """One leased message."""

    id: str
    receipt: str
    body: str | None = None
    body_base64: str | None = None
    attempt: int
    priority: int
    attributes: dict[str, str]
    group: str | None = None
    added_at: int
    lease_until: int
    tenant: str
    queue: str


class PollReply(WireReply, frozen=True, kw_only=True):
    """The leased messages, none if there were none in time."""

    messages: list[DeliveredItem]
    now_at: int | None = None  # the server's wall clock: ``lease_until`` less this is how long a lease still lasts


class WireResult(Wire, frozen=True, kw_only=True, gc=False):
    """What a consumer reports of finished work: a completed one has a value, a failed one an error."""

    status: Literal["completed", "failed", "pending"] = "completed"
    value: str | None = None
    value_base64: str | None = None
    error: str | None = None


class AckRequest(Wire, frozen=True, kw_only=True):
    """Finish messages; ``results`` has one entry, or null, per receipt."""

    receipts: list[str]
    results: list[WireResult | None] | None = None


class NackRequest(Wire, frozen=True, kw_only=True):
    """Give failed messages back; ``delay_ms`` None: the queue's backoff."""

    receipts: list[str]
    delay_ms: int | None = None
    reason: str = ""


class ReleaseRequest(Wire, frozen=True, kw_only=True):
    """Give messages back at once, without using up an attempt."""

    receipts: list[str]


class ExtendRequest(Wire, frozen=True, kw_only=True):
    """Set leases to end ``lease_ms`` from now."""

    receipts: list[str]
    lease_ms: int


class SettledItem(WireReply, frozen=True, kw_only=True, gc=False):
    """Whether one receipt did what was asked."""

    receipt: str
    ok: bool
    error: WireError | None = None
    lease_until: int | None = None


class SettleReply(WireReply, frozen=True, kw_only=True):
    """One item per receipt, in order."""

    results: list[SettledItem]


class RemoveRequest(Wire, frozen=True, kw_only=True):
    """Delete messages by id, whatever their state."""

    ids: list[str]


class RemovedItem(WireReply, frozen=True, kw_only=True):
    """Whether one message was deleted."""

    id: str
    ok: bool
    error: WireError | None = None


class RemoveReply(WireReply, frozen=True, kw_only=True):
    """One item per id, in order."""

    results: list[RemovedItem]


class PeekRequest(Wire, frozen=True, kw_only=True):
    """Look at waiting messages without leasing them."""

    limit: int = 10
    cursor: str | None = None


class WireHistory(WireReply, frozen=True, kw_only=True):
    """How one delivery ended."""

    attempt: int
    at: int
    outcome: str
    reason: str = ""


class WireDeadLetter(WireReply, frozen=True, kw_only=True):
    """Why and from where a message became a dead letter."""

    reason: str
    source: str
    attempts: int
    at: int


class MessageFacts(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Everything known of a stored message; bodies, attributes and groups only for who may read them."""

    id: str
    tenant: str
    queue: str
    state: Literal["ready", "delayed", "blocked", "in_flight"]
    body: str | None = None
    body_base64: str | None = None
    body_hidden: bool = False
    body_error: str | None = None  # the code of the error for which body and attributes cannot be shown
    encrypted: bool = False  # at rest
    size: int
    priority: int
    attributes: dict[str, str] = {}
    group: str | None = None
    attempts: int
    max_attempts: int
    added_at: int
    visible_at: int
    expires_at: int | None = None
    lease_until: int | None = None
    history: list[WireHistory] = []
    dead: WireDeadLetter | None = None


class PeekReply(WireReply, frozen=True, kw_only=True):
    """A page of messages, and the cursor of the next one if there is one."""

    messages: list[MessageFacts]
    cursor: str | None = None


class SnapshotRequest(Wire, frozen=True, kw_only=True):
    """Keep everything that a queue holds now, to be read in pages."""

    keep_ms: int = 60_000  # how long it stays when nobody reads it
    part_messages: int | None = None  # tell where to divide it into parts of so many messages


class SnapshotReply(WireReply, frozen=True, kw_only=True):
    """A snapshot: when it was taken, how much it holds, and the ids at which to divide it."""

    snapshot: str
    taken_at: int
    messages: int
    bytes: int
    parts: list[str] = []


class ResultReply(WireReply, frozen=True, kw_only=True):
    """A message's result."""

    status: Literal["completed", "failed", "pending"]
    value: str | None = None
    value_base64: str | None = None
    value_hidden: bool = False
    error: str | None = None


class TraceReply(WireReply, frozen=True, kw_only=True):
    """The journal's rows about one message, oldest first."""

    rows: list[dict[str, Any]]
