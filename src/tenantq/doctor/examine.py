"""One examination of a data directory, from the catalog over every queue to the journal."""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from tenantq.cluster.layout import numbered_dirs
from tenantq.doctor.data_key_exam import load_data_keys
from tenantq.doctor.journal_exam import examine_journal, last_time_ms
from tenantq.doctor.known_queues import KnownQueue, find_orphans, load_queues
from tenantq.doctor.queue_exam import QueueExam
from tenantq.doctor.report import Notes, Report, joined
from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.engine.catalog import Catalog
from tenantq.errors import StoreDamaged, StoreFailed
from tenantq.store.rocks import RocksStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.store.interface import Store


def open_embedded(data_dir: Path) -> Store:
    """Open the store of a data directory, only to read."""
    return RocksStore(data_dir, read_only=True)


def examine(
    data_dir: Path,
    progress: Callable[[str, int], None] | None = None,
    open_store: Callable[[Path], Store] = open_embedded,
) -> Report:
    """Recount the store in ``data_dir``, or the one that ``open_store`` opens, and return what does not add up. Nothing is changed.

    ``progress`` is told where the examination is and how many rows it has looked at so far.
    Raises StoreLocked while another process has the directory, StoreFormat where there is no tenantq store.
    """
    notes = Notes(progress)
    try:
        store = open_store(data_dir)
    except StoreDamaged as error:
        notes.found("damaged", error.message)
        return notes.report()
    try:
        _examine(store, notes)
    finally:
        store.close()
    return notes.report()


def examine_shards(data_dir: Path, progress: Callable[[str, int], None] | None = None) -> Report:
    """Recount the stores of all shards of a data directory, and see that no tenant is on two of them."""
    reports: dict[str, Report] = {}
    names: Counter[str] = Counter()
    for number, path in numbered_dirs(data_dir):
        reports[str(number)] = examine(path, progress)
        names.update(_tenants(path))
    return joined(reports, sorted(name for name, count in names.items() if count > 1))


def _tenants(data_dir: Path) -> set[str]:
    """Return the tenants that one shard alone may have; none where the store cannot be read, which is a finding of its own."""
    try:
        store = open_embedded(data_dir)
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


def _examine(store: Store, notes: Notes) -> None:
    queues: dict[bytes, KnownQueue] = {}
    with _Damage(notes, "the catalog cannot be read"):
        queues = load_queues(store, notes)
        find_orphans(store, queues, notes)
    data_keys: dict[int, set[int]] = {}
    with _Damage(notes, "the data keys cannot be read"):
        data_keys = load_data_keys(store, notes)
    now = 0
    with _Damage(notes, "the newest journal record cannot be read"):
        now = last_time_ms(store)
    for queue in queues.values():
        with _Damage(notes, "the queue's rows cannot be read to their end", queue):
            QueueExam(store, queue, notes, now, data_keys).run()
    with _Damage(notes, "the journal cannot be read to its end"):
        examine_journal(store, notes)


class _Damage:
    """Turns what damaged bytes raise into a finding, so that the examination goes on elsewhere."""

    def __init__(self, notes: Notes, what: str, queue: KnownQueue | None = None) -> None:
        self._notes = notes
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
