"""Checks a data directory: the catalog, every queue and the journal."""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from tenantq.doctor.catalog_check import KnownQueue, find_orphans, load_data_keys, load_queues
from tenantq.doctor.journal_check import examine_journal, last_time_ms
from tenantq.doctor.queue_check import QueueCheck
from tenantq.doctor.report import DoctorReport, FindingLog, joined
from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.errors import StoreDamaged, StoreFailed, StoreLocked
from tenantq.store.interface import Store, StoreReader, TooLargeToCopy
from tenantq.store.rocks import RocksStore
from tenantq.store.running_store import open_running


def open_embedded(data_dir: Path, *, even_if_cut: bool = False) -> Store:
    """Open the store of a data directory read-only; a checkpoint of it if a server is running."""
    try:
        return RocksStore(data_dir, read_only=True, even_if_cut=even_if_cut)
    except StoreLocked:
        return open_running(data_dir, even_if_cut=even_if_cut)


def examine(
    data_dir: Path,
    progress: Callable[[str, int], None] | None = None,
    open_store: Callable[[Path], StoreReader] = open_embedded,
) -> DoctorReport:
    """Check the store in ``data_dir``, or the one that ``open_store`` opens, and return a report. Changes nothing.

    ``progress`` is called with the current place and the number of rows checked so far. Raises StoreFormat if the directory has no
    tenantq store.
    """
    return _examine_shard(data_dir, progress, open_store).report()


StoreOpener = Callable[[Path], StoreReader]


def examine_shards(
    shards: Sequence[tuple[str, Path, StoreOpener]], progress: Callable[[str, int], None] | None = None
) -> DoctorReport:
    """Check the stores of all shards, given by name, directory and opener, and that each tenant has one home."""
    logs = {name: _examine_shard(path, progress, open_store) for name, path, open_store in shards}
    twice, homeless = _found_twice(logs.values()), _homeless(logs.values())
    if twice or homeless:  # unless one has moved meanwhile
        again = [_load(path, open_store) for _, path, open_store in shards]
        twice, homeless = twice & _found_twice(again), homeless & _homeless(again)
    return joined({name: log.report() for name, log in logs.items()}, sorted(twice), sorted(homeless))


def _found_twice(shards: Iterable[FindingLog]) -> set[str]:
    names = Counter(name for log in shards for name in log.tenants - {DEFAULT_TENANT, *PROBE_TENANTS})
    return {name for name, count in names.items() if count > 1}


def _homeless(shards: Iterable[FindingLog]) -> set[str]:
    logs = list(shards)
    return {name for log in logs for name in log.parts} - {name for log in logs for name in log.tenants}


def _load(data_dir: Path, open_store: StoreOpener) -> FindingLog:
    log = FindingLog()
    with _Damage(log, "the catalog cannot be read"), closing(open_store(data_dir)) as store:
        load_queues(store, log)
    return log


def _examine_shard(data_dir: Path, progress: Callable[[str, int], None] | None, open_store: StoreOpener) -> FindingLog:
    log = FindingLog(progress)
    try:
        store = open_store(data_dir)
    except StoreDamaged as error:
        log.found("damaged", error.message)
        return log
    try:
        _examine(store, log)
    finally:
        store.close()
    return log


def _examine(store: StoreReader, log: FindingLog) -> None:
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
        try:
            with _Damage(log, "the queue's rows cannot be read to their end", queue):
                QueueCheck(store, queue, log, now, data_keys).run()
        except TooLargeToCopy as error:
            log.unchecked.append(f"{queue.tenant}/{queue.name}: {error}")
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
