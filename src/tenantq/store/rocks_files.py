"""The files of a RocksDB store: their space, copies of them, and a note of damage."""

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import ref

from rocksdict import BottommostLevelCompaction, Checkpoint, CompactOptions, Rdict

from tenantq.errors import StoreDamaged, StoreFailed
from tenantq.runtime.durable_files import write_durably
from tenantq.store.crash_recovery import STAGE
from tenantq.store.database import CONSUMED, name_failure
from tenantq.store.framing import current_manifest
from tenantq.store.interface import Family
from tenantq.store.keys import QUEUE_FAMILIES
from tenantq.store.snapshot import RocksSnapshot

DAMAGED: Final = "damaged"
"""File in the data directory after a read or a compaction has found damaged bytes: what RocksDB reported."""


class RocksFiles:
    """The ``StoreFiles`` of a data directory."""

    def __init__(self, path: Path, db: Rdict, families: Mapping[str, Family]) -> None:
        self._path, self._db, self._families = path, db, families
        self._snapshots: tuple[ref[RocksSnapshot], ...] = ()
        self._find_manifest()

    # ---- damage ----

    def note_damage(self, failure: StoreFailed) -> bool:
        """Write a file that stops compactions, also after a restart. Return whether it is new.

        RocksDB refuses all writes after a compaction has found damaged bytes. Without compactions only reads of them fail.
        """
        if type(failure) is not StoreDamaged or (self._path / DAMAGED).exists():
            return False
        with suppress(OSError):  # it only helps the next start
            write_durably(self._path / DAMAGED, f"{failure.message}\n".encode(), 0o600)
        return True

    def _check_undamaged(self) -> None:
        """Raise StoreDamaged if the tables must not be rewritten."""
        if (self._path / DAMAGED).exists():
            raise StoreDamaged(f"store {self._path}: has damaged bytes; restore from a backup")

    # ---- deleted rows ----

    def compact(self, lower: bytes, upper: bytes) -> None:
        self._check_undamaged()
        options = CompactOptions()
        for name in CONSUMED:
            self._families[name].view.compact_range(lower, upper, options)

    def scrub(self, family: Family, lower: bytes, upper: bytes) -> None:
        self._rewrite([(family, lower, upper)])

    def erase(self, lower: bytes, upper: bytes) -> bool:
        """Remove deleted rows from all files. Return False if a snapshot is open: it keeps old files, with rows of all tenants."""
        queues = [(self._families[name], lower, upper) for name in QUEUE_FAMILIES]
        self._rewrite([*queues, (self._families["meta"], b"\0", b"\xff" * 64)])
        return not self._open_snapshots()

    def _rewrite(self, ranges: Iterable[tuple[Family, bytes, bytes]]) -> None:
        """Rewrite tables without deleted rows, after a flush, which makes the log obsolete."""
        self._check_undamaged()
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        try:
            self.flush()
            for family, lower, upper in ranges:
                family.view.compact_range(lower, upper, options)
        except Exception as error:
            raise name_failure(error, self._path) from error

    def keep_for(self, snapshot: RocksSnapshot) -> None:
        """Note a snapshot, which keeps old files until it is closed."""
        self._snapshots = (*self._open_snapshots(), ref(snapshot))

    def _open_snapshots(self) -> list[ref[RocksSnapshot]]:
        return [one for one in self._snapshots if (snapshot := one()) is not None and snapshot.is_open]

    def forget_deletions(self) -> bool:
        """Have RocksDB drop tables that contain only deletions; it checks them whenever a snapshot is closed."""
        self._db.snapshot()
        return any(self._db.property_int_value(f"rocksdb.num-running-{work}") for work in ("flushes", "compactions"))

    # ---- copies, size and place ----

    def flush(self) -> None:
        for family in self._families.values():
            family.view.flush()

    def checkpoint(self) -> Path:
        """Copy everything written so far into STAGE by hard links, and return its path.

        The flush comes first because it releases the interpreter, which the checkpoint itself does not.
        """
        stage = self._path / STAGE
        shutil.rmtree(stage, ignore_errors=True)
        try:
            self.flush()
            Checkpoint(self._db).create_checkpoint(str(stage))
        except Exception as error:
            shutil.rmtree(stage, ignore_errors=True)
            shutil.rmtree(stage.with_name(f"{STAGE}.tmp"), ignore_errors=True)  # where RocksDB begins it
            raise name_failure(error, self._path) from error
        return stage

    def manifest(self) -> tuple[int, int]:
        for _ in range(3):
            try:
                return self._manifest_number, os.stat(self._manifest).st_size  # noqa: PTH116  # after every sync
            except OSError:  # RocksDB has begun a new one
                self._find_manifest()
        return 0, 0

    def _find_manifest(self) -> None:
        found = current_manifest(self._path / "db")
        self._manifest = str(found or self._path / "MANIFEST-0")  # a read-only store may have no database
        self._manifest_number = int(self._manifest.rpartition("-")[2])

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._path).free

    def location(self) -> str:
        return str(self._path.absolute())
