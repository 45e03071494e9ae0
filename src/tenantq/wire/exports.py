"""Exports on the wire: what is in the archive of a tenant, and how a part of it is taken in."""

from __future__ import annotations

from typing import Any, Literal

from tenantq.wire.kinds import Wire, WireReply
from tenantq.wire.messages import WireDeadLetter, WireHistory
from tenantq.wire.tenants import HoldItem


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
