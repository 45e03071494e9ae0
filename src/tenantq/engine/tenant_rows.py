"""The rows of one tenant on their way to another shard.

While they are copied, a capture notes every change. Their times are moved to the clock of the other shard.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tenantq.domain.placement import split_unit, unit_name
from tenantq.engine.level import NEVER
from tenantq.store.interface import Batch, Store
from tenantq.store.keys import FAMILIES, PREFIX_BYTES, QUEUE_FAMILIES, be64, from_be64, tenant_prefix
from tenantq.store.rows import (
    LEASE_HEAD,
    MESSAGE_HEAD,
    LevelRow,
    pack_counters,
    pack_key,
    pack_result,
    unpack_counters,
    unpack_key,
    unpack_result,
)

META_KINDS: Final = (
    b"usage/",
    b"part/",
    b"queue/",
    b"grant/",
    b"review/",
    b"revoked/",
    b"template/",
    b"contained/",
    b"datakey/",
    b"import/",
    b"redrive/",
)
"""Rows of the meta family whose keys continue with the tenant's id, except the tenant's own."""

QUEUE_META_KINDS: Final = (b"queue/", b"import/", b"redrive/")
"""Those of a queue: their keys continue with its prefix."""

CAPTURED_BYTES_MAX: Final = 64 << 20
"""Changes that a capture keeps in memory. A copy that falls behind further starts again."""

_ROW_BYTES: Final = 200  # memory of a change besides its key and value
_TIME_AT: Final = {"vi": 9, "li": 8, "ex": 8}
"""Where keys contain a time."""


class RowChange(msgspec.Struct, frozen=True, array_like=True):
    """A row that was written or deleted; with ``upper``, all rows in [key, upper) were deleted."""

    family: str
    key: bytes
    value: bytes | None = None
    upper: bytes = b""


def apply_changes(batch: Batch, store: Store, changes: list[RowChange]) -> None:
    """Add changes to a batch, in order."""
    for one in changes:
        handle = store.family(one.family).handle
        if one.upper:
            batch.delete_range(one.key, one.upper, handle)
        elif one.value is None:
            batch.delete(one.key, handle)
        else:
            batch.put(one.key, one.value, handle)


class RowCapture:
    """Notes what changes in the rows that are being copied."""

    def __init__(self) -> None:
        self._ranges: list[RowChange] = []
        self._rows: dict[tuple[str, bytes], RowChange] = {}
        self._bytes = 0

    def includes(self, change: RowChange) -> bool:
        """Return whether a changed row is one of those that are being copied."""
        raise NotImplementedError

    def note(self, change: RowChange) -> None:
        """Note a change, if it is one of these rows."""
        if not self.includes(change):
            return
        self._bytes += len(change.key) + len(change.value or b"") + _ROW_BYTES
        if change.upper:
            inside = [at for at in self._rows if at[0] == change.family and change.key <= at[1] < change.upper]
            for at in inside:
                del self._rows[at]
            self._ranges.append(change)
        else:
            self._rows[change.family, change.key] = change

    @property
    def overrun(self) -> bool:
        """Whether more has changed than it may keep."""
        return self._bytes > CAPTURED_BYTES_MAX

    def __len__(self) -> int:
        return len(self._ranges) + len(self._rows)

    def take(self) -> list[RowChange]:
        """Return the changes since the last call, in an order in which they can be applied."""
        found = [*self._ranges, *self._rows.values()]
        self._ranges, self._rows, self._bytes = [], {}, 0
        return found


class TenantCapture(RowCapture):
    """Notes what changes in a tenant's rows."""

    def __init__(self, tenant_id: int) -> None:
        super().__init__()
        self._prefix = tenant_prefix(tenant_id)
        self._meta = tuple(kind + self._prefix for kind in META_KINDS)

    def includes(self, change: RowChange) -> bool:
        """Return whether it is one of the tenant's rows."""
        own = self._meta if change.family == "meta" else self._prefix
        return change.key.startswith(own) and change.family != "jn"


class GroupCapture(RowCapture):
    """Notes what changes in the rows of a group of queues. A queue that is created meanwhile belongs to it by its name."""

    def __init__(self, tenant_id: int, unit: str, prefixes: list[bytes]) -> None:
        super().__init__()
        self._unit, self._tenant = unit, split_unit(unit)[0]
        self._queues = b"queue/" + tenant_prefix(tenant_id)
        self._prefixes = set(prefixes)

    def includes(self, change: RowChange) -> bool:
        """Return whether it is a row of the group, and learn the prefixes of new queues."""
        if change.family != "meta":
            return change.key[:PREFIX_BYTES] in self._prefixes and change.family != "jn"
        kind = next((one for one in QUEUE_META_KINDS if change.key.startswith(one)), None)
        if kind is None:
            return False
        prefix = change.key[len(kind) :][:PREFIX_BYTES]
        if change.key.startswith(self._queues) and change.value is not None and prefix not in self._prefixes:
            name = msgspec.msgpack.decode(change.value, type=_NamedQueue).name
            if unit_name(self._tenant, name) == self._unit:
                self._prefixes.add(prefix)
        return prefix in self._prefixes


class _NamedQueue(msgspec.Struct):
    name: str


class CapturedBatch:
    """A batch that also notes its changes, for captures."""

    def __init__(self, store: Store) -> None:
        self.inner = store.new_batch()
        self._names = {id(store.family(name).handle): name for name in FAMILIES}
        self.changes: list[RowChange] = []

    def put(self, key: bytes, value: bytes, handle: Any, /) -> None:
        """Set a row."""
        self.inner.put(key, value, handle)
        self.changes.append(RowChange(self._names[id(handle)], key, value))

    def delete(self, key: bytes, handle: Any, /) -> None:
        """Delete a row, if it exists."""
        self.inner.delete(key, handle)
        self.changes.append(RowChange(self._names[id(handle)], key))

    def delete_range(self, lower: bytes, upper: bytes, handle: Any, /) -> None:
        """Delete all rows in [lower, upper)."""
        self.inner.delete_range(lower, upper, handle)
        self.changes.append(RowChange(self._names[id(handle)], lower, None, upper))

    def is_empty(self) -> bool:
        """Return whether it has no changes."""
        return not self.changes


def shifted(change: RowChange, by_ms: int) -> RowChange:
    """Return a change with all its times moved, from the clock of one shard to that of another."""
    family, key, value = change.family, change.key, change.value
    if not by_ms or change.upper or family not in QUEUE_FAMILIES:
        return change
    at = _TIME_AT.get(family)
    if at is not None:
        return RowChange(family, key[:at] + be64(_moved(from_be64(key[at:]), by_ms)) + key[at + 8 :], value)
    if value is None:
        return change
    return RowChange(family, key, _shifted_value(family, value, by_ms))


def _moved(time_ms: int, by_ms: int) -> int:
    return time_ms if time_ms in {0, NEVER} else time_ms + by_ms


def _shifted_value(family: str, value: bytes, by_ms: int) -> bytes:
    if family == "m":
        head = MESSAGE_HEAD.unpack_from(value)
        moved = (_moved(one, by_ms) for one in head[3:])
        return MESSAGE_HEAD.pack(*head[:3], *moved) + value[MESSAGE_HEAD.size :]
    if family == "le":
        attempts, token, *times, size, priority, allowed, flags = LEASE_HEAD.unpack_from(value)
        moved = (_moved(one, by_ms) for one in times)
        return LEASE_HEAD.pack(attempts, token, *moved, size, priority, allowed, flags) + value[LEASE_HEAD.size :]
    if family == "ik":
        key = unpack_key(value)
        return pack_key(msgspec.structs.replace(key, expires_at=_moved(key.expires_at, by_ms)))
    if family == "re":
        result = unpack_result(value)
        return pack_result(msgspec.structs.replace(result, expires_at=_moved(result.expires_at, by_ms)))
    if family == "qc":
        row = unpack_counters(value)
        levels = [_shifted_level(one, by_ms) for one in row.levels]
        next_lease, next_expiry = _moved(row.next_lease, by_ms), _moved(row.next_expiry, by_ms)
        return pack_counters(
            msgspec.structs.replace(row, levels=levels, next_lease=next_lease, next_expiry=next_expiry)
        )
    return value


def _shifted_level(level: LevelRow, by_ms: int) -> LevelRow:
    """Return a level with its bounds moved. A bound is a time and an id, or lies before or after all of them."""

    def moved(bound: bytes) -> bytes:
        if len(bound) < 8 or bound.startswith(b"\xff" * 8):
            return bound
        return be64(_moved(from_be64(bound), by_ms)) + bound[8:]

    return LevelRow(
        level.priority,
        level.ready,
        level.delayed,
        moved(level.horizon),
        moved(level.cursor),
        _moved(level.next_due, by_ms),
    )
