"""Checks a data directory: the catalog, every queue and the journal."""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import msgspec

from tenantq.doctor.catalog_check import KnownQueue, find_orphans, load_data_keys, load_queues
from tenantq.doctor.journal_check import examine_journal, last_time_ms
from tenantq.doctor.queue_check import QueueCheck
from tenantq.doctor.redrive_check import check_redrives
from tenantq.doctor.report import DoctorReport, FindingLog, joined
from tenantq.domain.cluster_view import TenantPlacement
from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.errors import StoreDamaged, StoreFailed, StoreLocked
from tenantq.store.interface import Store, StoreOpener, StoreReader, TooLargeToCopy
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
    open_store: StoreOpener = open_embedded,
) -> DoctorReport:
    """Check the store in ``data_dir``, or the one that ``open_store`` opens, and return a report. Changes nothing.

    ``progress`` is called with the current place and the number of rows checked so far. Raises StoreFormat if the directory has no
    tenantq store.
    """
    return _examine_shard(data_dir, progress, open_store).report()


ReadDirectory = Callable[[], Mapping[str, TenantPlacement] | None]
"""Returns the tenant directory of shards that are named by their numbers; None if they have none yet."""


def examine_shards(
    shards: Sequence[tuple[str, Path, StoreOpener]],
    progress: Callable[[str, int], None] | None = None,
    read_directory: ReadDirectory = lambda: None,
) -> DoctorReport:
    """Check the stores of all shards, given by name, directory and opener, and that each tenant has one home.

    That must be the one in the directory.
    """
    logs = {name: _examine_shard(path, progress, open_store) for name, path, open_store in shards}
    places = FindingLog()
    found = _find_placement_errors(logs, read_directory, places)
    if found.any():  # unless one has moved meanwhile
        again = {name: _load(path, open_store) for name, path, open_store in shards}
        found = found.also_in(_find_placement_errors(again, read_directory, FindingLog()))
    found.report(places)
    return joined({name: log.report() for name, log in logs.items()}, places)


class _PlacementErrors(msgspec.Struct, frozen=True):
    """Tenants that are not in one place, as the directory says."""

    twice: set[str]
    homeless: set[str]
    misplaced: set[str]

    def any(self) -> bool:
        return bool(self.twice or self.homeless or self.misplaced)

    def also_in(self, other: Self) -> Self:
        """Return the errors that were found again."""
        return type(self)(self.twice & other.twice, self.homeless & other.homeless, self.misplaced & other.misplaced)

    def report(self, log: FindingLog) -> None:
        for text, tenants in (
            ("Two shards have a tenant with this name; only one is served.", self.twice),
            ("Shards have parts of this tenant, but none is its home.", self.homeless),
            ("The directory does not name the shard that has the tenant, so it is not served.", self.misplaced),
        ):
            for tenant in sorted(tenants):
                log.found("catalog", text, tenant=tenant)


def _find_placement_errors(
    logs: Mapping[str, FindingLog], read_directory: ReadDirectory, places: FindingLog
) -> _PlacementErrors:
    directory: Mapping[str, TenantPlacement] | None = None
    with _damage_noted(places, "the tenant directory cannot be read"):
        directory = read_directory()
    return _PlacementErrors(
        _found_twice(logs.values()),
        _homeless(logs.values()),
        _misplaced(logs, directory) if directory is not None else set(),
    )


def _misplaced(logs: Mapping[str, FindingLog], directory: Mapping[str, TenantPlacement]) -> set[str]:
    """Return the tenants that the directory misses, or places on other shards. Those that move are on their way."""
    misplaced: set[str] = set()
    for shard, log in logs.items():
        for name in log.tenants - {DEFAULT_TENANT, *PROBE_TENANTS}:
            row = directory.get(name)
            if row is None or (row.shard != int(shard) and row.moving_to is None):
                misplaced.add(name)
    return misplaced


def _found_twice(shards: Iterable[FindingLog]) -> set[str]:
    names = Counter(name for log in shards for name in log.tenants - {DEFAULT_TENANT, *PROBE_TENANTS})
    return {name for name, count in names.items() if count > 1}


def _homeless(shards: Iterable[FindingLog]) -> set[str]:
    logs = list(shards)
    return {name for log in logs for name in log.parts} - {name for log in logs for name in log.tenants}


def _load(data_dir: Path, open_store: StoreOpener) -> FindingLog:
    log = FindingLog()
    with _damage_noted(log, "the catalog cannot be read"), closing(open_store(data_dir)) as store:
        load_queues(store, log)
    return log


def _examine_shard(data_dir: Path, progress: Callable[[str, int], None] | None, open_store: StoreOpener) -> FindingLog:
    log = FindingLog(progress)
    try:
        store = open_store(data_dir)
    except StoreDamaged as error:
        log.found("damaged", error.message)
        return log
    with closing(store):
        _examine(store, log)
    return log


def _examine(store: StoreReader, log: FindingLog) -> None:
    queues: dict[bytes, KnownQueue] = {}
    with _damage_noted(log, "the catalog cannot be read"):
        queues = load_queues(store, log)
        find_orphans(store, queues, log)
        check_redrives(store, queues, log)
    data_keys: dict[int, set[int]] = {}
    with _damage_noted(log, "the data keys cannot be read"):
        data_keys = load_data_keys(store, log)
    now = 0
    with _damage_noted(log, "the newest journal record cannot be read"):
        now = last_time_ms(store)
    for queue in queues.values():
        try:
            with _damage_noted(
                log, "the queue's rows cannot be read to their end", tenant=queue.tenant, queue=queue.name
            ):
                QueueCheck(store, queue, log, now, data_keys).run()
        except TooLargeToCopy as error:
            log.unchecked.append(f"{queue.tenant}/{queue.name}: {error}")
    with _damage_noted(log, "the journal cannot be read to its end"):
        examine_journal(store, log)


@contextmanager
def _damage_noted(log: FindingLog, what: str, *, tenant: str = "", queue: str = "") -> Iterator[None]:
    """Turn an error of damaged bytes inside the block into a finding, so that the check continues elsewhere."""
    try:
        yield
    except (StoreFailed, msgspec.MsgspecError, struct.error, UnicodeDecodeError) as error:
        log.found("damaged", f"{what}: {error}", tenant=tenant, queue=queue)
