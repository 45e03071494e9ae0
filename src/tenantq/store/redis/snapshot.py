"""Snapshots of a Redis store: a reader sees the rows as they were when its snapshot was taken.

Redis has no snapshots, but all changes are this process's own. While snapshots are open, old values are kept before rows change,
and deleted queues are renamed. The reader puts the old values back into what it reads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Final

from tenantq.errors import Unavailable
from tenantq.store.change_batch import NUMBER, ChangeBatch
from tenantq.store.interface import Items, StoreSnapshot
from tenantq.store.keys import after
from tenantq.store.redis.batch import touched
from tenantq.store.redis.layout import GROUPED, JOURNAL, covers, group_of, lex_bounds
from tenantq.store.redis.row_reader import RedisRowReader

KEPT_BYTES_MAX: Final = 128 << 20
"""Most bytes of old values of one snapshot that are kept in memory."""
_PAGE: Final = 256
_PAGE_BYTES: Final = 4 << 20
_ROW_BYTES: Final = 200  # memory of a row besides its key and value


class _Old:
    """Old values of the rows of one group that have changed since a snapshot."""

    __slots__ = ("order", "rows")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.order: list[bytes] = []

    def keep(self, key: bytes, value: bytes | None) -> None:
        self.rows[key] = value
        insort(self.order, key)

    def between(self, lower: bytes, upper: bytes) -> list[bytes]:
        return self.order[bisect_left(self.order, lower) : bisect_left(self.order, upper)]


class RedisSnapshot(StoreSnapshot):
    """A snapshot of the rows in [lower, upper) of some families."""

    def __init__(self, snapshots: RedisSnapshots, lower: bytes, upper: bytes, families: tuple[str, ...]) -> None:
        self._snapshots = snapshots
        self.lower, self.upper, self.families = lower, upper, families
        self.old: dict[tuple[str, bytes], _Old] = {}
        self.kept: dict[tuple[str, bytes], tuple[bytes, bytes]] = {}  # the keys that keep the rows of a deleted queue
        self.bytes = 0
        self.overrun = False

    def keys(self, family: str, lower: bytes, limit: int) -> list[bytes]:
        found: list[bytes] = []
        for key, _ in self._rows(family, lower, self.upper, limit, 0, values=False):
            found.append(key)
            if len(found) == limit:
                break
        return found

    def items(self, family: str, lower: bytes, upper: bytes, limit: int, bytes_max: int | None = None) -> Items:
        found, size = Items(), 0
        for key, value in self._rows(family, lower, upper, limit, bytes_max or 0):
            found.cut = bytes_max is not None and bool(found) and size >= bytes_max
            found.append((key, value))
            size += len(value)
            if found.cut or len(found) == limit:
                break
        return found

    def walk(self, family: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._rows(family, prefix, after(prefix), _PAGE, _PAGE_BYTES)

    def close(self) -> None:
        self._snapshots.close(self)

    def _rows(
        self, family: str, lower: bytes, upper: bytes, page: int, page_bytes: int, *, values: bool = True
    ) -> Iterator[tuple[bytes, bytes]]:
        for group in self._snapshots.groups(family, lower, upper, self):
            at: bytes | None = lower
            while at is not None:
                rows, at = self._snapshots.page(
                    self, family, group, at, upper, min(page, _PAGE), page_bytes, values=values
                )
                yield from rows

    def keep(self, family: str, key: bytes, value: bytes | None) -> None:
        """Keep the value of a key that is about to change for the first time."""
        self.old.setdefault((family, group_of(family, key)), _Old()).keep(key, value)
        self.bytes += len(key) + len(value or b"") + _ROW_BYTES
        if self.bytes > KEPT_BYTES_MAX:
            self.overrun = True
            self.old.clear()


class RedisSnapshots:
    """The open snapshots of a store. Its lock is held while a batch that affects them is written."""

    def __init__(self, reader: RedisRowReader, kept: bytes, unlink: Callable[[list[bytes]], None]) -> None:
        """Prepare. Names of kept keys start with ``kept``, which is unique to this owner."""
        self._reader, self._kept, self._unlink = reader, kept, unlink
        self.lock = threading.RLock()
        self.open: list[RedisSnapshot] = []
        self._kept_count = 0

    def take(self, lower: bytes, upper: bytes, families: tuple[str, ...]) -> RedisSnapshot:
        assert JOURNAL not in families, "its rows are not kept"
        snapshot = RedisSnapshot(self, lower, upper, families)
        with self.lock:
            self.open.append(snapshot)
        return snapshot

    def close(self, snapshot: RedisSnapshot) -> None:
        """Close a snapshot, and delete what only it still needed."""
        with self.lock:
            if snapshot not in self.open:
                return
            self.open.remove(snapshot)
            still = {name for one in self.open for names in one.kept.values() for name in names}
            gone = [name for names in snapshot.kept.values() for name in names if name not in still]
            snapshot.old.clear()
            snapshot.kept.clear()
        if gone:
            self._unlink(gone)

    # ---- before and after a write, with the lock held ----

    def keep_old(self, batch: ChangeBatch) -> None:
        """Keep the old values of the rows that a batch is about to change."""
        for family in {family for snapshot in self.open for family in snapshot.families}:
            wanted = {
                key
                for snapshot in self.open
                if family in snapshot.families and not snapshot.overrun
                for key in touched(batch, family, snapshot.lower, snapshot.upper)
                if not self._has(snapshot, family, key)
            }
            for number, lower, upper in batch.ranges:
                if number == NUMBER[family]:
                    wanted.update(self._partly(family, lower, upper))
            if not wanted:
                continue
            keys = sorted(wanted)
            for key, value in zip(keys, self._reader.get_many(family, keys), strict=True):
                for snapshot in self.open:
                    shows = family in snapshot.families and snapshot.lower <= key < snapshot.upper
                    if shows and not snapshot.overrun and not self._has(snapshot, family, key):
                        snapshot.keep(family, key, value)

    def _partly(self, family: str, lower: bytes, upper: bytes) -> list[bytes]:
        """Return the keys that a range deletes from groups that remain."""
        found: list[bytes] = []
        for group in self._reader.groups(family, lower, upper):
            if not covers(lower, upper, group) and lex_bounds(family, group, lower, upper) is not None:
                found += self._reader.keys_of_group(family, group, lower, upper)
        return found

    @staticmethod
    def _has(snapshot: RedisSnapshot, family: str, key: bytes) -> bool:
        place = (family, group_of(family, key))
        old = snapshot.old.get(place)
        return place in snapshot.kept or (old is not None and key in old.rows)

    def names_to_keep(self, batch: ChangeBatch) -> dict[tuple[str, bytes], tuple[bytes, bytes]]:
        """Return new names for the groups that a batch deletes while a snapshot shows them."""
        names: dict[tuple[str, bytes], tuple[bytes, bytes]] = {}
        for family in {family for snapshot in self.open for family in snapshot.families if family in GROUPED}:
            for number, lower, upper in batch.ranges:
                if number != NUMBER[family]:
                    continue
                for group in self._reader.groups(family, lower, upper):
                    if covers(lower, upper, group) and any(self._shows(one, family, group) for one in self.open):
                        self._kept_count += 1
                        name = self._kept + b":%d" % self._kept_count
                        names[family, group] = (name, name + b":i")
        return names

    def kept_as(self, names: dict[tuple[str, bytes], tuple[bytes, bytes]]) -> None:
        """Let snapshots read deleted groups under their new names."""
        for (family, group), where in names.items():
            for snapshot in self.open:
                if self._shows(snapshot, family, group):
                    snapshot.kept[family, group] = where

    @staticmethod
    def _shows(snapshot: RedisSnapshot, family: str, group: bytes) -> bool:
        return (
            family in snapshot.families
            and (family, group) not in snapshot.kept
            and lex_bounds(family, group, snapshot.lower, snapshot.upper) is not None
        )

    # ---- reading, from any thread ----

    def groups(self, family: str, lower: bytes, upper: bytes, snapshot: RedisSnapshot) -> list[bytes]:
        """Return the groups that a snapshot may have rows of, in order."""
        with self.lock:
            kept = {group for name, group in snapshot.kept if name == family}
            kept |= {group for name, group in snapshot.old if name == family}
            live = set(self._reader.groups(family, lower, upper))
        return sorted(group for group in live | kept if lex_bounds(family, group, lower, upper) is not None)

    def page(
        self,
        snapshot: RedisSnapshot,
        family: str,
        group: bytes,
        lower: bytes,
        upper: bytes,
        limit: int,
        bytes_max: int,
        *,
        values: bool,
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return rows as they were, and where to continue; None if this group has no more."""
        while snapshot in self.open:
            where = snapshot.kept.get((family, group))
            read = self._reader.page(family, group, lower, upper, limit, bytes_max, where, values=values)
            with self.lock:  # rows that changed during the read are among the old values now
                if snapshot not in self.open:
                    break
                if snapshot.overrun:
                    raise Unavailable(
                        f"more than {KEPT_BYTES_MAX >> 20} MiB changed while a snapshot was read. Start again while less is written."
                    )
                if snapshot.kept.get((family, group)) != where:
                    continue  # the queue was deleted meanwhile, and has another name now
                at = read.rows[-1][0] + b"\0" if read.more and read.rows else None
                old = snapshot.old.get((family, group))
                if old is None:
                    return read.rows, at
                merged: dict[bytes, bytes | None] = dict(read.rows)
                for key in old.between(lower, at if at is not None else upper):
                    merged[key] = old.rows[key]
                return sorted((key, value) for key, value in merged.items() if value is not None), at
        return [], None
