"""The open store on RocksDB, through rocksdict. Every failure is one of our own errors.

This file relies on measurements (docs/internals/decisions/0002-rocksdict.md). An unsynced ``write`` followed by
``flush_wal(True)`` on another thread releases the interpreter during the fsync. The binding's ``keys()`` and ``items()``
end silently at a damaged block; ``iter()`` reports it through ``status()``.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final
from weakref import ref

from rocksdict import BottommostLevelCompaction, Checkpoint, CompactOptions, WriteBatch

from tenantq.errors import RowsDamaged, StoreDamaged, StoreFailed, StoreFormat
from tenantq.runtime.durable_files import write_durably
from tenantq.store.crash_recovery import EXAMINED, STAGE, check_format, open_database
from tenantq.store.database import CONSUMED, bounded, last_item, name_failure
from tenantq.store.directory_lock import DirectoryLock
from tenantq.store.framing import current_manifest
from tenantq.store.interface import Beat, Families, Family, ManyDeleted, StoreFigure
from tenantq.store.keys import FAMILIES, PREFIX_BYTES, QUEUE_FAMILIES
from tenantq.store.log_space import LogSpace
from tenantq.store.snapshot import RocksSnapshot
from tenantq.store.sync_marker import SyncMarkerFile, read_beat

DAMAGED: Final = "damaged"
"""File in the data directory after a read or a compaction has met damaged bytes: what RocksDB reported."""


class RocksStore(Families):
    """A ``Store`` on RocksDB; see there which methods other threads may call."""

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
            {
                name: Family(name, self._db.get_column_family_handle(name), self._db.get_column_family(name))
                for name in FAMILIES
            }
        )
        self._find_manifest()
        self._log_space = LogSpace(path / "db")
        self._snapshots: tuple[ref[RocksSnapshot], ...] = ()

    def call_on_close(self, clean_up: Callable[[], None]) -> None:
        """Call ``clean_up`` after the database has been closed."""
        self._closing.callback(clean_up)

    def last_beat(self) -> Beat | None:
        return read_beat(self.path / "heart")

    def watch(self, lost: Callable[[StoreFailed], None]) -> None:
        """Do nothing: this process owns the directory until it closes the store."""

    @property
    def is_doubtful(self) -> bool:
        """Return False: no other process can own the directory."""
        return False

    def close(self) -> None:
        """Close the database and release the directory in any case, then raise the first failure."""
        failures: list[Exception] = []
        closing = [family.view.close for family in self._families.values()]
        self.drop_families()
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

        All families are of the same moment, because only this thread writes. Rows before ``lower`` can be read as well.
        """
        options = bounded(upper)
        taken = {name: self._families[name].view.iter(options) for name in families}
        snapshot = RocksSnapshot(taken, options, upper, lambda error: name_failure(error, self.path))
        self._snapshots = (*self._open_snapshots(), ref(snapshot))
        return snapshot

    def _open_snapshots(self) -> list[ref[RocksSnapshot]]:
        return [one for one in self._snapshots if (snapshot := one()) is not None and snapshot.is_open]

    def _read_failure(self, error: Exception, family: Family, key: bytes) -> StoreFailed:
        """Return the named error for a failed read: RowsDamaged if rows of one queue are damaged."""
        failure = name_failure(error, self.path)
        if type(failure) is not StoreDamaged or self.sync_marker is None:
            return failure
        for one in self._families.values() if self._note_damage(failure) else ():
            one.view.set_options({"disable_auto_compactions": "true"})
        if family.name not in QUEUE_FAMILIES or len(key) < PREFIX_BYTES:
            return failure
        damaged = RowsDamaged(failure.message)
        damaged.prefix = key[:PREFIX_BYTES]
        return damaged

    def _note_damage(self, failure: StoreFailed) -> bool:
        """Write a file that stops compactions, also after a restart. Returns whether it is new.

        RocksDB refuses all writes after a compaction has met damaged bytes. Without compactions only reads of them fail.
        """
        if type(failure) is not StoreDamaged or (self.path / DAMAGED).exists():
            return False
        with suppress(OSError):  # it only helps the next start
            write_durably(self.path / DAMAGED, f"{failure.message}\n".encode(), 0o600)
        return True

    def _check_undamaged(self) -> None:
        """Raise StoreDamaged if the tables must not be rewritten."""
        if (self.path / DAMAGED).exists():
            raise StoreDamaged(f"store {self.path}: has damaged bytes; restore from a backup")

    # ---- writing ----

    def name_queue(self, prefix: bytes, name: str | None) -> None:
        """Do nothing: keys contain the prefix only."""

    def new_batch(self) -> WriteBatch:
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:
            failure = name_failure(error, self.path)
            self._note_damage(failure)
            raise failure from error
        self._log_space.keep()

    def sync(self) -> None:
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise name_failure(error, self.path) from error

    def compact(self, lower: bytes, upper: bytes) -> None:
        self._check_undamaged()
        options = CompactOptions()
        for name in CONSUMED:
            self._families[name].view.compact_range(lower, upper, options)

    def scrub(self, family: Family, lower: bytes, upper: bytes) -> None:
        """Remove deleted rows in [lower, upper) from all files: tables and log. Safe from any thread.

        A flush makes the log obsolete, and a compaction rewrites the tables without the rows.
        """
        self._check_undamaged()
        try:
            self.flush()
            options = CompactOptions()
            options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
            family.view.compact_range(lower, upper, options)
        except Exception as error:
            raise name_failure(error, self.path) from error

    def erase(self, lower: bytes, upper: bytes) -> bool:
        """Remove deleted rows in [lower, upper) of all queue families, and deleted rows of meta, from all files.

        For a thread. Return False if a snapshot is open: it keeps old files, with the rows of all tenants.
        """
        self._check_undamaged()
        try:
            self.flush()
            options = CompactOptions()
            options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
            for name in QUEUE_FAMILIES:
                self._families[name].view.compact_range(lower, upper, options)
            self.meta.view.compact_range(b"\0", b"\xff" * 64, options)
        except Exception as error:
            raise name_failure(error, self.path) from error
        return not self._open_snapshots()

    def forget_deletions(self) -> bool:
        """Have RocksDB drop tables that contain only deletions; it checks them whenever a snapshot is closed."""
        self._db.snapshot()
        return any(self._db.property_int_value(f"rocksdb.num-running-{work}") for work in ("flushes", "compactions"))

    def flush(self) -> None:
        """Write all memory tables to files."""
        for family in self._families.values():
            family.view.flush()

    def checkpoint(self) -> Path:
        """Copy everything written so far into STAGE by hard links, and return its path. For a thread, one at a time.

        The flush comes first because it releases the interpreter, which the checkpoint itself does not.
        """
        stage = self.path / STAGE
        shutil.rmtree(stage, ignore_errors=True)
        try:
            self.flush()
            Checkpoint(self._db).create_checkpoint(str(stage))
        except Exception as error:
            shutil.rmtree(stage, ignore_errors=True)
            shutil.rmtree(stage.with_name(f"{STAGE}.tmp"), ignore_errors=True)  # where RocksDB begins it
            raise name_failure(error, self.path) from error
        return stage

    def manifest(self) -> tuple[int, int]:
        """Return number and size of the current MANIFEST."""
        for _ in range(3):
            try:
                return self._manifest_number, os.stat(self._manifest).st_size  # noqa: PTH116  # after every sync
            except OSError:  # RocksDB has begun a new one
                self._find_manifest()
        return 0, 0

    def _find_manifest(self) -> None:
        found = current_manifest(self.path / "db")
        self._manifest = str(found or self.path / "MANIFEST-0")  # without a database none is found
        self._manifest_number = int(self._manifest.rpartition("-")[2])

    def free_bytes(self) -> int:
        """Return the free space of the store's disk."""
        info = os.statvfs(self.path)
        return info.f_bavail * info.f_frsize

    def location(self) -> str:
        """Return the directory of the store."""
        return str(self.path.absolute())

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
