"""Hard limits of the engine, and the types that state a range shared by several fields.

Settings and quotas may tighten a limit. Nothing may loosen it.
"""

from __future__ import annotations

from typing import Annotated, Final

from tenantq.domain.validation import between, matching, text

BODY_BYTES_MAX: Final = 1 << 20
BATCH_MESSAGES_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 16 << 20
REPLY_BYTES_MAX: Final = 4 << 20
"""A poll stops adding messages to its reply beyond this. It returns at least one message."""
PAGE_BYTES_MAX: Final = 4 << 20
"""A page of messages ends at the message that reaches this size. Its cursor continues after that message."""

PRIORITIES: Final = range(10)
ATTEMPTS_MAX: Final = 1_000
DELAY_MS_MAX: Final = 366 * 86_400_000
EXPORTED_IDS_BYTES_MAX: Final = 4 << 20  # of the idempotency keys in one part of an export; twice that as text
TTL_MS_MAX: Final = 366 * 86_400_000
LEASE_MS_MAX: Final = 12 * 3_600_000
WAIT_MS_MAX: Final = 300_000

KEY_CHARS_MAX: Final = 256
GROUP_CHARS_MAX: Final = 128
ATTRIBUTES_MAX: Final = 32
ATTRIBUTE_NAME_CHARS_MAX: Final = 256
ATTRIBUTES_BYTES_MAX: Final = 64 << 10
REASON_CHARS_MAX: Final = 1_024
REASON_CHARS_MIN: Final = 10  # of the reason for an irreversible act
RESULT_BYTES_MAX: Final = 1 << 20
HISTORY_ENTRIES_MAX: Final = 32
PEEK_MAX: Final = 1_000
FLEET_TENANTS_MAX: Final = 100_000
REDRIVE_IDS_MAX: Final = 100_000
TRACE_RECORDS_MAX: Final = 50_000
SNAPSHOTS_OF_TENANT_MAX: Final = 16
SNAPSHOTS_MAX: Final = 64
SNAPSHOT_KEEP_MS_MAX: Final = 3_600_000
SNAPSHOT_LIFE_MS_MAX: Final = 6 * 3_600_000
"""A snapshot of a queue is closed after this time, even while it is read, because the store cannot free what it holds."""
SNAPSHOT_PART_MESSAGES_MAX: Final = 1_000_000

WEIGHT_MAX: Final = 1_000
PAGE_MAX: Final = 1_000
CONSUMER_CHARS_MAX: Final = 128
PRINCIPAL_CHARS_MAX: Final = 300
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the latest wall-clock time."""

KEYS_MAX: Final = 10_000
GRANTS_MAX: Final = 100_000
REVOCATIONS_MAX: Final = 100_000
CONTAINMENTS_MAX: Final = 10_000
ENCRYPTION_BYTES: Final = 33
"""How much longer an encrypted body, result or set of attributes is stored. No tenant is charged for it."""

TENANT_ID_MAX: Final = (1 << 32) - 1
QUEUE_ID_MAX: Final = (1 << 32) - 1
ENCRYPTION_KEY_CHARS_MAX: Final = 2_100
DATA_KEY_NUMBER_MAX: Final = (1 << 32) - 1
DATA_KEY_BYTES_MAX: Final = 16 << 10
"""Size of a wrapped data key with its metadata."""

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000

Priority = Annotated[int, between(PRIORITIES[0], PRIORITIES[-1])]
Attempts = Annotated[int, between(0, ATTEMPTS_MAX)]
DelayMs = Annotated[int, between(0, DELAY_MS_MAX)]
TtlMs = Annotated[int, between(1, TTL_MS_MAX)]
LeaseMs = Annotated[int, between(1, LEASE_MS_MAX)]
WaitMs = Annotated[int, between(0, WAIT_MS_MAX)]
BatchSize = Annotated[int, between(1, BATCH_MESSAGES_MAX)]
PeekSize = Annotated[int, between(1, PEEK_MAX)]
PageSize = Annotated[int, between(1, PAGE_MAX)]
WallTime = Annotated[int, between(0, TIME_MS_MAX)]
SnapshotKeepMs = Annotated[int, between(1, SNAPSHOT_KEEP_MS_MAX)]
SnapshotPartMessages = Annotated[int, between(1, SNAPSHOT_PART_MESSAGES_MAX)]
RedriveRate = Annotated[int, between(1, 1_000_000)]
RedriveLimit = Annotated[int, between(0, 1 << 40)]
PartNumber = Annotated[int, between(1, 1 << 40)]
DataKeyNumber = Annotated[int, between(0, DATA_KEY_NUMBER_MAX)]
RotationMs = Annotated[int, between(HOUR_MS, 3_660 * DAY_MS)]

IdempotencyKey = Annotated[str, text(KEY_CHARS_MAX)]
KeyName = Annotated[str, text(KEY_CHARS_MAX)]
GroupName = Annotated[str, text(GROUP_CHARS_MAX)]
AttributeName = Annotated[str, text(ATTRIBUTE_NAME_CHARS_MAX)]
ConsumerName = Annotated[str, text(CONSUMER_CHARS_MAX)]
PrincipalName = Annotated[str, text(PRINCIPAL_CHARS_MAX)]
Reason = Annotated[str, text(REASON_CHARS_MAX)]
OptionalReason = Annotated[str, text(REASON_CHARS_MAX, chars_min=0)]
ExportId = Annotated[str, matching("[0-9a-f]{32}", "32 hexadecimal digits")]
