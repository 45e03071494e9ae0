"""Jump consistent hash (Lamping and Veach, 2014): which of N shards a tenant belongs to, with nothing to remember.

From N to N + 1 shards about one tenant in N + 1 moves, each of them to the new shard; the others stay where they are.
"""

from __future__ import annotations

import hashlib
from typing import Final

from tenantq.errors import Invalid

MULTIPLIER: Final = 2_862_933_555_777_941_757
KEY_BITS: Final = 64
_MASK: Final = (1 << KEY_BITS) - 1


def tenant_key(name: str) -> int:
    """Return the key of a tenant: the first 64 bits of its name's SHA-256. Every server gives a name the same, whatever its id there."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[: KEY_BITS // 8])


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
