"""The RocksDB database: its options, and our errors for its failures.

This file relies on measurements (docs/internals/decisions/0002-rocksdict.md). A lower bound in the binding's read options
hides every row, so scans seek to their start and bound only their end. An iterator points into the bytes of its upper
bound, which must therefore live as long as the iterator.
"""

from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Env,
    Options,
    Rdict,
    ReadOptions,
)

from tenantq.errors import DiskFull, StoreDamaged, StoreFailed
from tenantq.store.keys import FAMILIES

CONSUMED: Final = ("m", "vi", "le", "li", "gr", "ex", "ik", "re")
"""Families whose rows are deleted with their messages."""
_POINT_READ: Final = ("m", "le", "ik", "re", "qc", "meta")


def name_failure(error: Exception, path: Path | str) -> StoreFailed:
    """Return the named error for what the binding raised."""
    text = str(error)
    if isinstance(error, StoreFailed):
        return error
    if "No space left" in text or "File too large" in text or "Disk quota" in text:
        return DiskFull(f"store {path}: not enough disk space ({text}). Nothing of this round is confirmed.")
    if text.startswith(("Corruption", "Invalid argument")) or "No such file" in text or "checksum" in text:
        return StoreDamaged(f"store {path}: {text}. Restore from a backup.")
    return StoreFailed(f"store {path}: {text}. Nothing of this round is confirmed.")


def bounded(upper: bytes) -> ReadOptions:
    """Return options that end a scan before ``upper``; they must live as long as the scan."""
    options = ReadOptions()
    options.set_iterate_upper_bound(upper)
    return options


def last_item(view: Rdict, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
    """Return the greatest key in [lower, upper) with its value, or None; raise what the binding raises."""
    iterator = view.iter(bounded(upper))
    iterator.seek_to_last()
    item = (iterator.key(), iterator.value()) if iterator.valid() else None
    iterator.status()
    return item if item is not None and item[0] >= lower else None


def open_rocks(directory: Path, memory_bytes: int, *, read_only: bool, compacting: bool = True) -> Rdict:
    """Open the database itself, or raise StoreFailed. Without ``compacting``, it leaves its tables as they are."""
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
    environment.lower_thread_pool_cpu_priority()  # compactions yield to callers; flushes do not, because writes wait for them
    options.set_env(environment)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_max_open_files(512)
    options.set_max_file_opening_threads(1)  # by default RocksDB starts a dozen for every family, at every start
    access = AccessType.read_only(False) if read_only else AccessType.read_write()
    families = {name: _family_options(name, cache) for name in FAMILIES}
    for family in families.values():
        family.set_disable_auto_compactions(not compacting)
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
    if name in CONSUMED:
        options.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
    return options
