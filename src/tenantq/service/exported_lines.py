"""The lines of an export: converts stored values to JSON lines, and checked lines back to values."""

from typing import Final

from tenantq.domain import limits
from tenantq.domain.message import DeadLetter, HistoryEntry, NewMessage, Result, check_message, check_result
from tenantq.domain.validation import all_fields, build, check_field, projected
from tenantq.engine.tenant_snapshot import MessageCopy, QueueCopy, StoredIdempotencyKey, StoredResult, TenantSnapshot
from tenantq.errors import Invalid, TenantqError
from tenantq.runtime.randomness import id_bytes, id_text
from tenantq.wire.exports import ExportedKey, ExportedMessage, ExportedQueue, ExportedResult, ExportedTenant
from tenantq.wire.json_bytes import bytes_of, text_or_base64
from tenantq.wire.messages import WireDeadLetter, WireHistory
from tenantq.wire.tenants import HoldItem

_OUTCOMES: Final = ("nacked", "lease_expired", "released")


def tenant_line(snapshot: TenantSnapshot, export: str) -> ExportedTenant:
    hold = projected(HoldItem, snapshot.hold) if snapshot.hold is not None else None
    return projected(ExportedTenant, snapshot, export=export, config=all_fields(snapshot.config), hold=hold)


def queue_line(queue: QueueCopy) -> ExportedQueue:
    return ExportedQueue(name=queue.name, status=queue.status, config=all_fields(queue.config))


def message_line(message: MessageCopy) -> ExportedMessage:
    text, base64 = text_or_base64(message.body)
    return projected(
        ExportedMessage,
        message,
        id=id_text(message.raw_id),
        body=text,
        body_base64=base64,
        history=[projected(WireHistory, one) for one in message.history],
        dead=projected(WireDeadLetter, message.dead) if message.dead is not None else None,
    )


def result_line(stored: StoredResult) -> ExportedResult:
    result = stored.result
    assert result.status != "pending", "pending results are not stored"
    text, base64 = text_or_base64(result.value) if result.value is not None else (None, None)
    id, expires_at = id_text(stored.raw_id), stored.expires_at
    return projected(ExportedResult, result, id=id, value=text, value_base64=base64, expires_at=expires_at)


def key_line(key: StoredIdempotencyKey) -> ExportedKey:
    hash, ids, body_hash = key.hashed.hex(), key.ids.hex(), key.body_digest.hex()
    return ExportedKey(hash=hash, ids=ids, body_hash=body_hash, expires_at=key.expires_at)


def stored_key(line: ExportedKey, field: str) -> StoredIdempotencyKey:
    """Return the idempotency key of a line. Raises an error that starts with ``field``."""
    build(ExportedKey, all_fields(line), f"{field}.")  # the line itself may be of a type that counts items
    hashed, ids, body_digest = map(bytes.fromhex, (line.hash, line.ids, line.body_hash))
    return StoredIdempotencyKey(hashed, ids, body_digest, line.expires_at)


def export_id(text: str) -> bytes:
    """Return the identity of an export, or raise Invalid."""
    return bytes.fromhex(check_field("export", text, limits.ExportId))


def stored_message(line: ExportedMessage, field: str) -> MessageCopy:
    """Return the message of a line. Raises an error that starts with ``field``."""
    try:
        new = projected(NewMessage, line, body=bytes_of(line.body, line.body_base64, "body"))
        check_message(new)
        return projected(
            MessageCopy,
            line,
            raw_id=id_bytes(line.id),
            body=new.body,
            history=tuple(_history(one) for one in line.history[-limits.HISTORY_ENTRIES_MAX :]),
            dead=projected(DeadLetter, line.dead) if line.dead is not None else None,
        )
    except TenantqError as error:
        error.args = (f"{field}.{error.message}",)
        raise


def _history(one: WireHistory) -> HistoryEntry:
    if one.outcome not in _OUTCOMES:
        raise Invalid(f"history: the outcome must be one of {', '.join(_OUTCOMES)}")
    return HistoryEntry(one.attempt, one.at, one.outcome, one.reason)  # type: ignore[arg-type]  # checked above


def stored_result(line: ExportedResult, field: str) -> StoredResult:
    """Return the result of a line. Raises an error that starts with ``field``."""
    try:
        value = None
        if line.value is not None or line.value_base64 is not None:
            value = bytes_of(line.value, line.value_base64, "value")
        result = Result(line.status, value, line.error)
        check_result(result)
        return StoredResult(id_bytes(line.id), result, line.expires_at)
    except TenantqError as error:
        error.args = (f"{field}.{error.message}",)
        raise
