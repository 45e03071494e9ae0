"""What JSON Schema can say beyond the types: ranges, lengths and patterns, for the description only.

The service checks all of this itself, item by item in a batch; nothing here refuses anything.
"""

from __future__ import annotations

from typing import Any, Final

from tenantq.domain import limits, rates
from tenantq.domain.access import ACTIONS, MATRIX, PATTERNS_MAX, ROLES
from tenantq.domain.limits import TIME_MS_MAX
from tenantq.domain.sqs_queue import SQS_RANGES, TAG_NAME_CHARS_MAX, TAG_VALUE_CHARS_MAX, TAGS_MAX, TEXT_CHARS_MAX

Schema = dict[str, Any]

TENANT: Final[Schema] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{1,30}[a-z0-9]$"}
QUEUE: Final[Schema] = {"type": "string", "pattern": r"^([A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo)$"}
MESSAGE_ID: Final[Schema] = {"type": "string", "format": "uuid"}
_COUNT_MAX: Final = 1 << 53


def _number(low: int, high: int) -> Schema:
    return {"minimum": low, "maximum": high}


def _text(high: int, low: int = 1) -> Schema:
    return {"minLength": low, "maxLength": high, "pattern": r"^[^\u0000]*$"}


_BATCH: Final[Schema] = {"minItems": 1, "maxItems": limits.BATCH_MESSAGES_MAX}
_BASE64: Final[Schema] = {
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
_POLL: Final[dict[str, Schema]] = {
    "max": _number(1, limits.BATCH_MESSAGES_MAX),
    "wait_ms": _number(0, limits.WAIT_MS_MAX),
    "lease_ms": _number(1, limits.LEASE_MS_MAX),
    "consumer": _text(limits.CONSUMER_CHARS_MAX),
}
_GRANT: Final[dict[str, Schema]] = {
    "role": {"enum": list(ROLES)},
    "actions": {"items": {"enum": list(ACTIONS)}},
    "queues": {
        "items": {"type": "string", "pattern": r"^[A-Za-z0-9_.*?-]{1,80}$"},
        "minItems": 1,
        "maxItems": PATTERNS_MAX,
    },
    "expires_at": _number(0, TIME_MS_MAX),
}
_SETTLE: Final[dict[str, Schema]] = {"receipts": _BATCH}

_AUDIT: Final[dict[str, Schema]] = {
    "action": {"pattern": "^[a-z_*]{1,80}(,[a-z_*]{1,80}){0,63}$"},
    "principal": _text(300),
    "queue": _text(300),
    "message": MESSAGE_ID,
    "start": _number(0, TIME_MS_MAX),
    "end": _number(0, TIME_MS_MAX),
}
_BODY: Final[dict[str, Schema]] = {
    "body": {"maxLength": limits.BODY_BYTES_MAX},
    "body_base64": {**_BASE64, "maxLength": -(-limits.BODY_BYTES_MAX // 3) * 4},
    "priority": _number(0, limits.PRIORITY_MAX),
    "group": _text(limits.GROUP_CHARS_MAX),
    "attributes": {
        "maxProperties": limits.ATTRIBUTES_MAX,
        "propertyNames": _text(limits.ATTRIBUTE_NAME_CHARS_MAX),
    },
    "max_attempts": _number(0, limits.ATTEMPTS_MAX),
}
_VALUE: Final[dict[str, Schema]] = {
    "value": {"maxLength": limits.RESULT_BYTES_MAX},
    "value_base64": {**_BASE64, "maxLength": -(-limits.RESULT_BYTES_MAX // 3) * 4},
    "error": _text(limits.REASON_CHARS_MAX),
}
_TIME: Final = _number(0, TIME_MS_MAX)

FIELDS: Final[dict[str, dict[str, Schema]]] = {
    "AddRequest": {"messages": _BATCH, "key": _text(limits.KEY_CHARS_MAX)},
    "WireMessage": {
        **_BODY,
        "delay_ms": _number(0, limits.DELAY_MS_MAX),
        "ttl_ms": _number(1, limits.TTL_MS_MAX),
        "key": _text(limits.KEY_CHARS_MAX),
    },
    "PollRequest": _POLL,
    "FleetPollRequest": {
        **_POLL,
        "queue": QUEUE,
        "tenants": {"items": TENANT, "minItems": 1, "maxItems": limits.FLEET_TENANTS_MAX},
    },
    "AckRequest": {**_SETTLE, "results": _BATCH},
    "WireResult": {"status": {"enum": ["completed", "failed"]}, **_VALUE},
    "NackRequest": {
        **_SETTLE,
        "delay_ms": _number(0, limits.DELAY_MS_MAX),
        "reason": _text(limits.REASON_CHARS_MAX, 0),
    },
    "ReleaseRequest": _SETTLE,
    "ExtendRequest": {**_SETTLE, "lease_ms": _number(1, limits.LEASE_MS_MAX)},
    "RemoveRequest": {"ids": {**_BATCH, "items": MESSAGE_ID}},
    "PeekRequest": {"limit": _number(1, limits.PEEK_MAX)},
    "DestroyRequest": {"reason": _text(limits.REASON_CHARS_MAX, 10)},
    "ReasonRequest": {"reason": _text(limits.REASON_CHARS_MAX, 10)},
    "BackupRequest": {"name": {"pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"}},
    "ImportRequest": {
        "export": {"pattern": "^[0-9a-f]{32}$"},
        "part": _number(1, 1 << 40),
        "messages": {"maxItems": limits.BATCH_MESSAGES_MAX},
        "results": {"maxItems": limits.BATCH_MESSAGES_MAX},
        "idempotency": {"maxItems": limits.BATCH_MESSAGES_MAX},
    },
    "ExportQuery": {"queue": {"pattern": QUEUE["pattern"]}},
    "ExportedKey": {
        "hash": {"pattern": "^[0-9a-f]{32}$"},
        "ids": {"pattern": f"^([0-9a-f]{{32}}){{1,{limits.BATCH_MESSAGES_MAX}}}$"},
        "body_hash": {"pattern": "^([0-9a-f]{32})?$"},
        "expires_at": _TIME,
    },
    "ExportedMessage": {
        **_BODY,
        "id": MESSAGE_ID,
        "added_at": _TIME,
        "visible_at": _TIME,
        "expires_at": _number(1, TIME_MS_MAX),
        "attempts": _number(0, limits.ATTEMPTS_MAX),
    },
    "ExportedResult": {"id": MESSAGE_ID, "expires_at": _TIME, **_VALUE},
    "WireHistory": {
        "attempt": _number(0, limits.ATTEMPTS_MAX),
        "at": _TIME,
        "outcome": {"enum": ["nacked", "lease_expired", "released"]},
        "reason": _text(limits.REASON_CHARS_MAX, 0),
    },
    "WireDeadLetter": {
        "reason": _text(limits.REASON_CHARS_MAX),
        "source": QUEUE,
        "attempts": _number(0, limits.ATTEMPTS_MAX),
        "at": _TIME,
    },
    "SuspendRequest": {"reason": _text(limits.REASON_CHARS_MAX, 0)},
    "RedriveRequest": {"rate": _number(1, 1_000_000)},
    "RedriveChoice": {
        "source": QUEUE,
        "reason": _text(limits.REASON_CHARS_MAX),
        "ids": {"items": MESSAGE_ID, "maxItems": limits.REDRIVE_IDS_MAX},
        "limit": _number(0, 1 << 40),
    },
    "CreateKeyRequest": {**_GRANT, "name": _text(limits.KEY_CHARS_MAX)},
    "CreatePlatformKeyRequest": {
        "name": _text(limits.KEY_CHARS_MAX),
        "actions": {"items": {"enum": sorted(MATRIX["platform-admin"] - MATRIX["tenant-admin"])}},
        "queues": {"items": {"enum": ["*"]}, "minItems": 1, "maxItems": 1},
        "expires_at": _number(0, TIME_MS_MAX),
    },
    "GrantRequest": _GRANT,
    "RevokeTokenRequest": {
        "token_id": _text(300),
        "principal": _text(300),
        "until": _number(0, TIME_MS_MAX),
    },
    "QueueConfig": {
        "lease_ms": _number(1, limits.LEASE_MS_MAX),
        "max_attempts": _number(0, limits.ATTEMPTS_MAX),
        "ttl_ms": _number(1, limits.TTL_MS_MAX),
        "dead_letter": QUEUE,
        "backoff_base_ms": _number(0, limits.DELAY_MS_MAX),
        "backoff_max_ms": _number(0, limits.DELAY_MS_MAX),
        "dedup_ms": _number(1, limits.TTL_MS_MAX),
        "result_ttl_ms": _number(1, limits.TTL_MS_MAX),
        "low_priority_every": _number(2, 1_000),
        "low_priority_after_ms": _number(0, limits.TTL_MS_MAX),
        "tags": {
            "maxProperties": TAGS_MAX,
            "propertyNames": _text(TAG_NAME_CHARS_MAX),
            "additionalProperties": {"type": "string", "maxLength": TAG_VALUE_CHARS_MAX},
        },
    },
    "SqsQueue": {
        **{field: _number(low, high) for field, (low, high) in SQS_RANGES.items()},
        **{field: {"maxLength": TEXT_CHARS_MAX} for field in ("policy", "redrive_allow_policy", "kms_key")},
    },
    "TenantConfig": {
        "weight": _number(1, limits.WEIGHT_MAX),
        "regions": {"items": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"}, "maxItems": 32},
    },
    "Encryption": {
        "key": {"pattern": "^(local|aws-kms|gcp-kms|azure-kv):.", "maxLength": limits.ENCRYPTION_KEY_CHARS_MAX},
        "rotate_every_ms": _number(3_600_000, 3_660 * 86_400_000),
        "secret_attributes": {
            "items": _text(limits.ATTRIBUTE_NAME_CHARS_MAX),
            "maxItems": limits.ATTRIBUTES_MAX,
        },
    },
    "Rate": {
        "ops_per_sec": _number(1, rates.OPS_PER_SEC_MAX),
        "bytes_per_sec": _number(1, rates.BYTES_PER_SEC_MAX),
        "burst": _number(1, rates.OPS_PER_SEC_MAX),
    },
    "Concurrency": {
        "requests": _number(1, rates.CONCURRENCY_MAX),
        "adds": _number(1, rates.CONCURRENCY_MAX),
        "polls": _number(1, rates.CONCURRENCY_MAX),
    },
    "Quotas": {
        "messages_per_hour": _number(0, _COUNT_MAX),
        "messages_per_day": _number(0, _COUNT_MAX),
        "backlog": _number(0, _COUNT_MAX),
        "stored_bytes": _number(0, _COUNT_MAX),
        "in_flight": _number(0, _COUNT_MAX),
        "message_bytes": _number(1, limits.BODY_BYTES_MAX + limits.ATTRIBUTES_BYTES_MAX),
        "queues": _number(0, limits.QUEUE_ID_MAX),
        "consumers_per_queue": _number(1, 1_000_000),
        "soft_percent": _number(1, 100),
    },
    "SnapshotRequest": {
        "keep_ms": _number(1, limits.SNAPSHOT_KEEP_MS_MAX),
        "part_messages": _number(1, limits.SNAPSHOT_PART_MESSAGES_MAX),
    },
    "SnapshotQuery": {"start": MESSAGE_ID, "end": MESSAGE_ID},
    "WaitQuery": {"wait_ms": _number(0, limits.WAIT_MS_MAX)},
    "AuditParameters": _AUDIT,
    "PlatformAuditParameters": {**_AUDIT, "tenant": _text(300)},
}
"""By type and field. What may also be null has the bounds on its other form."""


def _given(field: str, **more: Any) -> Schema:
    return {"required": [field], "properties": {field: {"not": {"type": "null"}, **more}}}


def _one_of(first: Schema, second: Schema) -> Schema:
    """Say that exactly one holds. Not as ``oneOf``, of which generators of clients would make two types."""
    return {"if": first, "then": {"not": second}, "else": second}


def _any_of(first: Schema, second: Schema) -> Schema:
    """Say that one at least holds."""
    return {"if": {"not": first}, "then": second}


_GRANTS_SOMETHING: Final = _any_of(_given("role"), _given("actions", minItems=1))

_RESULT: Final[Schema] = {
    "if": _given("status", const="failed"),
    "then": _given("error"),
    "else": _one_of(_given("value"), _given("value_base64")),
}

WHOLE: Final[dict[str, Schema]] = {
    "WireMessage": _one_of(_given("body"), _given("body_base64")),
    "ExportedMessage": _one_of(_given("body"), _given("body_base64")),
    "WireResult": _RESULT,
    "ExportedResult": _RESULT,
    "ReasonRequest": {"required": ["reason"]},
    "DestroyRequest": {"required": ["confirm", "reason"]},
    "CreateKeyRequest": _GRANTS_SOMETHING,
    "CreatePlatformKeyRequest": _GRANTS_SOMETHING,
    "GrantRequest": _GRANTS_SOMETHING,
    "RevokeTokenRequest": _any_of(_given("token_id"), _given("principal")),
    "Rate": _any_of({"properties": {"burst": {"type": "null"}}}, _given("ops_per_sec")),
    "QueueConfig": {"additionalProperties": False},
    "TenantConfig": {"additionalProperties": False},
}
"""By type: what holds between its fields."""
