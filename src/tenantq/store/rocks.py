"""RocksDB through rocksdict: open, read, write, sync, with every failure given a name.

Facts this file rests on (measured, see docs/decisions/0002-rocksdict.md):
``write`` without sync and then ``flush_wal(True)`` from another thread leaves the interpreter free during the fsync;
the ``keys()`` and ``items()`` iterators of the binding end silently at a damaged block, ``iter()`` tells by ``status()``;
a lower bound in its read options hides every row, so scans seek to their start and bound only their end;
an iterator points into the bytes of its upper bound, so those must live as long as it does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import TYPE_CHECKING, Final

import msgspec
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    Checkpoint,
    CompactOptions,
    DBCompressionType,
    DBRecoveryMode,
    Env,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from tenantq.durable_files import sync, write_durably
from tenantq.errors import DiskFull, StoreDamaged, StoreFailed, StoreFormat, StoreLocked
from tenantq.store.framing import check_manifest, current_manifest, damaged, torn_logs
from tenantq.store.heart import Heart, read_beat
from tenantq.store.keys import FAMILIES, QUEUE_FAMILIES, from_be64
from tenantq.store.log_space import LogSpace
from tenantq.store.moment import Moment

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1
STAGE: Final = "checkpoint.new"
"""Where in the data directory a checkpoint stands while it is copied; one that a crash left is removed on opening."""

_POINT_READ = ("m", "le", "ik", "re", "qc", "meta")
_BEFORE_STORE = {
    "lock",
    ".format.new",
    "keyring.json",
    "keyring.json.lock",
    "keyring.key",
}  # may be there before the store
_CONSUMED = ("m", "vi", "le", "li", "gr", "ex", "ik", "re")


class FormatFile(msgspec.Struct, frozen=True):
    """The file ``format``: what wrote this directory."""

    format: int
    product: str = "tenantq"


def name_failure(error: Exception, path: Path | str) -> StoreFailed:
    """Return the named error for what the binding raised."""
    text = str(error)
    if isinstance(error, StoreFailed):
        return error
    if "No space left" in text or "File too large" in text or "Disk quota" in text:
        return DiskFull(f"store {path}: no room to write ({text}); nothing of this round is confirmed")
    if text.startswith(("Corruption", "Invalid argument")) or "No such file" in text or "checksum" in text:
        return StoreDamaged(f"store {path}: {text}; restore from a backup")
    return StoreFailed(f"store {path}: {text}; nothing of this round is confirmed")


class DirectoryLock:
    """Makes sure that one process at a time has a data directory."""

    def __init__(self, directory: Path, name: str = "lock") -> None:
        self._file = (directory / name).open("a+", encoding="ascii")  # held until close
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read(20).strip() or "unknown"
            self._file.close()
            raise StoreLocked(
                f"{directory} is in use by process {holder}; stop it, or choose another directory"
            ) from error
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def close(self) -> None:
        """Let another process have the directory."""
        self._file.close()


class Family:
    """One column family: the handle that batches want and the view that reads want."""

    __slots__ = ("handle", "name", "view")

    def __init__(self, db: Rdict, name: str) -> None:
        self.name = name
        self.handle = db.get_column_family_handle(name)
        self.view = db.get_column_family(name)


class Store:
    """The open store of one shard. Those of its methods that are for threads say so; all others belong to the event loop's."""

    __slots__ = (
        "_db",
        "_families",
        "_lock",
        "_log_space",
        "_manifest",
        "ex",
        "gr",
        "heart",
        "ik",
        "jn",
        "le",
        "li",
        "m",
        "meta",
        "path",
        "qc",
        "re",
        "vi",
    )

    def __init__(
        self, path: Path, *, memory_bytes: int = 96 << 20, read_only: bool = False, even_if_cut: bool = False
    ) -> None:
        """Open the store in directory ``path``, making it if there is none.

        ``even_if_cut`` is for who examines it: synced records may be missing from the journal's end.

        Raises StoreLocked, StoreFormat or StoreDamaged, and then has changed nothing.
        """
        self.path = path
        if read_only and not (path / "format").exists():
            raise StoreFormat(f"{path} holds no tenantq store")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)  # who has the files has every message that is not encrypted
        self._lock = DirectoryLock(path)
        try:
            self._check_format(read_only=read_only)
            if not read_only:
                shutil.rmtree(path / STAGE, ignore_errors=True)
            self.heart: Heart | None = None if read_only else Heart(path / "heart")
            self._db = self._open(memory_bytes, read_only=read_only, even_if_cut=even_if_cut)
        except BaseException:
            self._lock.close()
            raise
        self._families: dict[str, Family] = {name: Family(self._db, name) for name in FAMILIES}
        for name, family in self._families.items():
            setattr(self, name, family)
        self._manifest = current_manifest(path / "db") or path
        self._log_space = LogSpace(path / "db")

    meta: Family
    m: Family
    vi: Family
    le: Family
    li: Family
    gr: Family
    ik: Family
    re: Family
    ex: Family
    qc: Family
    jn: Family

    def family(self, name: str) -> Family:
        """Return a family by name."""
        return self._families[name]

    def close(self) -> None:
        """Close the database and let the directory go, in any case; then raise what went wrong, if anything did."""
        failures: list[Exception] = []
        closing = [family.view.close for family in self._families.values()]
        for name in self._families:
            delattr(self, name)
        self._families.clear()
        self._log_space.close()
        for close in (*closing, self._db.close):
            try:
                close()
            except Exception as error:  # noqa: BLE001  # the binding has no error class of its own
                failures.append(error)
        if self.heart is not None:
            self.heart.close()
        self._lock.close()
        if failures:
            raise name_failure(failures[0], self.path) from failures[0]

    # ---- reading ----

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of ``key``, or None."""
        try:
            value: bytes | None = family.view.get(key)
        except Exception as error:
            raise name_failure(error, self.path) from error
        return value

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` in order, None for each that is absent."""
        try:
            values: list[bytes | None] = family.view.get(keys)  # type: ignore[arg-type,assignment]  # invariant lists in its stub
        except Exception as error:
            raise name_failure(error, self.path) from error
        return values

    def scan(self, family: Family, lower: bytes, upper: bytes, limit: int) -> list[bytes]:
        """Return up to ``limit`` keys in [lower, upper), in order."""
        keys: list[bytes] = []
        try:
            iterator = family.view.iter(_bounded(upper))
            iterator.seek(lower)
            take, step, valid = iterator.key, iterator.next, iterator.valid
            while len(keys) < limit and valid():
                keys.append(take())
                step()
            iterator.status()
        except Exception as error:
            raise name_failure(error, self.path) from error
        return keys

    def scan_items(self, family: Family, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` keys in [lower, upper) with their values, in order."""
        items: list[tuple[bytes, bytes]] = []
        try:
            iterator = family.view.iter(_bounded(upper))
            iterator.seek(lower)
            take, value, step, valid = iterator.key, iterator.value, iterator.next, iterator.valid
            while len(items) < limit and valid():
                items.append((take(), value()))
                step()
            iterator.status()
        except Exception as error:
            raise name_failure(error, self.path) from error
        return items

    def last_item(self, family: Family, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest key in [lower, upper) with its value, or None."""
        try:
            return last_item(family.view, lower, upper)
        except Exception as error:
            raise name_failure(error, self.path) from error

    def moment(self, upper: bytes, *families: str) -> Moment:
        """Return the keys before ``upper`` of families as they are now. No write comes between them: all are this thread's.

        Another thread may read it.
        """
        options = _bounded(upper)
        taken = {name: self._families[name].view.iter(options) for name in families}
        return Moment(taken, options, upper, lambda error: name_failure(error, self.path))

    # ---- writing ----

    def write(self, batch: WriteBatch) -> None:
        """Apply ``batch`` atomically. It survives the process at once, the machine only after ``sync``."""
        try:
            self._db.write(batch)
        except Exception as error:
            raise name_failure(error, self.path) from error
        self._log_space.keep()

    def sync(self) -> None:
        """Make everything written so far durable. Safe from any thread, and leaves the interpreter free."""
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise name_failure(error, self.path) from error

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Give back the space of deleted rows in [lower, upper) of every queue family. For a thread."""
        options = CompactOptions()
        for name in _CONSUMED:
            self._families[name].view.compact_range(lower, upper, options)

    def scrub(self, family: Family, lower: bytes, upper: bytes) -> None:
        """Leave nothing of deleted rows in [lower, upper) in any file: neither in tables nor in the log. From any thread.

        The log is let go once every family has written what stood in it; the tables are written anew without the rows.
        """
        try:
            self.flush()
            options = CompactOptions()
            options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
            family.view.compact_range(lower, upper, options)
        except Exception as error:
            raise name_failure(error, self.path) from error

    def erase(self, lower: bytes, upper: bytes) -> None:
        """Leave nothing of deleted rows in [lower, upper) of any queue family, nor of any deleted row of meta, in any file.

        For a thread. What a snapshot or a checkpoint still holds goes when that is let go.
        """
        try:
            self.flush()
            options = CompactOptions()
            options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
            for name in QUEUE_FAMILIES:
                self._families[name].view.compact_range(lower, upper, options)
            self.meta.view.compact_range(b"\0", b"\xff" * 64, options)
        except Exception as error:
            raise name_failure(error, self.path) from error

    def forget_deletions(self) -> None:
        """Let RocksDB drop tables that hold nothing but deletions: it looks at them when a snapshot is let go."""
        self._db.snapshot()

    def flush(self) -> None:
        """Write all memory tables to files."""
        for family in self._families.values():
            family.view.flush()

    def checkpoint(self) -> Path:
        """Put everything written so far into STAGE, by hard links, and return where. For a thread, one at a time.

        The memory tables are flushed first, since that leaves the interpreter free and the checkpoint itself does not.
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
        """Return the number and the size of the MANIFEST in force."""
        for _ in range(3):
            try:
                return int(self._manifest.name[9:]), self._manifest.stat().st_size
            except OSError:  # RocksDB has begun a new one
                self._manifest = current_manifest(self.path / "db") or self._manifest
        return 0, 0

    def free_bytes(self) -> int:
        """Return the space left on the store's disk."""
        info = os.statvfs(self.path)
        return info.f_bavail * info.f_frsize

    # ---- opening ----

    def _check_format(self, *, read_only: bool) -> None:
        file = self.path / "format"
        if not file.exists():
            strangers = sorted(p.name for p in self.path.iterdir() if p.name not in _BEFORE_STORE)
            if strangers:
                raise StoreFormat(f"{self.path} is not empty and holds no tenantq store (found {strangers[0]!r})")
            if not read_only:
                write_durably(file, msgspec.json.encode(FormatFile(FORMAT)))
                sync(self.path.parent)
            return
        try:
            found = msgspec.json.decode(file.read_bytes(), type=FormatFile)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreDamaged(f"{file} is unreadable: {error}") from error
        if found.format != FORMAT or found.product != "tenantq":
            raise StoreFormat(f"{self.path} is of format {found.format}; this program reads format {FORMAT}")

    def _open(self, memory_bytes: int, *, read_only: bool, even_if_cut: bool) -> Rdict:
        directory = self.path / "db"
        last = self.heart.last if self.heart is not None else read_beat(self.path / "heart")
        if last is not None and last.seq > 0 and not (directory / "CURRENT").exists():
            raise StoreDamaged(f"store {self.path}: the database is gone, {last.seq} journal records were in it")
        check_manifest(directory, last)
        torn = torn_logs(directory)
        if torn and read_only:
            raise damaged(*torn[0])
        if torn:
            self._cut(directory, torn, memory_bytes, last.seq if last is not None and not even_if_cut else 0)
        elif last is not None and not even_if_cut:
            # The log is read up to its first bad record. Whether that took anything confirmed is the heart's question, and it
            # is asked on a read-only handle, which alters nothing, so a refusal leaves the evidence as it was.
            self._check_nothing_lost(open_rocks(directory, memory_bytes, read_only=True), last.seq)
        db = open_rocks(directory, memory_bytes, read_only=read_only)
        if last is None and not read_only:
            sync(self.path)  # a new store: its files' names are durable before anything is confirmed
        return db

    def _cut(self, directory: Path, torn: list[tuple[Path, int]], memory_bytes: int, seq: int) -> None:
        """Cut off what stands behind the last whole records of logs, if everything that was confirmed is before it.

        That is asked of a likeness of the database, in which the logs are cut already.
        """
        stage, ends = self.path / STAGE, dict(torn)
        stage.mkdir()
        try:
            for file in directory.iterdir():
                if file in ends:
                    with file.open("rb") as whole:
                        (stage / file.name).write_bytes(whole.read(ends[file]))
                elif not file.name.startswith("LO"):  # neither LOCK nor the diary, LOG
                    os.link(file, stage / file.name)
            self._check_nothing_lost(open_rocks(stage, memory_bytes, read_only=True), seq)
            for log, end in torn:
                with log.open("r+b") as opened:
                    opened.truncate(end)
                    os.fsync(opened.fileno())
        except OSError as error:
            raise StoreFailed(f"store {self.path}: {error}; nothing was altered") from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def _check_nothing_lost(self, db: Rdict, seq: int) -> None:
        journal = db.get_column_family("jn")
        try:
            newest = last_item(journal, b"", b"\xff" * 8)
        except Exception as error:
            raise name_failure(error, self.path) from error
        finally:
            journal.close()
            db.close()
        found = from_be64(newest[0]) if newest else 0
        if found < seq:
            raise StoreDamaged(
                f"store {self.path}: the journal ends at record {found}, but {seq} was synced: acknowledged work is"
                " missing from the log; restore from a backup, nothing was altered by this refusal"
            )


def _bounded(upper: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(upper)
    return options


def last_item(view: Rdict, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
    """Return the greatest key in [lower, upper) with its value, or None; raise what the binding raises."""
    iterator = view.iter(_bounded(upper))
    iterator.seek_to_last()
    item = (iterator.key(), iterator.value()) if iterator.valid() else None
    iterator.status()
    return item if item is not None and item[0] >= lower else None


def open_rocks(directory: Path, memory_bytes: int, *, read_only: bool) -> Rdict:
    """Open the database itself, or raise StoreFailed."""
    cache = Cache(memory_bytes // 3)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_paranoid_checks(True)
    options.set_db_write_buffer_size(memory_bytes * 2 // 3)
    options.set_max_total_wal_size(memory_bytes)
    options.set_max_background_jobs(2)
    environment = Env()
    environment.lower_thread_pool_cpu_priority()  # compactions give way to callers; flushes do not: writes wait for them
    options.set_env(environment)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_max_open_files(512)
    options.set_max_file_opening_threads(1)  # by default RocksDB starts a dozen for every family, at every start
    access = AccessType.read_only(False) if read_only else AccessType.read_write()
    families = {name: _family_options(name, cache) for name in FAMILIES}
    try:
        return Rdict(str(directory), options, column_families=families, access_type=access)
    except Exception as error:
        raise name_failure(error, directory) from error


def _family_options(name: str, cache: Cache) -> Options:
    options = Options(raw_mode=True)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_format_version(5)
    if name in _POINT_READ:
        table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(16 << 20)
    options.set_max_write_buffer_number(4)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_level_zero_slowdown_writes_trigger(32)
    options.set_level_zero_stop_writes_trigger(64)
    if name in _CONSUMED:
        options.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
    return options
