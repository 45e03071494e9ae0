"""What goes over HTTP as JSON, on both sides: the server decodes and the clients encode with the same types.

In requests unknown fields and wrong types are refused. Times end in ``_ms`` (lengths) or ``_at``/``_until`` (wall clock), in milliseconds.
A body is text in ``body`` or, where it is not UTF-8, base64 in ``body_base64``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Wire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A JSON object that a client sends."""


class WireReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JSON object that the server sends. A client passes over fields it does not know: the server may be newer."""


# ---- messages ----


class WireMessage(Wire, frozen=True, kw_only=True):
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


class WireError(WireReply, frozen=True, kw_only=True):
    """Why one item of a batch was refused."""

    code: str
    detail: str


class AddedItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
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


class DeliveredItem(WireReply, frozen=True, kw_only=True):
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


class WireResult(Wire, frozen=True, kw_only=True):
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


class SettledItem(WireReply, frozen=True, kw_only=True):
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


class DestroyRequest(Wire, frozen=True, kw_only=True):
    """Empty or delete something: its name again, and a reason of ten characters or more."""

    confirm: str = ""
    reason: str = ""
    force: bool = False  # queues: do not wait for leases to settle


class SuspendRequest(Wire, frozen=True, kw_only=True):
    """Stop taking and handing out work; the reason goes into the journal."""

    reason: str = ""
    mode: Literal["settle", "freeze", "fill"] = "settle"


class ReasonRequest(Wire, frozen=True, kw_only=True):
    """Why something is done, in ten characters or more; it goes into the journal."""

    reason: str = ""


class PurgeReply(WireReply, frozen=True, kw_only=True):
    """How many messages went."""

    purged: int


class RedriveRequest(Wire, frozen=True, kw_only=True):
    """Send dead letters back where they came from."""

    source: str | None = None
    reason: str | None = None
    ids: list[str] | None = None
    limit: int | None = None
    rate: int | None = None
    dry_run: bool = False


class RedriveReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """How a redrive stands."""

    task: str
    state: Literal["running", "done", "cancelled"]
    moved: int  # or, in a dry run, would be moved
    skipped: int  # did not pass the filter, or their queue is gone
    dry_run: bool


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


# ---- keys and grants ----


class CreateKeyRequest(Wire, frozen=True, kw_only=True):
    """Make an API key: a role or actions, for some queues, until some time."""

    name: str
    role: str | None = None
    actions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("*",)
    expires_at: int | None = None


class CreatePlatformKeyRequest(Wire, frozen=True, kw_only=True):
    """Make an API key of the platform: an administrator's, or one for single actions of the platform, until some time."""

    name: str
    role: Literal["platform-admin"] | None = None
    actions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("*",)  # nothing else: the platform has no queues
    expires_at: int | None = None


class CreatedKey(WireReply, frozen=True, kw_only=True):
    """A new key. Secret and token are shown this once."""

    key_id: str
    secret: str
    token: str


class KeyItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A key, without its secret."""

    key_id: str
    name: str
    role: str | None
    actions: tuple[str, ...]
    queues: tuple[str, ...]
    expires_at: int | None
    created_at: int
    created_by: str
    revoked_at: int | None
    last_used_at: int | None


class KeysReply(WireReply, frozen=True, kw_only=True):
    """A tenant's keys."""

    keys: list[KeyItem]


class GrantRequest(Wire, frozen=True, kw_only=True):
    """What a principal may do in the tenant. Replaces what was stored for it."""

    role: str | None = None
    actions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("*",)
    expires_at: int | None = None


class GrantItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A stored grant."""

    principal: str
    role: str | None
    actions: tuple[str, ...]
    queues: tuple[str, ...]
    expires_at: int | None


class GrantsReply(WireReply, frozen=True, kw_only=True):
    """A tenant's stored grants."""

    grants: list[GrantItem]


class RevokeTokenRequest(Wire, frozen=True, kw_only=True):
    """Refuse a JSON web token before it expires: by its id (``jti``) or all of a principal's."""

    token_id: str | None = None
    principal: str | None = None
    until: int  # wall clock; when the token would have expired anyway


# ---- tenants and queues ----


class HoldItem(WireReply, frozen=True, kw_only=True):
    """A legal hold: why, by whom, since when."""

    reason: str
    by: str
    at: int


class SuspensionItem(WireReply, frozen=True, kw_only=True):
    """Why no work is taken or handed out, by whom, since when, and what goes on all the same."""

    mode: Literal["settle", "freeze", "fill"]
    reason: str = ""
    by: str
    at: int


class TenantFigures(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """What a tenant has and does now, in one line."""

    state: Literal["good", "warning", "critical"]  # of the quota that is nearest to its limit
    backlog: int  # messages stored, in whatever state
    in_flight: int
    dead: int  # of the backlog, those in dead-letter queues
    stored_bytes: int
    queues: int  # made by callers
    throttled_total: int  # calls that a limit refused since the server started


class TenantReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A tenant as it is configured."""

    name: str
    id: int
    status: Literal["active", "suspended"]
    version: int
    config: dict[str, Any]
    hold: HoldItem | None = None
    suspension: SuspensionItem | None = None
    figures: TenantFigures | None = None  # in lists, where asked for


class DataKeyItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """One of a tenant's data keys; it is stored only wrapped."""

    number: int
    key: str  # what wraps it
    created_at: int
    uses: int  # records it may have encrypted, at most: reserved so far


class EncryptionReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """How a tenant is encrypted at rest."""

    tenant: str
    enabled: bool
    key: str | None  # what wraps its data keys
    key_state: Literal["unknown", "ok", "unavailable", "denied", "disabled", "failed"]  # when it was last used
    key_error: str | None
    secret_attributes: tuple[str, ...]
    rotate_every_ms: int
    next_rotation_at: int | None
    data_keys: list[DataKeyItem]  # oldest first; the last one encrypts, all of them decrypt


class TenantsReply(WireReply, frozen=True, kw_only=True):
    """A page of tenants, and the name after which the next one starts."""

    tenants: list[TenantReply]
    cursor: str | None = None


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


class UsageItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """One quota: what is allowed, used and left; None: no limit."""

    limit: int | None
    used: int
    remaining: int | None
    state: Literal["good", "warning", "critical"]
    resets_at: int | None = None


class UsageReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A tenant's quotas against its usage."""

    tenant: str
    state: Literal["good", "warning", "critical"]
    quotas: dict[str, UsageItem]
    throttled_total: int = 0  # calls that a limit refused since the server started


class AuditReply(WireReply, frozen=True, kw_only=True):
    """A page of journal rows in the order asked for, and the cursor of the next page."""

    rows: list[dict[str, Any]]
    cursor: str | None = None
    incomplete: bool = False  # older rows are in segments that the server cannot reach


# ---- backups ----


class BackupRequest(Wire, frozen=True, kw_only=True):
    """Back the server up; ``name`` None: the time. Without ``segments`` the exported journal is left out."""

    name: str | None = None
    segments: bool = True


class BackupReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A backup; one that cannot be read has only a name and an error."""

    name: str
    created_at: int | None = None
    last_seq: int | None = None  # the last journal record that it holds
    size: int | None = None  # bytes
    segments_upto: int | None = None  # exported segments up to this record are in it; 0: none
    version: str | None = None  # of the server that made it
    error: str = ""


class BackupsReply(WireReply, frozen=True, kw_only=True):
    """The backups in the server's backup directory."""

    backups: list[BackupReply]


# ---- erasures ----


class ErasedKey(WireReply, frozen=True, kw_only=True):
    """A data key that was destroyed: number 0 is the tenant's secret; the SHA-256 of the wrapped key as it was stored."""

    number: int
    fingerprint: str


class ErasureReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A certificate of erasure, signed with the server's audit key."""

    format: int
    product: str
    id: str
    shard: str
    tenant: str
    tenant_id: int
    erased_at: int
    erased_by: str
    reason: str
    counts: dict[str, int]
    data_keys: list[ErasedKey]
    seq: int
    link: str
    certified_at: int  # 0: not through yet
    key_id: str
    signature: str


class ErasuresReply(WireReply, frozen=True, kw_only=True):
    """All erasures, oldest first."""

    erasures: list[ErasureReply]


# ---- exports ----


class ExportedQueue(WireReply, frozen=True, kw_only=True):
    """A line of ``queues.jsonl``."""

    name: str
    status: Literal["active", "paused", "draining"]
    config: dict[str, Any]


class ExportedMessage(WireReply, frozen=True, kw_only=True):
    """A line of ``messages``: a message as it was, without a lease. Times are of the wall clock."""

    id: str
    body: str | None = None
    body_base64: str | None = None
    priority: int = 0
    attributes: dict[str, str] = {}
    group: str | None = None
    max_attempts: int | None = None  # None: the queue's
    added_at: int
    visible_at: int  # before this it is delayed; it is also its place in line
    expires_at: int | None = None
    attempts: int = 0  # deliveries that ended
    history: list[WireHistory] = []
    dead: WireDeadLetter | None = None


class ExportedResult(WireReply, frozen=True, kw_only=True):
    """A line of ``results``."""

    id: str
    status: Literal["completed", "failed"]
    value: str | None = None
    value_base64: str | None = None
    error: str | None = None
    expires_at: int


class ExportedKey(WireReply, frozen=True, kw_only=True):
    """A line of ``idempotency``: a key by its hash, and the messages that it stands for."""

    hash: str  # 32 hexadecimal digits
    ids: str  # of each message 32 hexadecimal digits; zeros: it was refused
    body_hash: str = ""  # 32 hexadecimal digits; none: whatever the body is
    expires_at: int


class ExportedTenant(WireReply, frozen=True, kw_only=True):
    """``tenant.json``."""

    name: str
    export: str = ""  # identity of this export, as the manifest has it
    id: int
    status: Literal["active", "suspended"]
    version: int
    config: dict[str, Any]
    hold: HoldItem | None = None


class ExportedFile(WireReply, frozen=True, kw_only=True):
    """A file of an export, as its manifest tells."""

    name: str
    kind: Literal["tenant", "queues", "messages", "results", "idempotency", "keys", "grants", "audit"]
    queue: str | None = None  # of messages and results
    part: int = 0  # of messages and results: counts from 1 in each queue
    lines: int
    size: int
    sha256: str


class ExportManifest(WireReply, frozen=True, kw_only=True):
    """``manifest.json``, the last file of an export: without it an export is not whole."""

    format: int
    product: str
    version: str  # of the server
    export: str  # identity of this export, 32 hexadecimal digits
    tenant: str
    shard: str
    created_at: int
    last_seq: int  # the journal record up to which it tells
    counts: dict[str, int]  # by kind
    files: list[ExportedFile]


class ImportRequest(Wire, frozen=True, kw_only=True):
    """One part of an export for one queue. The same part again does nothing."""

    export: str
    part: int  # counts from 1, without gaps
    messages: list[ExportedMessage] = []
    results: list[ExportedResult] = []
    idempotency: list[ExportedKey] = []


class ImportReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """What became of one part."""

    part: int
    duplicate: bool = False  # it was imported before; nothing was done
    messages: int = 0
    results: int = 0
    there: int = 0  # messages that the queue has already, by their ids
    expired: int = 0  # their lifetime is over by now


class DigestReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """What a queue holds, so that two servers can be held against each other."""

    messages: int
    bytes: int  # of their bodies
    results: int
    digest: str  # over ids, sizes, priorities and attempts of messages, and over ids of results
    now: int  # the server's clock
    part: int = 0  # the last part that it has taken in of the export that was named


# ---- topology ----


class ShardItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A shard: its name, where it is, and how clients reach it."""

    name: str
    region: str = ""  # none: it serves no tenant that names regions
    address: str = ""  # none: it was not told


class TopologyReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """The shards that a server knows, and what it is itself."""

    shards: list[ShardItem]
    server: str  # its identity, which no other server has: that of its audit key
    version: str
    format: int  # of its store
    now: int  # its clock
    encryption: bool  # whether tenants can be encrypted there


# ---- errors ----


class Problem(WireReply, frozen=True, kw_only=True):
    """An error, as application/problem+json."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str = ""
    tenant: str | None = None
    queue: str | None = None
    limit: int | None = None
    current: int | None = None
    retry_after_ms: int | None = None
