"""Jump consistent hash (Lamping and Veach, 2014): which of N shards a queue belongs to, with nothing to remember.

From N to N + 1 shards about one queue in N + 1 moves, each of them to the new shard; the others stay where they are.
"""

from __future__ import annotations

from typing import Final

from tenantq.errors import Invalid

MULTIPLIER: Final = 2_862_933_555_777_941_757
KEY_BITS: Final = 64
_MASK: Final = (1 << KEY_BITS) - 1


def queue_key(tenant_id: int, queue_id: int) -> int:
    """Return the key of a queue: its tenant's id and its own, 32 bits each, as every key in the store begins."""
    if not (0 <= tenant_id < 1 << 32 and 0 <= queue_id < 1 << 32):
        raise Invalid(f"tenant id {tenant_id}, queue id {queue_id}: an id has 32 bits")
    return tenant_id << 32 | queue_id


def jump_hash(key: int, buckets: int) -> int:
    """Return the bucket, 0 to ``buckets`` - 1, of a key of 64 bits; Invalid where there is no bucket or no such key."""
    if buckets < 1:
        raise Invalid(f"buckets: {buckets} is none to choose from")
    if not 0 <= key <= _MASK:
        raise Invalid(f"key {key}: has 64 bits")
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        key = (key * MULTIPLIER + 1) & _MASK
        following = int((bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return bucket
