"""Checks a data directory: the catalog, every queue and the journal."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tenantq.doctor.catalog_check import KnownQueue, find_orphans, load_data_keys, load_queues
from tenantq.doctor.journal_check import examine_journal, last_time_ms
from tenantq.doctor.queue_check import QueueCheck
from tenantq.doctor.report import DoctorReport, FindingLog, joined
from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.engine.catalog import Catalog
from tenantq.errors import StoreDamaged, StoreFailed
from tenantq.store.interface import Store
from tenantq.store.rocks import RocksStore


def open_embedded(data_dir: Path) -> Store:
    """Open the store of a data directory read-only."""
    return RocksStore(data_dir, read_only=True)


def examine(
    data_dir: Path,
    progress: Callable[[str, int], None] | None = None,
    open_store: Callable[[Path], Store] = open_embedded,
) -> DoctorReport:
    """Check the store in ``data_dir``, or the one that ``open_store`` opens, and return a report. Changes nothing.

    ``progress`` is called with the current place and the number of rows checked so far. Raises StoreLocked if another process uses
    the directory, StoreFormat if it has no tenantq store.
    """
    log = FindingLog(progress)
    try:
        store = open_store(data_dir)
    except StoreDamaged as error:
        log.found("damaged", error.message)
        return log.report()
    try:
        _examine(store, log)
    finally:
        store.close()
    return log.report()


StoreOpener = Callable[[Path], Store]


def examine_shards(
    shards: Sequence[tuple[str, Path, StoreOpener]], progress: Callable[[str, int], None] | None = None
) -> DoctorReport:
    """Check the stores of all shards, given by name, directory and opener, and that no tenant is on two of them."""
    reports: dict[str, DoctorReport] = {}
    names: Counter[str] = Counter()
    for name, path, open_store in shards:
        reports[name] = examine(path, progress, open_store)
        names.update(_tenants(path, open_store))
    return joined(reports, sorted(name for name, count in names.items() if count > 1))


def _tenants(data_dir: Path, open_store: StoreOpener) -> set[str]:
    """Return the tenants that only one shard may have; none if the store is unreadable, which is its own finding."""
    try:
        store = open_store(data_dir)
    except StoreDamaged:
        return set()
    try:
        catalog = Catalog(store)
        catalog.load()
        return set(catalog.tenants) - {DEFAULT_TENANT, *PROBE_TENANTS}
    except (StoreFailed, msgspec.MsgspecError, struct.error, LookupError):
        return set()
    finally:
        store.close()


def _examine(store: Store, log: FindingLog) -> None:
    queues: dict[bytes, KnownQueue] = {}
    with _Damage(log, "the catalog cannot be read"):
        queues = load_queues(store, log)
        find_orphans(store, queues, log)
    data_keys: dict[int, set[int]] = {}
    with _Damage(log, "the data keys cannot be read"):
        data_keys = load_data_keys(store, log)
    now = 0
    with _Damage(log, "the newest journal record cannot be read"):
        now = last_time_ms(store)
    for queue in queues.values():
        with _Damage(log, "the queue's rows cannot be read to their end", queue):
            QueueCheck(store, queue, log, now, data_keys).run()
    with _Damage(log, "the journal cannot be read to its end"):
        examine_journal(store, log)


class _Damage:
    """Turns errors of damaged bytes into a finding, so that the check continues elsewhere."""

    def __init__(self, log: FindingLog, what: str, queue: KnownQueue | None = None) -> None:
        self._notes = log
        self._what = what
        self._queue = queue

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, StoreFailed | msgspec.MsgspecError | struct.error | UnicodeDecodeError):
            return False
        queue = self._queue
        self._notes.found(
            "damaged",
            f"{self._what}: {error}",
            tenant=queue.tenant if queue is not None else "",
            queue=queue.name if queue is not None else "",
        )
        return True
