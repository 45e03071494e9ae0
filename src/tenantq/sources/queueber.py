"""The RocksDB directory of a Queueber server.

Keys are ``<family>/<rest>`` in the column family of the same name. Stores from before the split into families have the same
keys in ``default``. Values of items and leases are Cap'n Proto, times are big-endian seconds.
"""

import fcntl
import time
from collections.abc import Container, Iterator
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

from rocksdict import AccessType, Options, Rdict

from tenantq.errors import Invalid, Unavailable
from tenantq.sources.source import (
    InProgress,
    Mode,
    Problems,
    SourceBatch,
    SourceMessage,
    SourcePart,
    SourceQueue,
    batched,
    even_ranges,
)

FAMILIES: Final = ("available", "in_progress", "visibility_index", "leases", "lease_expiry")
_ID_BYTES: Final = 16
_TIME_BYTES: Final = 8
_QUEUE: Final = "default"


class Queueber:
    """Reads a Queueber store, also while Queueber runs: as of when it was opened, or followed with ``catch_up``."""

    kind = "queueber"
    modes: tuple[Mode, ...] = ("snapshot",)

    def __init__(self, directory: Path, *, follow: bool = False) -> None:
        """Open the store without changing it. Raises Invalid if it is not a Queueber store."""
        try:
            import capnp  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise Invalid(
                "migrate-from queueber requires Cap'n Proto: run pip install '.[rpc]' in the checkout"
            ) from error
        capnp.remove_import_hook()
        self._schema = capnp.load(str(Path(__file__).with_name("queueber.capnp")))
        self._problems = Problems()
        self.problems = self._problems.counts
        self._directory = directory
        self._resources = ExitStack()
        self._lock: IO[bytes] | None = None
        self.present: set[bytes] = set()  # all items of the last complete reading
        with self._resources:
            access = AccessType.read_only()
            if follow:
                access = AccessType.secondary(self._resources.enter_context(TemporaryDirectory(prefix="tenantq-")))
            self._families = self._open(directory, access)
            self._resources = self._resources.pop_all()

    def _open(self, directory: Path, access: AccessType) -> dict[str, Any]:
        if not (directory / "CURRENT").is_file():
            raise Invalid(f"{directory}: not a RocksDB directory. Give the data directory of Queueber.")
        options = Options(raw_mode=True)
        try:
            names = Rdict.list_cf(str(directory), options)
            known = dict.fromkeys(names, options)
            self._db = Rdict(str(directory), options, known, access)
        except Exception as error:  # rocksdict raises plain Exceptions
            raise Invalid(f"{directory}: RocksDB cannot open it ({error})") from error
        self._resources.callback(self._db.close)
        found = {name: self._db.get_column_family(name) for name in names if name in {*FAMILIES, "default"}}
        if not set(FAMILIES) & set(names) and not any(True for name in FAMILIES for _ in _rows(found["default"], name)):
            raise Invalid(
                f"{directory}: contains no Queueber items. Its column families are {', '.join(sorted(names))}."
            )
        return found

    def close(self) -> None:
        """Close the store, and let Queueber start again."""
        self._families.clear()
        self._resources.close()

    # ---- while Queueber runs ----

    def catch_up(self) -> None:
        """Read from now on what Queueber has written until now."""
        try:
            self._db.try_catch_up_with_primary()
        except Exception as error:  # rocksdict raises plain Exceptions
            raise Unavailable(f"{self._directory}: RocksDB cannot follow its writer ({error})") from error

    def has_stopped(self) -> bool:
        """Return whether Queueber has stopped. From then on it cannot start until the source is closed."""
        if self._lock is None:
            file = (self._directory / "LOCK").open("r+b")
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # RocksDB's own lock
            except OSError:
                file.close()
                return False
            self._lock = self._resources.enter_context(file)
        return True

    # ---- reading ----

    def queues(self) -> list[SourceQueue]:
        """Return the one queue that a Queueber server has."""
        now_s = int(time.time())
        delayed = sum(1 for at, _ in self._visibility() if at > now_s)
        available, leased = (sum(1 for _ in self._rows(name)) for name in ("available", "in_progress"))
        return [
            SourceQueue(
                name=_QUEUE, ready=max(0, available - delayed), delayed=min(delayed, available), in_progress=leased
            )
        ]

    def batches(self, mode: Mode, in_progress: InProgress) -> Iterator[SourceBatch]:  # noqa: ARG002  # it cannot be drained
        """Yield all items, in the order of their visibility, then those in progress."""
        return batched(chain(self.available(), self.in_progress(in_progress)))

    def available(self, skip: Container[bytes] = ()) -> Iterator[SourceMessage]:
        """Yield the items that no worker holds, except those to skip. Starts a new reading."""
        self._problems.counts.clear()
        seen = self.present = set()
        for at_s, id in self._visibility():
            value = self._value("available", id)
            if value is None:
                self._problems.count("index rows without an item; skipped")
            elif id not in seen:
                seen.add(id)
                if id not in skip:
                    yield from self._message(id, value, at_s * 1_000 or None, {})
        for id, value in self._rows("available"):
            if id not in seen:
                seen.add(id)
                self._problems.count("items without an index row; migrated as ready")
                if id not in skip:
                    yield from self._message(id, value, None, {})

    def in_progress(self, in_progress: InProgress, skip: Container[bytes] = ()) -> Iterator[SourceMessage]:
        """Yield the items that a worker holds, except those to skip. Completes the reading."""
        leases = self._leases()
        seen = self.present
        for id, value in self._rows("in_progress"):
            if id in seen:
                self._problems.count("items both available and in progress; migrated once")
                continue
            seen.add(id)
            if id not in leases:
                self._problems.count("items in progress without a lease; migrated as ready")
            keeps = in_progress == "keep-lease" and id in leases
            if id not in skip:
                visible_at = leases[id] * 1_000 if keeps else None
                yield from self._message(id, value, visible_at, {"source-state": "in_progress"})

    # ---- in parts ----

    def parts(self, count: int) -> list[SourcePart]:
        """Divide the items by ranges of their ids. One more part has those in progress, and checks the index."""
        ends = [int.from_bytes(id) for backwards in (False, True) for id in self._first_ids(backwards=backwards)]
        ranges = even_ranges(min(ends), max(ends), count) if ends else []
        return [SourcePart(order=0, what=what) for what in [*ranges, ()]]

    def part_batches(self, part: SourcePart, in_progress: InProgress, now_ms: int) -> Iterator[SourceBatch]:  # noqa: ARG002  # items have their times
        """Yield the items of one part."""
        return batched(self._range(*part.what) if part.what else self._rest(in_progress))

    def _first_ids(self, *, backwards: bool) -> Iterator[bytes]:
        """Yield the first or last available item of each place."""
        prefix = b"available/"
        start = prefix + b"\xff" * (_ID_BYTES + 1) if backwards else prefix
        for family in self._places("available"):
            for key in family.keys(backwards=backwards, from_key=start):  # not a mapping: it takes arguments
                if not key.startswith(prefix):
                    break
                if len(key) == len(prefix) + _ID_BYTES:
                    yield key[len(prefix) :]
                    break

    def _range(self, low: int, high: int) -> Iterator[SourceMessage]:
        for id, value in self._rows("available", first=low.to_bytes(_ID_BYTES)):
            if int.from_bytes(id) >= high:
                return
            at_s = self._visible_at_s(id, value)
            if at_s is None:
                self._problems.count("items without an index row; migrated as ready")
            yield from self._message(id, value, (at_s or 0) * 1_000 or None, {})

    def _visible_at_s(self, id: bytes, value: bytes) -> int | None:
        """Return when an item becomes visible, if the index has the row that the item names."""
        with suppress(Exception), self._schema.StoredItem.from_bytes(value) as item:
            rest = bytes(item.visibilityTsIndexKey).removeprefix(b"visibility_index/")
            if rest[_TIME_BYTES + 1 :] == id and self._value("visibility_index", rest) is not None:
                return int.from_bytes(rest[:_TIME_BYTES])
        return None

    def _rest(self, in_progress: InProgress) -> Iterator[SourceMessage]:
        for _, id in self._visibility():
            if self._value("available", id) is None:
                self._problems.count("index rows without an item; skipped")
        for one in self.in_progress(in_progress):
            assert one.id is not None, "every item has one"
            if self._value("available", one.id) is None:
                yield one
            else:
                self._problems.count("items both available and in progress; migrated once")

    def _message(
        self, id: bytes, value: bytes, visible_at: int | None, attributes: dict[str, str]
    ) -> Iterator[SourceMessage]:
        try:
            with self._schema.StoredItem.from_bytes(value) as item:
                contents = bytes(item.contents)
        except Exception:  # noqa: BLE001  # pycapnp raises its own class for every damage
            self._problems.count("items that cannot be decoded; skipped")
            return
        yield SourceMessage(
            key=id.hex(), queue=_QUEUE, body=contents, id=id, visible_at=visible_at, attributes=attributes,
            added_at=int.from_bytes(id[:6]) or None,
        )  # fmt: skip

    def _visibility(self) -> Iterator[tuple[int, bytes]]:
        """Yield when each item becomes visible, in seconds, in this order."""
        for rest, _ in self._rows("visibility_index", sized=False):
            if len(rest) == _TIME_BYTES + 1 + _ID_BYTES:
                yield int.from_bytes(rest[:_TIME_BYTES]), rest[-_ID_BYTES:]
            else:
                self._problems.count("malformed index rows; skipped")

    def _leases(self) -> dict[bytes, int]:
        """Return the end of each item's lease, in seconds."""
        found: dict[bytes, int] = {}
        for _, value in self._rows("leases"):
            try:
                with self._schema.LeaseEntry.from_bytes(value) as lease:
                    found.update(dict.fromkeys((bytes(id) for id in lease.ids), lease.expiryTsSecs))
            except Exception:  # noqa: BLE001  # as above
                self._problems.count("leases that cannot be decoded; skipped")
        return found

    def _value(self, name: str, id: bytes) -> bytes | None:
        """Return one row of a family, in either layout."""
        for family in self._places(name):
            value: bytes | None = family.get(f"{name}/".encode() + id)
            if value is not None:
                return value
        return None

    def _rows(self, name: str, *, sized: bool = True, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a family, in either layout, without the prefix of their keys."""
        for family in self._places(name):
            for rest, value in _rows(family, name, first):
                if sized and len(rest) != _ID_BYTES:
                    self._problems.count("malformed keys; skipped")
                else:
                    yield rest, value

    def _places(self, name: str) -> list[Any]:
        return [self._families[place] for place in (name, "default") if place in self._families]


def _rows(family: Any, name: str, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    prefix = f"{name}/".encode()
    try:
        for key, value in family.items(from_key=prefix + first):
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :], value
    except Exception as error:
        raise Unavailable(f"RocksDB cannot read column family {name}: {error}") from error
