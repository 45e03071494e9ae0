"""Values on disk, versioned by the store's format number."""

import struct

import msgspec

from tenantq.domain.limits import ENCRYPTION_BYTES
from tenantq.domain.message import DeadLetter, HistoryEntry, Result

# ---- m: a message's body and fixed facts, written once ----

MESSAGE_HEAD = struct.Struct(">BBHQQQ")
HAS_EXTRAS = 1
ENCRYPTED = 2
QUEUE_DEFAULT_ATTEMPTS = 0xFFFF
"""Stored in place of max_attempts: the current setting of the queue applies."""


class Extras(msgspec.Struct, frozen=True, array_like=True):
    """The facts that most messages do not have."""

    group: str | None = None
    attributes: dict[str, str] = {}
    encrypted_attributes: bytes = b""  # those that are secret, encrypted


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """A stored message."""

    priority: int
    max_attempts: int
    added_at: int
    visible_at: int
    expires_at: int  # 0: never
    body: bytes
    group: str | None
    attributes: dict[str, str]
    size: int  # body and extras, as charged: of an encrypted body, what its plaintext has
    encrypted: bool = False  # the body is encrypted
    encrypted_attributes: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode_extras = msgspec.msgpack.Decoder(Extras).decode


def pack_extras(group: str | None, attributes: dict[str, str], encrypted_attributes: bytes = b"") -> bytes:
    """Return the bytes of a message's group and attributes; empty if it has neither."""
    if encrypted_attributes:
        return _encode(Extras(group, attributes, encrypted_attributes))
    return _encode((group, attributes)) if attributes or group is not None else b""


def pack_message(
    priority: int,
    max_attempts: int,
    added_at: int,
    visible_at: int,
    expires_at: int,
    extras: bytes,
    body: bytes,
    flags: int = 0,
) -> bytes:
    """Return a m value; ``extras`` is empty for most messages, ``flags`` is ENCRYPTED or nothing."""
    if not extras:
        return MESSAGE_HEAD.pack(flags, priority, max_attempts, added_at, visible_at, expires_at) + body
    head = MESSAGE_HEAD.pack(flags | HAS_EXTRAS, priority, max_attempts, added_at, visible_at, expires_at)
    return b"".join((head, len(extras).to_bytes(4), extras, body))


def unpack_message(value: bytes) -> MessageRow:
    """Read a m value."""
    flags, priority, max_attempts, added_at, visible_at, expires_at = MESSAGE_HEAD.unpack_from(value)
    start = MESSAGE_HEAD.size
    encrypted = bool(flags & ENCRYPTED)
    uncharged = ENCRYPTION_BYTES if encrypted else 0
    if not flags & HAS_EXTRAS:
        body = value[start:]
        size = len(body) - uncharged
        return MessageRow(priority, max_attempts, added_at, visible_at, expires_at, body, None, {}, size, encrypted)
    length = int.from_bytes(value[start : start + 4])
    extras = _decode_extras(value[start + 4 : start + 4 + length])
    body = value[start + 4 + length :]
    return MessageRow(
        priority,
        max_attempts,
        added_at,
        visible_at,
        expires_at,
        body,
        extras.group,
        extras.attributes,
        len(body) + length - uncharged,
        encrypted,
        extras.encrypted_attributes,
    )


# ---- le: attempts, current lease, history ----

LEASE_HEAD = struct.Struct(">IQQQQQIBHB")
_HAS_GROUP = 1


class DeliveryHistory(msgspec.Struct, array_like=True):
    """How earlier deliveries ended, and why the message is a dead letter if it is one."""

    entries: list[HistoryEntry]
    dead: DeadLetter | None = None
    first_at: int = 0  # when the first delivery began, on the wall clock; 0: unknown, or it has not ended


_decode_history = msgspec.msgpack.Decoder(DeliveryHistory).decode


class LeaseRow(msgspec.Struct, gc=False):
    """What changes in a message's life. ``token`` 0: it is not leased."""

    attempts: int
    token: int
    deadline: int
    leased_at: int
    visible_at: int  # its place in vi: where it was taken from, or where it waits
    expires_at: int  # 0: never
    size: int
    priority: int
    max_attempts: int
    group: bytes = b""  # digest of the group's name
    history: bytes = b""

    def unpack_history(self) -> DeliveryHistory:
        """Return the history and the dead-letter facts."""
        return _decode_history(self.history) if self.history else DeliveryHistory([])


def pack_lease(row: LeaseRow) -> bytes:
    """Return a le value."""
    group = row.group
    head = LEASE_HEAD.pack(
        row.attempts,
        row.token,
        row.deadline,
        row.leased_at,
        row.visible_at,
        row.expires_at,
        row.size,
        row.priority,
        row.max_attempts,
        _HAS_GROUP if group else 0,
    )
    return head + group + row.history if group or row.history else head


def pack_history(history: DeliveryHistory) -> bytes:
    return _encode(history)


def unpack_lease(value: bytes) -> LeaseRow:
    """Read a le value."""
    attempts, token, deadline, leased_at, visible_at, expires_at, size, priority, allowed, flags = (
        LEASE_HEAD.unpack_from(value)
    )
    row = LeaseRow(attempts, token, deadline, leased_at, visible_at, expires_at, size, priority, allowed)
    if len(value) > LEASE_HEAD.size:
        start = LEASE_HEAD.size + (16 if flags & _HAS_GROUP else 0)
        row.group, row.history = value[LEASE_HEAD.size : start], value[start:]
    return row


# ---- ik: an idempotency key ----


class KeyRow(msgspec.Struct, frozen=True, array_like=True):
    """The message of an idempotency key."""

    id: bytes
    body_digest: bytes
    expires_at: int


pack_key = _encode
unpack_key = msgspec.msgpack.Decoder(KeyRow).decode


# ---- re: a result ----


class ResultRow(msgspec.Struct, frozen=True, array_like=True):
    """A result and when it expires."""

    result: Result
    expires_at: int


pack_result = _encode
unpack_result = msgspec.msgpack.Decoder(ResultRow).decode


# ---- qc: a queue's counters ----


class LevelRow(msgspec.Struct, frozen=True, array_like=True):
    """The waiting messages of one priority."""

    priority: int
    ready: int
    delayed: int
    horizon: bytes  # rows up to this suffix count as ready
    cursor: bytes  # no row is before this suffix
    next_due: int  # no delayed row becomes visible before this


class CountersRow(msgspec.Struct, frozen=True, array_like=True):
    """A queue's figures, rewritten in every round that touches it."""

    levels: list[LevelRow]
    blocked: int
    in_flight: int
    bytes: int
    next_lease: int  # no lease ends before this
    next_expiry: int  # no row expires before this
    totals: list[int]


pack_counters = _encode
unpack_counters = msgspec.msgpack.Decoder(CountersRow).decode
