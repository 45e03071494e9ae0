"""A limit on everything: the hard bounds of the engine, in one place.

Settings and quotas may tighten them, nothing may loosen them.
"""

from __future__ import annotations

from typing import Final

BODY_BYTES_MAX: Final = 1 << 20
BATCH_MESSAGES_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 16 << 20
REPLY_BYTES_MAX: Final = 16 << 20
"""A poll stops adding messages to its reply beyond this; it always returns at least one."""

PRIORITY_MAX: Final = 9
ATTEMPTS_MAX: Final = 1_000
DELAY_MS_MAX: Final = 366 * 86_400_000
EXPORTED_IDS_BYTES_MAX: Final = 4 << 20  # of idempotency keys in one part of an export; as text they are twice that
TTL_MS_MAX: Final = 366 * 86_400_000
LEASE_MS_MAX: Final = 12 * 3_600_000
WAIT_MS_MAX: Final = 300_000

KEY_CHARS_MAX: Final = 256
GROUP_CHARS_MAX: Final = 128
ATTRIBUTES_MAX: Final = 32
ATTRIBUTE_NAME_CHARS_MAX: Final = 256
ATTRIBUTES_BYTES_MAX: Final = 64 << 10
REASON_CHARS_MAX: Final = 1_024
REASON_CHARS_MIN: Final = 10  # of a reason for something that cannot be undone
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
"""A snapshot of a queue goes after this, also while it is read: the store cannot give back what it holds."""
SNAPSHOT_PART_MESSAGES_MAX: Final = 1_000_000

WEIGHT_MAX: Final = 1_000
PAGE_MAX: Final = 1_000
CONSUMER_CHARS_MAX: Final = 128
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: no time of the wall clock is later."""

KEYS_MAX: Final = 10_000
GRANTS_MAX: Final = 100_000
REVOCATIONS_MAX: Final = 100_000
SEAL_BYTES: Final = 33
"""How much longer an encrypted body, result or set of attributes is stored. It is not charged to anybody."""

TENANT_ID_MAX: Final = (1 << 32) - 1
QUEUE_ID_MAX: Final = (1 << 32) - 1
ENCRYPTION_KEY_CHARS_MAX: Final = 2_100
DATA_KEY_NUMBER_MAX: Final = (1 << 32) - 1
DATA_KEY_BYTES_MAX: Final = 16 << 10
"""Of a wrapped data key, with what belongs to it."""
