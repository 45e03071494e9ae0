"""The open store on RocksDB, through rocksdict. Every failure is one of our own errors.

This file relies on measurements (docs/internals/decisions/0002-rocksdict.md). An unsynced ``write`` followed by
``flush_wal(True)`` on another thread releases the interpreter during the fsync. The binding's ``keys()`` and ``items()``
end silently at a damaged block; ``iter()`` reports it through ``status()``.
"""

import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from rocksdict import WriteBatch

from tenantq.errors import RowsDamaged, StoreDamaged, StoreFailed, StoreFormat
from tenantq.store.crash_recovery import EXAMINED, STAGE, check_format, open_database
from tenantq.store.database import bounded, last_item, name_failure
from tenantq.store.directory_lock import DirectoryLock
from tenantq.store.interface import Beat, Family, ManyDeleted, Store, StoreFigure
from tenantq.store.keys import FAMILIES, PREFIX_BYTES, QUEUE_FAMILIES
from tenantq.store.log_space import LogSpace
from tenantq.store.rocks_files import DAMAGED, RocksFiles
from tenantq.store.snapshot import RocksSnapshot
from tenantq.store.sync_marker import SyncMarkerFile, read_beat


class SoleOwnership:
    """The ownership of a data directory. It lasts until the store closes."""

    epoch = 0
    is_doubtful = False

    def watch(self, lost: Callable[[StoreFailed], None]) -> None:
        """Do nothing: the store cannot be lost."""


class RocksStore(Store):
    """A store on RocksDB."""

    files: RocksFiles

    def __init__(
        self, path: Path, *, memory_bytes: int = 96 << 20, read_only: bool = False, even_if_cut: bool = False
    ) -> None:
        """Open the store in directory ``path``; create it if it is missing.

        With ``even_if_cut``, synced records may be missing from the journal's end, for tools that examine a store.

        Raises StoreLocked, StoreFormat or StoreDamaged. Nothing has changed then.
        """
        self.path = path
        if read_only and not (path / "format").exists():
            raise StoreFormat(f"{path}: no tenantq store found. Check the path.")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)  # the files contain every message that is not encrypted
        self._closing = ExitStack()
        self._closing.enter_context(closing(DirectoryLock(path)))
        try:
            check_format(path, read_only=read_only)
            if not read_only:
                for left in (path / STAGE, *path.glob(f"{EXAMINED}*")):
                    shutil.rmtree(left, ignore_errors=True)
            self.sync_marker: SyncMarkerFile | None = None
            if not read_only:
                self.sync_marker = self._closing.enter_context(closing(SyncMarkerFile(path / "heart")))
            self._db = open_database(
                path, self.sync_marker, memory_bytes, self._closing, even_if_cut=even_if_cut,
                compacting=not (path / DAMAGED).exists(),
            )  # fmt: skip
        except BaseException:
            self._closing.close()
            raise
        super().__init__(
            Family(name, self._db.get_column_family_handle(name), self._db.get_column_family(name)) for name in FAMILIES
        )
        self.files = RocksFiles(path, self._db, self._families)
        self.ownership = SoleOwnership()
        self._log_space = LogSpace(path / "db")

    def call_on_close(self, clean_up: Callable[[], None]) -> None:
        """Call ``clean_up`` after the database has been closed."""
        self._closing.callback(clean_up)

    def last_beat(self) -> Beat | None:
        return read_beat(self.path / "heart")

    def close(self) -> None:
        """Close the database and release the directory in any case, then raise the first failure."""
        failures: list[Exception] = []
        closing = [family.view.close for family in self._families.values()]
        self._drop_families()
        self._log_space.close()
        for close in (*closing, self._db.close):
            try:
                close()
            except Exception as error:  # noqa: BLE001  # the binding has no error class of its own
                failures.append(error)
        self._closing.close()
        if failures:
            raise name_failure(failures[0], self.path) from failures[0]

    # ---- reading ----

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            value: bytes | None = family.view.get(key)
        except Exception as error:
            raise self._read_failure(error, family, key) from error
        return value

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = family.view.get(keys)
        except Exception as error:
            raise self._read_failure(error, family, keys[0]) from error
        return values

    def scan(self, family: Family, lower: bytes, upper: bytes, limit: int, *, deleted_max: int = 0) -> list[bytes]:
        keys: list[bytes] = []
        options = bounded(upper)
        options.set_max_skippable_internal_keys(deleted_max)
        try:
            iterator = family.view.iter(options)
            iterator.seek(lower)
            take, step, valid = iterator.key, iterator.next, iterator.valid
            while len(keys) < limit and valid():
                keys.append(take())
                step()
            iterator.status()
        except Exception as error:
            if deleted_max and "incomplete" in str(error):
                raise ManyDeleted from error
            raise self._read_failure(error, family, lower) from error
        return keys

    def scan_items(self, family: Family, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        items: list[tuple[bytes, bytes]] = []
        try:
            iterator = family.view.iter(bounded(upper))
            iterator.seek(lower)
            take, value, step, valid = iterator.key, iterator.value, iterator.next, iterator.valid
            while len(items) < limit and valid():
                items.append((take(), value()))
                step()
            iterator.status()
        except Exception as error:
            raise self._read_failure(error, family, lower) from error
        return items

    def last_item(self, family: Family, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        try:
            return last_item(family.view, lower, upper)
        except Exception as error:
            raise name_failure(error, self.path) from error

    def snapshot(self, lower: bytes, upper: bytes, *families: str) -> RocksSnapshot:  # noqa: ARG002  # other stores need it
        """Return a snapshot of the rows in [lower, upper) of some families. Another thread may read it.

        All families show the same state, because only this thread writes. Rows before ``lower`` can be read as well.
        """
        options = bounded(upper)
        taken = {name: self._families[name].view.iter(options) for name in families}
        snapshot = RocksSnapshot(taken, options, upper, lambda error: name_failure(error, self.path))
        self.files.keep_for(snapshot)
        return snapshot

    def _read_failure(self, error: Exception, family: Family, key: bytes) -> StoreFailed:
        """Return the named error for a failed read: RowsDamaged if rows of one queue are damaged."""
        failure = name_failure(error, self.path)
        if type(failure) is not StoreDamaged or self.sync_marker is None:
            return failure
        if self.files.note_damage(failure):
            for one in self._families.values():
                one.view.set_options({"disable_auto_compactions": "true"})
        if family.name not in QUEUE_FAMILIES or len(key) < PREFIX_BYTES:
            return failure
        damaged = RowsDamaged(failure.message)
        damaged.prefix = key[:PREFIX_BYTES]
        return damaged

    # ---- writing ----

    def new_batch(self) -> WriteBatch:
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:
            failure = name_failure(error, self.path)
            self.files.note_damage(failure)
            raise failure from error
        self._log_space.keep()

    def sync(self) -> None:
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise name_failure(error, self.path) from error

    def figures(self) -> list[StoreFigure]:
        """Return RocksDB's statistics, from memory; none once it is closed."""
        if not self._families:
            return []
        found = [
            StoreFigure(name, meaning, {"family": family.name}, family.view.property_int_value(source) or 0)
            for name, source, meaning in _FAMILY_FIGURES
            for family in self._families.values()
        ]
        found += [
            StoreFigure(name, meaning, {}, self._db.property_int_value(source) or 0)
            for name, source, meaning in _DATABASE_FIGURES
        ]
        return found


_FAMILY_FIGURES: Final = (
    ("tenantq_rocksdb_keys", "rocksdb.estimate-num-keys", "Keys of a family, estimated by RocksDB."),
    ("tenantq_rocksdb_sst_bytes", "rocksdb.live-sst-files-size", "Bytes of a family's live files."),
    ("tenantq_rocksdb_memtable_bytes", "rocksdb.cur-size-all-mem-tables", "Bytes of a family in memory."),
    ("tenantq_rocksdb_level0_files", "rocksdb.num-files-at-level0", "Files of a family that wait for compaction."),
    ("tenantq_rocksdb_compaction_pending_bytes", "rocksdb.estimate-pending-compaction-bytes",
     "Bytes of a family to compact."),
)  # fmt: skip
_DATABASE_FIGURES: Final = (
    ("tenantq_rocksdb_block_cache_bytes", "rocksdb.block-cache-usage", "Bytes in the block cache."),
    ("tenantq_rocksdb_compactions_running", "rocksdb.num-running-compactions", "Compactions that run."),
    ("tenantq_rocksdb_write_stopped", "rocksdb.is-write-stopped", "Whether RocksDB has stopped writes."),
    ("tenantq_rocksdb_background_errors", "rocksdb.background-errors", "Errors of flushes and compactions."),
)
