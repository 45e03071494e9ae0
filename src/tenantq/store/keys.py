"""Keys on disk. Every queue's rows share the fixed-width prefix P, so no queue's range holds another's.

    P    tenant id be32, queue id be32
    m    P id                                    body and fixed facts
    vi   P 9-priority visible_at(be64) id        waiting, ready and delayed alike, in order of delivery
    le   P id                                    attempts, current lease, history
    li   P deadline(be64) id                     leases by deadline
    gr   P group(16)                             id of the group's head
    gr   P group(16) id                          members of the group, in order
    ik   P hash(16)                              idempotency key -> message id
    re   P id                                    result
    ex   P expires_at(be64) kind(1) ref(16)      what to collect, and when
    qc   P                                       counters
    jn   seq(be64)                               journal
    meta text keys, see catalog.py

All numbers are big-endian, so byte order is number order.
"""

import hashlib
import struct
from typing import Final

FAMILIES: Final = ("meta", "m", "vi", "le", "li", "gr", "ik", "re", "ex", "qc", "jn")
QUEUE_FAMILIES: Final = ("m", "vi", "le", "li", "gr", "ik", "re", "ex", "qc")
"""The families whose keys start with P."""

PREFIX_BYTES: Final = 8
ID_BYTES: Final = 16
ID_LAST: Final = b"\xff" * ID_BYTES
SUFFIX_BYTES: Final = 24
"""visible_at(be64) + id: a row's place inside one priority."""

EXPIRES_TTL: Final = b"m"
EXPIRES_KEY: Final = b"k"
EXPIRES_RESULT: Final = b"r"

_PREFIX = struct.Struct(">II")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")

be64 = _U64.pack


def from_be64(raw: bytes) -> int:
    """Return the number at the start of ``raw``."""
    number: int = _U64.unpack_from(raw)[0]
    return number


def queue_prefix(tenant_id: int, queue_id: int) -> bytes:
    return _PREFIX.pack(tenant_id, queue_id)


def split_prefix(key: bytes) -> tuple[int, int]:
    """Return (tenant id, queue id) of any key that starts with P."""
    tenant_id, queue_id = _PREFIX.unpack_from(key)
    return tenant_id, queue_id


def tenant_prefix(tenant_id: int) -> bytes:
    """Return the bytes that every key of the tenant starts with."""
    return _U32.pack(tenant_id)


def after(prefix: bytes) -> bytes:
    """Return the first key behind all keys that start with ``prefix``."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else b"\xff" * 64


def level_prefix(prefix: bytes, priority: int) -> bytes:
    """Return the start of a queue's vi rows of one priority; 9 sorts first."""
    return prefix + bytes((9 - priority,))


def waiting_key(prefix: bytes, priority: int, visible_at: int, id: bytes) -> bytes:
    return prefix + bytes((9 - priority,)) + be64(visible_at) + id


def split_waiting_key(key: bytes) -> tuple[bytes, int, int, bytes]:
    """Return (P, priority, visible_at, id) of a vi key."""
    return key[:8], 9 - key[8], from_be64(key[9:17]), key[17:]


def deadline_key(prefix: bytes, deadline: int, id: bytes) -> bytes:
    return prefix + be64(deadline) + id


def split_deadline_key(key: bytes) -> tuple[bytes, int, bytes]:
    """Return (P, deadline, id) of a li key."""
    return key[:8], from_be64(key[8:16]), key[16:]


def expiry_key(prefix: bytes, expires_at: int, kind: bytes, ref: bytes) -> bytes:
    return prefix + be64(expires_at) + kind + ref


def split_expiry_key(key: bytes) -> tuple[bytes, int, bytes, bytes]:
    """Return (P, expires_at, kind, ref) of an ex key."""
    return key[:8], from_be64(key[8:16]), key[16:17], key[17:]


def digest(data: bytes) -> bytes:
    """Return the 16-byte digest of an idempotency key, a group or a body."""
    return hashlib.blake2b(data, digest_size=16).digest()
