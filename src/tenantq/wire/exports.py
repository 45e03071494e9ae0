"""The archive of an exported tenant, and requests that import a part of it."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Final, Literal

from tenantq.domain import limits
from tenantq.domain.schema_rules import exactly_one, given
from tenantq.domain.validation import between, items, matching
from tenantq.wire.base_types import Wire, WireReply, base64_of, text_of
from tenantq.wire.messages import RESULT_RULES, MessageId, WireDeadLetter, WireHistory
from tenantq.wire.tenants import HoldItem

_HEX: Final = "[0-9a-f]{32}"


class ExportedQueue(WireReply, frozen=True, kw_only=True):
    """A line of ``queues.jsonl``."""

    name: str
    status: Literal["active", "paused", "draining"]
    config: dict[str, Any]


class ExportedMessage(WireReply, frozen=True, kw_only=True):
    """A line of ``messages``: a message as it was, without a lease. Times are of the wall clock."""

    json_rules: ClassVar[Any] = exactly_one(given("body"), given("body_base64"))
    id: MessageId
    body: Annotated[str, text_of(limits.BODY_BYTES_MAX)] | None = None
    body_base64: Annotated[str, base64_of(limits.BODY_BYTES_MAX)] | None = None
    priority: limits.Priority = 0
    attributes: Annotated[dict[limits.AttributeName, str], items(0, limits.ATTRIBUTES_MAX)] = {}
    group: limits.GroupName | None = None
    max_attempts: limits.Attempts | None = None  # None: the queue's
    added_at: limits.WallTime
    visible_at: limits.WallTime  # the message is delayed until then; its position in the queue
    expires_at: Annotated[int, between(1, limits.TIME_MS_MAX)] | None = None
    attempts: limits.Attempts = 0  # finished deliveries
    history: list[WireHistory] = []
    dead: WireDeadLetter | None = None


class ExportedResult(WireReply, frozen=True, kw_only=True):
    """A line of ``results``."""

    json_rules: ClassVar[Any] = RESULT_RULES
    id: MessageId
    status: Literal["completed", "failed"]
    value: Annotated[str, text_of(limits.RESULT_BYTES_MAX)] | None = None
    value_base64: Annotated[str, base64_of(limits.RESULT_BYTES_MAX)] | None = None
    error: limits.Reason | None = None
    expires_at: limits.WallTime


class ExportedKey(WireReply, frozen=True, kw_only=True):
    """A line of ``idempotency``: the hash of a key, and its messages."""

    hash: Annotated[str, matching(_HEX, "32 hexadecimal digits")]
    ids: Annotated[
        str,
        matching(
            f"({_HEX}){{1,{limits.BATCH_MESSAGES_MAX}}}",
            f"32 hexadecimal digits for each of 1 to {limits.BATCH_MESSAGES_MAX} messages",
        ),
    ]  # zeros: the message was refused
    body_hash: Annotated[str, matching(f"({_HEX})?", "empty or 32 hexadecimal digits")] = ""  # empty: any body
    expires_at: limits.WallTime


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
    """A file of an export."""

    name: str
    kind: Literal["tenant", "queues", "messages", "results", "idempotency", "keys", "grants", "audit"]
    queue: str | None = None  # of messages and results
    part: int = 0  # of messages and results: counts from 1 in each queue
    lines: int
    size: int
    sha256: str


class ExportManifest(WireReply, frozen=True, kw_only=True):
    """``manifest.json``, the last file of an export. An export without it is incomplete."""

    format: int
    product: str
    version: str  # of the server
    export: str  # identity of this export, 32 hexadecimal digits
    tenant: str
    shard: str
    created_at: int
    last_seq: int  # the last journal record that it covers
    counts: dict[str, int]  # by kind
    files: list[ExportedFile]


class ImportRequest(Wire, frozen=True, kw_only=True):
    """One part of an export for one queue. The same part again does nothing."""

    export: limits.ExportId
    part: limits.PartNumber  # counts from 1, without gaps
    messages: Annotated[list[ExportedMessage], items(0, limits.BATCH_MESSAGES_MAX)] = []
    results: Annotated[list[ExportedResult], items(0, limits.BATCH_MESSAGES_MAX)] = []
    idempotency: Annotated[list[ExportedKey], items(0, limits.BATCH_MESSAGES_MAX)] = []


class ImportReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """The result of importing one part."""

    part: int
    duplicate: bool = False  # imported before; nothing changed
    messages: int = 0
    results: int = 0
    there: int = 0  # messages whose ids the queue already has
    expired: int = 0  # past their time to live
    digest: str = ""  # of the messages in the part: SHA-256 of each 16-byte id and body, combined by XOR, in hex


def part_digest(messages: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the digest of messages, given as ids and bodies. Their order does not matter."""
    total = 0
    for id, body in messages:
        total ^= int.from_bytes(sha256(id + body).digest())
    return f"{total:064x}"
