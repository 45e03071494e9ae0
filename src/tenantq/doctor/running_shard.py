"""Reads a shard of a Redis store while a server owns it. Takes no ownership and writes nothing.

Commits are atomic, so everything that one server-side function reads is consistent. One call reads the catalog, all counters and the
end of the journal. Records of the journal never change: they are copied in pages, up to that end. One call per queue reads its rows
when the check gets to it. Redis serves nothing else during such a call, so queues above QUEUE_BYTES_MAX raise TooLargeToCopy.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from tenantq.engine.catalog import QUEUE_ROW, TENANT_ROW
from tenantq.engine.data_key_rows import tenant_range
from tenantq.errors import StoreFailed, Unavailable
from tenantq.journal.record import ANCHOR_KEY, parse_anchor
from tenantq.store.change_batch import remote_families
from tenantq.store.interface import Beat, Family, StoreReader, TooLargeToCopy
from tenantq.store.keys import PREFIX_BYTES, after, be64, from_be64, split_prefix
from tenantq.store.local_identity import check_identity
from tenantq.store.redis.address import RedisAddress
from tenantq.store.redis.durability import DurabilityCheck
from tenantq.store.redis.layout import GROUPED, JOURNAL, PLACE_BYTES, Layout
from tenantq.store.redis.link import RedisCommand, Script, SlotLink
from tenantq.store.redis.row_reader import RedisRowReader, journal_row
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.redis.store import MARK, check_format
from tenantq.store.shard_lease import read_beat

KeyCommand = tuple[str, bytes, *tuple[bytes | str | int, ...]]
"""A command on one key: its name, the key, and other arguments."""
QUEUE_BYTES_MAX: Final = 128 << 20
"""Memory limit of a queue's rows in Redis. Copying that much takes some tenths of a second."""
_ATTEMPTS: Final = 100
_RECORDS_PER_PAGE: Final = 256
_TOGETHER: Final = Script("together")


class _ReadLink(SlotLink):
    """A connection whose failures are no findings."""

    def calls(self, commands: Sequence[RedisCommand], **options: Any) -> list[Any]:
        """Send commands together and return their replies. Raises Unavailable if Redis does not respond."""
        try:
            return super().calls(commands, **options)
        except StoreFailed as error:
            if error.__cause__ is None:  # Redis has refused a command: a key may be damaged
                raise
            raise Unavailable(error.message) from error


class _CopiedRows:
    """A copy of rows: the keys of their index in order, and their values."""

    def __init__(self, keys: Sequence[bytes] = (), pairs: Sequence[bytes] = ()) -> None:
        self._keys = sorted(keys)
        self.values = dict(zip(pairs[::2], pairs[1::2], strict=True))

    @classmethod
    def of_queue(cls, family: str, prefix: bytes, index: list[bytes], pairs: Sequence[bytes] = ()) -> _CopiedRows:
        """Return rows from the keys of a queue in Redis, which lack its prefix."""
        length = PLACE_BYTES.get(family)
        if length is None:
            rows = cls([prefix + name for name in index], pairs)
            rows.values = {prefix + name: value for name, value in rows.values.items()}
            return rows
        split = [(prefix + name[:length], name[length:]) for name in index]
        return cls([key for key, _ in split], [part for pair in split for part in pair])

    def between(self, lower: bytes, upper: bytes) -> Iterator[bytes]:
        """Iterate over the keys in [lower, upper)."""
        return islice(self._keys, bisect_left(self._keys, lower), bisect_left(self._keys, upper))


class _JournalCopy:
    """Records of the journal, in a temporary file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._seqs, self._starts, self._sizes = (array("Q") for _ in range(3))

    def close(self) -> None:
        self._file.close()

    @property
    def last(self) -> int:
        """The last record; 0 if there is none."""
        return self._seqs[-1] if self._seqs else 0

    def keep_from(self, seq: int) -> None:
        """Forget earlier records."""
        gone = bisect_left(self._seqs, seq)
        for column in (self._seqs, self._starts, self._sizes):
            del column[:gone]

    def add(self, key: bytes, value: bytes) -> None:
        """Add a record before or after all others."""
        seq, start = from_be64(key), self._file.tell()
        self._file.write(value)
        at = len(self._seqs) if seq > self.last else 0
        for column, number in ((self._seqs, seq), (self._starts, start), (self._sizes, len(value))):
            column.insert(at, number)

    def items(self, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` rows in [lower, upper), in order."""
        first, end = self._span(lower, upper)
        return [self._row(at) for at in range(first, min(end, first + limit))]

    def newest(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row in [lower, upper), or None."""
        first, end = self._span(lower, upper)
        return self._row(end - 1) if first < end else None

    def _span(self, lower: bytes, upper: bytes) -> tuple[int, int]:
        first, end = (
            bisect_left(self._seqs, int.from_bytes(bound[:8].ljust(8, b"\0")) + (len(bound) > 8))
            for bound in (lower, upper)
        )
        return first, end

    def _row(self, at: int) -> tuple[bytes, bytes]:
        self._file.flush()
        return be64(self._seqs[at]), os.pread(self._file.fileno(), self._sizes[at], self._starts[at])


class RunningShard(StoreReader):
    """A shard that a server owns."""

    def __init__(self, path: Path, address: RedisAddress, settings: RedisSettings, shard: str) -> None:
        """Read the catalog and copy the journal. ``path`` has the local files of a server, if it exists.

        Raises StoreFormat; Unavailable if Redis does not respond, or if the server trims the journal faster than it can be read.
        """
        self._address, self._layout = address, Layout(settings.name, shard)
        check = DurabilityCheck(address, settings, "os")
        self._link = _ReadLink(address, self._layout.state, settings.patience_ms, check)
        self._prefixes: set[bytes] = set()
        self._reader = RedisRowReader(self._link, self._layout, self._prefixes, None)
        self._files = TemporaryDirectory(prefix="tenantq-")
        self.path = Path(self._files.name)
        self._journal = _JournalCopy(self.path / "journal")
        self._catalog, self._counters = _CopiedRows(), _CopiedRows()
        self._beat: Beat | None = None
        self._prefix = b""  # of the copied queue
        self._queue: dict[str, _CopiedRows] = {}
        try:
            format, id = self._link.call("HMGET", self._layout.state, "format", "id")
            check_format(address, self._layout, format, must_exist=True)
            check_identity(path, MARK, address, id.decode(), read_only=True)
            self._copy_journal()
        except BaseException:
            self.close()
            raise
        super().__init__(remote_families())

    def close(self) -> None:
        self._journal.close()
        self._link.close()
        self._files.cleanup()

    # ---- copying ----

    def _together(self, *commands: KeyCommand) -> tuple[list[Any], int]:
        """Return the replies to commands that Redis executes together, and the time of Redis in ms."""
        keys = list(dict.fromkeys(command[1] for command in commands))
        arguments = [
            str(part).encode() if not isinstance(part, bytes) else part
            for name, key, *others in commands
            for part in (2 + len(others), name, 1 + keys.index(key), *others)
        ]
        replies, (seconds, micros) = self._link.calls(
            [_TOGETHER.call(keys, arguments), ("TIME",)], scripts=(_TOGETHER,)
        )
        return replies, int(seconds) * 1_000 + int(micros) // 1_000

    def _rows_of(self, family: str, group: bytes) -> tuple[KeyCommand, ...]:
        index: KeyCommand = ("ZRANGE", self._layout.index(family, group), 0, -1)
        return (index,) if family in PLACE_BYTES else (index, ("HGETALL", self._layout.rows(family, group)))

    def _copy_journal(self) -> None:
        """Copy the catalog, and the journal up to that state. Repeats it if the journal was trimmed meanwhile."""
        layout, journal, epoch = self._layout, self._journal, b""
        for _ in range(_ATTEMPTS):
            replies, now_ms = self._together(
                ("HMGET", layout.state, "epoch", "beat", "beat_ms"),
                ("ZRANGE", layout.prefixes, 0, -1),
                ("XREVRANGE", layout.journal, "+", "-", "COUNT", 1),
                ("XRANGE", layout.journal, "-", "+", "COUNT", 1),
                *self._rows_of("meta", b""),
                *self._rows_of("qc", b""),
            )
            (owner, beat, beat_ms), prefixes, newest, oldest, *rows = replies
            if owner != epoch:  # a failover may have replaced records
                journal.keep_from(1 << 63)
            epoch = owner
            self._catalog, self._counters = _CopiedRows(*rows[:2]), _CopiedRows(*rows[2:])
            self._set_beat(beat, beat_ms, now_ms)
            self._prefixes.clear()
            for member in prefixes:
                self._register(member)
            anchor = self._catalog.values.get(ANCHOR_KEY)
            first = parse_anchor(anchor)[0] + 1
            journal.keep_from(first)
            for row in map(journal_row, oldest):
                if from_be64(row[0]) < first:
                    journal.add(*row)
            self._copy_records(first, from_be64(journal_row(newest[0])[0]) if newest else 0)
            ((owner,), trimmed), _ = self._together(
                ("HMGET", layout.state, "epoch"), ("HGET", layout.rows("meta", b""), ANCHOR_KEY)
            )
            if (owner, trimmed) == (epoch, anchor):
                return
        raise Unavailable(f"store {self._address}: the journal is trimmed faster than it can be read. Try again later.")

    def _copy_records(self, first: int, last: int) -> None:
        at = max(first, self._journal.last + 1)
        while at <= last:
            found = self._link.call("XRANGE", self._layout.journal, at, last, "COUNT", _RECORDS_PER_PAGE)
            rows = [journal_row(entry) for entry in found]
            if not rows:
                return
            for row in rows:
                self._journal.add(*row)
            at = from_be64(rows[-1][0]) + 1

    def _set_beat(self, beat: bytes | None, beat_ms: bytes | None, now_ms: int, seq: int | None = None) -> None:
        """Keep a beat with the shard's time now, and with ``seq`` if its own record is not in the copy."""
        if not beat:
            return
        found = read_beat(self._address, beat)
        assert found is not None
        passed_ms = max(0, now_ms - int(beat_ms)) if beat_ms else 0
        self._beat = msgspec.structs.replace(
            found, seq=found.seq if seq is None else seq, engine_ms=found.engine_ms + passed_ms
        )

    def _register(self, member: bytes) -> None:
        self._prefixes.add(member[:PREFIX_BYTES])
        self._layout.register(member[:PREFIX_BYTES], member[PREFIX_BYTES:])

    def _copy_queue(self, prefix: bytes) -> None:
        """Copy all rows of a queue in place of the previous one. A queue that was deleted, or left this shard, has none."""
        layout, meta, tenant_id = self._layout, self._layout.rows("meta", b""), split_prefix(prefix)[0]
        lower, upper = tenant_range(tenant_id)
        self._queue, self._prefix = {}, b""  # frees the memory first
        while True:
            self._check_size(prefix)
            families = [self._rows_of(family, prefix) for family in GROUPED]
            replies, now_ms = self._together(
                ("ZRANGE", layout.prefixes, b"[" + prefix, b"(" + after(prefix), "BYLEX"),
                ("HGET", meta, QUEUE_ROW + prefix),
                ("HGET", meta, TENANT_ROW + prefix[:4]),
                ("ZRANGE", layout.index("meta", b""), b"[" + lower, b"(" + upper, "BYLEX"),
                ("HMGET", layout.state, "beat", "beat_ms"),
                ("HGET", layout.rows("qc", b""), prefix),
                *(command for commands in families for command in commands),
            )
            members, queue, tenant, data_keys, (beat, beat_ms), counters, *rows = replies
            if not members or members[0][PREFIX_BYTES:] == layout.queue(prefix):
                break
            self._register(members[0])  # it had no rows before
        is_here = queue is not None and tenant is not None
        copied = {
            "qc": _CopiedRows([prefix], [prefix, counters]) if is_here and counters is not None else _CopiedRows()
        }
        found = iter(rows)
        for family, commands in zip(GROUPED, families, strict=True):
            parts = [next(found) for _ in commands]
            copied[family] = _CopiedRows.of_queue(family, prefix, *parts) if is_here else _CopiedRows()
        for name in data_keys:  # messages may be encrypted with newer keys than those in the catalog
            self._catalog.values.setdefault(name, b"")
        self._queue, self._prefix = copied, prefix
        self._set_beat(beat, beat_ms, now_ms, self._beat.seq if self._beat is not None else 0)

    def _check_size(self, prefix: bytes) -> None:
        keys = {command[1] for family in GROUPED for command in self._rows_of(family, prefix)}
        size = sum(found or 0 for found in self._link.calls([("MEMORY", "USAGE", key) for key in keys]))
        if size > QUEUE_BYTES_MAX:
            raise TooLargeToCopy(
                f"{size >> 20} MiB in Redis, at most {QUEUE_BYTES_MAX >> 20} MiB can be checked while servers run"
            )

    # ---- reading ----

    def last_beat(self) -> Beat | None:
        return self._beat

    def _rows(self, family: str, lower: bytes, upper: bytes) -> _CopiedRows | None:
        """Return the copy with the rows in [lower, upper); None: they are not copied."""
        if family == "meta":
            return self._catalog
        prefix = lower[:PREFIX_BYTES]
        if upper <= after(prefix) and QUEUE_ROW + prefix in self._catalog.values:
            if prefix != self._prefix:
                self._copy_queue(prefix)
            return self._queue[family]
        return self._counters if family == "qc" else None

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for key in keys:
            rows = self._rows(family.name, key, key + b"\0")
            found += [rows.values.get(key)] if rows is not None else self._reader.get_many(family.name, [key])
        return found

    def scan(self, family: Family, lower: bytes, upper: bytes, limit: int, *, deleted_max: int = 0) -> list[bytes]:  # noqa: ARG002  # Redis keeps no deleted rows
        if family.name == JOURNAL:
            return [key for key, _ in self._journal.items(lower, upper, limit)]
        rows = self._rows(family.name, lower, upper)
        if rows is None:
            return self._reader.scan(family.name, lower, upper, limit)
        return list(islice(rows.between(lower, upper), limit))

    def scan_items(self, family: Family, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        if family.name == JOURNAL:
            return self._journal.items(lower, upper, limit)
        rows = self._rows(family.name, lower, upper)
        if rows is None:
            return self._reader.scan_items(family.name, lower, upper, limit)
        found = ((key, rows.values[key]) for key in rows.between(lower, upper) if key in rows.values)
        return list(islice(found, limit))

    def last_item(self, family: Family, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        assert family.name == JOURNAL, "only the journal is read from its end"
        return self._journal.newest(lower, upper)
