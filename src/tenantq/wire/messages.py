"""Requests and replies about messages."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from tenantq.domain import limits
from tenantq.domain.names import QueueName, TenantName
from tenantq.domain.schema_rules import exactly_one, given
from tenantq.domain.validation import documented, items
from tenantq.wire.base_types import Wire, WireError, WireReply, base64_of, text_of, uuid_format

MessageId = Annotated[str, uuid_format]
_Receipts = Annotated[list[str], items(1, limits.BATCH_MESSAGES_MAX)]
_ONE_BODY: Any = exactly_one(given("body"), given("body_base64"))
RESULT_RULES: Any = {
    "if": given("status", const="failed"),
    "then": given("error"),
    "else": exactly_one(given("value"), given("value_base64")),
}


class WireMessage(Wire, frozen=True, kw_only=True, gc=False):
    """A message to add. The service checks the ranges, so that one bad message does not refuse the others."""

    json_rules: ClassVar[Any] = _ONE_BODY
    body: Annotated[str, text_of(limits.BODY_BYTES_MAX)] | None = None
    body_base64: Annotated[str, base64_of(limits.BODY_BYTES_MAX)] | None = None
    priority: Annotated[int, documented(limits.Priority)] = 0
    delay_ms: Annotated[int, documented(limits.DelayMs)] = 0
    ttl_ms: Annotated[int, documented(limits.TtlMs)] | None = None
    key: Annotated[str, documented(limits.IdempotencyKey)] | None = None
    group: Annotated[str, documented(limits.GroupName)] | None = None
    attributes: Annotated[
        dict[Annotated[str, documented(limits.AttributeName)], str],
        msgspec.Meta(extra_json_schema={"maxProperties": limits.ATTRIBUTES_MAX}),
    ] = {}
    max_attempts: Annotated[int, documented(limits.Attempts)] | None = None


class AddRequest(Wire, frozen=True, kw_only=True):
    """Messages to add to one queue."""

    messages: Annotated[list[WireMessage], items(1, limits.BATCH_MESSAGES_MAX)]
    key: limits.IdempotencyKey | None = None  # of the whole batch: the same request again adds nothing


class AddedItem(WireReply, frozen=True, kw_only=True, gc=False, omit_defaults=False):
    """The result of adding one message: an id, or an error."""

    id: str | None = None
    duplicate: bool = False
    error: WireError | None = None


class AddReply(WireReply, frozen=True, kw_only=True):
    """One item per message, in order."""

    messages: list[AddedItem]


class PollRequest(Wire, frozen=True, kw_only=True):
    """Lease messages of one queue."""

    max: limits.BatchSize = 1
    wait_ms: limits.WaitMs = 0
    lease_ms: limits.LeaseMs | None = None
    consumer: limits.ConsumerName | None = None  # distinguishes consumers that share a credential and an address


class FleetPollRequest(PollRequest, frozen=True, kw_only=True):
    """Lease messages of one queue name in many tenants; without ``tenants``, of every tenant that the caller has a grant for."""

    queue: QueueName
    tenants: Annotated[list[TenantName], items(1, limits.FLEET_TENANTS_MAX)] | None = None


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
    """The leased messages."""

    messages: list[DeliveredItem]
    now_at: int | None = None  # the server's wall clock; ``lease_until`` minus this is the rest of a lease


class WireResult(Wire, frozen=True, kw_only=True, gc=False):
    """The result of finished work: a value if it completed, an error if it failed."""

    json_rules: ClassVar[Any] = RESULT_RULES
    status: Literal["completed", "failed"] = "completed"
    value: Annotated[str, text_of(limits.RESULT_BYTES_MAX)] | None = None
    value_base64: Annotated[str, base64_of(limits.RESULT_BYTES_MAX)] | None = None
    error: limits.Reason | None = None


class AckRequest(Wire, frozen=True, kw_only=True):
    """Acknowledge messages; ``results`` has one entry, or null, per receipt."""

    receipts: _Receipts
    results: Annotated[list[WireResult | None], items(1, limits.BATCH_MESSAGES_MAX)] | None = None


class NackRequest(Wire, frozen=True, kw_only=True):
    """Return failed messages to the queue. Without ``delay_ms`` the queue's backoff applies."""

    receipts: _Receipts
    delay_ms: limits.DelayMs | None = None
    reason: limits.OptionalReason = ""


class ReleaseRequest(Wire, frozen=True, kw_only=True):
    """Return messages to the queue at once, without using up an attempt."""

    receipts: _Receipts


class ExtendRequest(Wire, frozen=True, kw_only=True):
    """Set leases to end ``lease_ms`` from now."""

    receipts: _Receipts
    lease_ms: limits.LeaseMs


class SettledItem(WireReply, frozen=True, kw_only=True, gc=False):
    """The outcome of one receipt."""

    receipt: str
    ok: bool
    error: WireError | None = None
    lease_until: int | None = None


class SettleReply(WireReply, frozen=True, kw_only=True):
    """One item per receipt, in order."""

    results: list[SettledItem]


class RemoveRequest(Wire, frozen=True, kw_only=True):
    """Delete messages by id, in any state."""

    ids: Annotated[list[MessageId], items(1, limits.BATCH_MESSAGES_MAX)]


class RemovedItem(WireReply, frozen=True, kw_only=True):
    """Whether one message was deleted."""

    id: str
    ok: bool
    error: WireError | None = None


class RemoveReply(WireReply, frozen=True, kw_only=True):
    """One item per id, in order."""

    results: list[RemovedItem]


class PeekRequest(Wire, frozen=True, kw_only=True):
    """Read waiting messages without leasing them."""

    limit: limits.PeekSize = 10
    cursor: str | None = None


class WireHistory(WireReply, frozen=True, kw_only=True):
    """How one delivery ended."""

    attempt: limits.Attempts
    at: limits.WallTime
    outcome: Annotated[str, documented(Literal["nacked", "lease_expired", "released"])]  # a newer server may know more
    reason: limits.OptionalReason = ""


class WireDeadLetter(WireReply, frozen=True, kw_only=True):
    """Why and from where a message became a dead letter."""

    reason: limits.Reason
    source: QueueName
    attempts: limits.Attempts
    at: limits.WallTime


class MessageFacts(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A stored message. Body, attributes and group are shown only to callers who may read them."""

    id: str
    tenant: str
    queue: str
    state: Literal["ready", "delayed", "blocked", "in_flight"]
    body: str | None = None
    body_base64: str | None = None
    body_hidden: bool = False
    body_error: str | None = None  # code of the error that hides body and attributes
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
    """A page of messages, and the cursor of the next page."""

    messages: list[MessageFacts]
    cursor: str | None = None


class SnapshotRequest(Wire, frozen=True, kw_only=True):
    """Open a snapshot of a queue, to be read in pages."""

    keep_ms: limits.SnapshotKeepMs = 60_000  # how long it stays open without being read
    part_messages: limits.SnapshotPartMessages | None = (
        None  # return where to divide it into parts of this many messages
    )


class SnapshotReply(WireReply, frozen=True, kw_only=True):
    """A snapshot: its time and size, and the ids at which to divide it."""

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
    """The journal rows of one message, oldest first."""

    rows: list[dict[str, Any]]
