"""The lines of an export: what is stored as JSON says it, and back again, checked like everything that callers send."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tenantq.domain import limits
from tenantq.domain.message import (
    DeadLetter,
    HistoryEntry,
    NewMessage,
    Result,
    check_int,
    check_message,
    check_result,
    check_text,
)
from tenantq.domain.names import check_queue_name
from tenantq.domain.validation import all_fields
from tenantq.engine.tenant_snapshot import StoredMessage, StoredResult, TakenKey
from tenantq.errors import Invalid, TenantqError
from tenantq.runtime.randomness import id_bytes, id_text
from tenantq.wire import (
    ExportedKey,
    ExportedMessage,
    ExportedQueue,
    ExportedResult,
    ExportedTenant,
    HoldItem,
    WireDeadLetter,
    WireHistory,
)
from tenantq.wire.json_bytes import bytes_of, text_or_base64

if TYPE_CHECKING:
    from tenantq.engine.tenant_snapshot import QueueCopy, TenantSnapshot

_HASH = _EXPORT_ID = re.compile("[0-9a-f]{32}")
_HASHES = re.compile("(?:[0-9a-f]{32})+")
_OUTCOMES: Final = ("nacked", "lease_expired", "released")


def tenant_line(snapshot: TenantSnapshot, export: str) -> ExportedTenant:
    """Return the tenant itself."""
    hold = snapshot.hold
    return ExportedTenant(
        name=snapshot.name,
        export=export,
        id=snapshot.id,
        status=snapshot.status,
        version=snapshot.version,
        config=all_fields(snapshot.config),
        hold=HoldItem(reason=hold.reason, by=hold.by, at=hold.at) if hold is not None else None,
    )


def queue_line(queue: QueueCopy) -> ExportedQueue:
    """Return a queue."""
    return ExportedQueue(name=queue.name, status=queue.status, config=all_fields(queue.config))


def message_line(message: StoredMessage) -> ExportedMessage:
    """Return a message."""
    text, base64 = text_or_base64(message.body)
    dead = message.dead
    return ExportedMessage(
        id=id_text(message.raw_id),
        body=text,
        body_base64=base64,
        priority=message.priority,
        attributes=message.attributes,
        group=message.group,
        max_attempts=message.max_attempts,
        added_at=message.added_at,
        visible_at=message.visible_at,
        expires_at=message.expires_at,
        attempts=message.attempts,
        history=[
            WireHistory(attempt=one.attempt, at=one.at, outcome=one.outcome, reason=one.reason)
            for one in message.history
        ],
        dead=WireDeadLetter(reason=dead.reason, source=dead.source, attempts=dead.attempts, at=dead.at)
        if dead is not None
        else None,
    )


def result_line(stored: StoredResult) -> ExportedResult:
    """Return a result."""
    result = stored.result
    assert result.status != "pending", "a result that is pending is not stored"
    text, base64 = text_or_base64(result.value) if result.value is not None else (None, None)
    return ExportedResult(
        id=id_text(stored.raw_id),
        status=result.status,
        value=text,
        value_base64=base64,
        error=result.error,
        expires_at=stored.expires_at,
    )


def key_line(key: TakenKey) -> ExportedKey:
    """Return an idempotency key."""
    return ExportedKey(
        hash=key.hashed.hex(), ids=key.ids.hex(), body_hash=key.body_digest.hex(), expires_at=key.expires_at
    )


def taken_key(line: ExportedKey, field: str) -> TakenKey:
    """Return what an idempotency key's line says, or raise an error that begins with ``field``."""
    if _HASH.fullmatch(line.hash) is None or (line.body_hash and _HASH.fullmatch(line.body_hash) is None):
        raise Invalid(f"{field}: a hash has 32 hexadecimal digits")
    if _HASHES.fullmatch(line.ids) is None or len(line.ids) > limits.BATCH_MESSAGES_MAX * 32:
        raise Invalid(
            f"{field}.ids: 32 hexadecimal digits for each message, of which a batch has at most {limits.BATCH_MESSAGES_MAX}"
        )
    check_int(f"{field}.expires_at", line.expires_at, 0, limits.TIME_MS_MAX)
    return TakenKey(bytes.fromhex(line.hash), bytes.fromhex(line.ids), bytes.fromhex(line.body_hash), line.expires_at)


def export_id(text: str) -> bytes:
    """Return the identity of an export, or raise Invalid."""
    if type(text) is not str or _EXPORT_ID.fullmatch(text) is None:
        raise Invalid("export: is not the id of an export, 32 hexadecimal digits")
    return bytes.fromhex(text)


def stored_message(line: ExportedMessage, field: str) -> StoredMessage:
    """Return what a message's line says, or raise an error that begins with ``field``."""
    try:
        new = NewMessage(
            body=bytes_of(line.body, line.body_base64, "body"),
            priority=line.priority,
            group=line.group,
            attributes=line.attributes,
            max_attempts=line.max_attempts,
        )
        check_message(new)
        check_int("added_at", line.added_at, 0, limits.TIME_MS_MAX)
        check_int("visible_at", line.visible_at, 0, limits.TIME_MS_MAX)
        if line.expires_at is not None:
            check_int("expires_at", line.expires_at, 1, limits.TIME_MS_MAX)
        check_int("attempts", line.attempts, 0, limits.ATTEMPTS_MAX)
        return StoredMessage(
            raw_id=id_bytes(line.id),
            body=new.body,
            priority=new.priority,
            attributes=new.attributes,
            group=new.group,
            max_attempts=new.max_attempts,
            added_at=line.added_at,
            visible_at=line.visible_at,
            expires_at=line.expires_at,
            attempts=line.attempts,
            history=tuple(_history(one) for one in line.history[-limits.HISTORY_ENTRIES_MAX :]),
            dead=_dead(line.dead) if line.dead is not None else None,
        )
    except TenantqError as error:
        error.args = (f"{field}.{error.message}",)
        raise


def _history(one: WireHistory) -> HistoryEntry:
    if one.outcome not in _OUTCOMES:
        raise Invalid(f"history: the outcome is one of {', '.join(_OUTCOMES)}")
    check_int("history: attempt", one.attempt, 0, limits.ATTEMPTS_MAX)
    check_int("history: at", one.at, 0, limits.TIME_MS_MAX)
    if one.reason:
        check_text("history: reason", one.reason, limits.REASON_CHARS_MAX)
    return HistoryEntry(one.attempt, one.at, one.outcome, one.reason)  # type: ignore[arg-type]  # checked above


def _dead(one: WireDeadLetter) -> DeadLetter:
    check_text("dead: reason", one.reason, limits.REASON_CHARS_MAX)
    check_queue_name(one.source)
    check_int("dead: attempts", one.attempts, 0, limits.ATTEMPTS_MAX)
    check_int("dead: at", one.at, 0, limits.TIME_MS_MAX)
    return DeadLetter(one.reason, one.source, one.attempts, one.at)


def stored_result(line: ExportedResult, field: str) -> StoredResult:
    """Return what a result's line says, or raise an error that begins with ``field``."""
    try:
        value = None
        if line.value is not None or line.value_base64 is not None:
            value = bytes_of(line.value, line.value_base64, "value")
        result = Result(line.status, value, line.error)
        check_result(result)
        check_int("expires_at", line.expires_at, 0, limits.TIME_MS_MAX)
        return StoredResult(id_bytes(line.id), result, line.expires_at)
    except TenantqError as error:
        error.args = (f"{field}.{error.message}",)
        raise
