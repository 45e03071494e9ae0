"""The tables of a lake as Delta Lake keeps them: version sets, files by version, commits, and files of old versions.

A lake at a URL has a local copy of the files that a command reads. So Spark needs no library of the object store.
"""

import io
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import RemoveAction, create_table_with_add_actions
from pyspark.sql.pandas.types import to_arrow_schema

from tenantq.domain.formatting import show_time
from tenantq.errors import Conflict, NotFound, TenantqError, Unavailable
from tenantq.journal.export_target import open_target
from tenantq.journal.target_url import local_path, shown_url
from tenantq.pipeline.lake.data_files import add_action, partition_values
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.lake.versions import (
    AT_ONCE,
    KEEP_FILES,
    KEEP_LOG,
    LOG,
    VERSIONS,
    VersionSet,
    delta_table,
    read_sets,
    storage_options,
    sync_log,
    unneeded_entries,
    write_sets,
)
from tenantq.pipeline.silver.tenant_changes import HOLD_OPS, held_tenants
from tenantq.pipeline.tables import TABLES
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.durable_files import sync, sync_all

_CLAIM_MS: Final = 1_800_000  # longer than any commit takes
_FAILED: Final = "0/failed"
"""The claim after a failed commit: it has ended, and the next one rolls back."""
_EMPTY: Final = "empty.parquet"
"""A file of a table without rows. It has the columns, so that plain Parquet readers find a table too."""


class DataFile(msgspec.Struct, frozen=True):
    """A file of a table, as Delta records it."""

    path: str  # below the table
    size: int
    rows: int
    counted: int  # rows by which its partition is split (see Split)
    newest: datetime | None  # the highest ``ts``

    @property
    def partition(self) -> str:
        """The directory that it is in; "." for tables without partitions."""
        return self.path.rpartition("/")[0] or "."


class DeltaTables:
    """The tables at a path or URL, at the versions of the newest version set."""

    def __init__(self, where: str | Path, clock: Clock = SystemClock()) -> None:  # noqa: B008  # it has no state
        local = local_path(str(where))
        self.is_local = local is not None
        self.name = shown_url(str(where))
        self.uri = str(local.absolute()) if local is not None else str(where).rstrip("/")
        self.path = local if local is not None else Path(tempfile.mkdtemp(prefix="tenantq-lake-"))  # of local files
        if local is None:
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        try:
            self.target = open_target(where)
        except OSError as error:  # a bucket whose region cannot be found
            raise Unavailable(f"lake {self.name}: cannot be reached: {str(error)[:300]}") from error
        self._clock = clock
        self._sets: list[VersionSet] | None = None
        self._files: dict[tuple[str, int], list[DataFile]] = {}

    # ---- version sets ----

    def refresh(self) -> None:
        """Forget what was read, because another process may have changed the lake."""
        self._sets = None
        self._files.clear()

    @property
    def sets(self) -> list[VersionSet]:
        """The recorded version sets, oldest first."""
        if self._sets is None:
            self._sets = read_sets(f"{self.uri}/{VERSIONS}")
        return self._sets

    @property
    def newest(self) -> VersionSet:
        """The newest version set; number 0 if no run has written the lake."""
        return self.sets[-1] if self.sets else VersionSet(number=0, at_ms=0, tables={}, state=LakeState())

    def record(self, sets: list[VersionSet]) -> None:
        """Replace the version sets; raise Conflict if another process did so."""
        write_sets(f"{self.uri}/{VERSIONS}", sets, self.newest)
        if self.is_local:
            sync_log(self.path / VERSIONS)
        self._sets = sets

    def find(self, number: int) -> VersionSet:
        """Return a version set; raise NotFound if it is not kept."""
        found = next((one for one in self.sets if one.number == number), None)
        if found is None:
            raise NotFound(f"lake {self.name}: does not keep version set {number}. List the sets with tenantq pipeline versions.")  # fmt: skip
        return found

    def pin(self, number: int, reason: str) -> VersionSet:
        """Keep the files of a version set until its ``reason`` is set to an empty text. The lake must be locked."""
        with self.claimed():
            found = msgspec.structs.replace(self.find(number), pin=reason)
            self.record([found if one.number == number else one for one in self.sets])
        return self.find(number)

    def is_claimed(self) -> bool:
        """Return whether another process is changing a lake at a URL."""
        self.refresh()
        return self._claimed_until() > self._clock.wall_ms()

    def _claimed_until(self) -> int:
        return int(self.newest.claim.partition("/")[0] or 0)

    @contextmanager
    def claimed(self, tables: Iterable[str] = ()) -> Iterator[None]:
        """Keep other processes from changing a lake at a URL, and roll back what a killed or failed one left there.

        What another tool committed to the ``tables`` that will change, as VACUUM does, is rolled back too.

        Raise Conflict if another process has a claim, or changed the lake since it was read. The claim of a process that
        was killed ends by time. A local lake has a lock instead.
        """
        if self.is_local:
            if any(map(self._is_ahead, tables)):
                self.roll_back()
            yield
            return
        known = self.newest.number
        self.refresh()
        until = self._claimed_until()
        if self.newest.number != known:
            raise Conflict(f"lake {self.name}: another run changed the lake. Run the command again.")
        if until > self._clock.wall_ms():
            raise Conflict(f"lake {self.name}: another run is changing it, at most until {show_time(until)}")
        abandoned = self.newest.claim
        self._claim(f"{self._clock.wall_ms() + _CLAIM_MS}/{uuid.uuid4().hex}")
        try:
            if abandoned or any(map(self._is_ahead, tables)):
                self.roll_back()
            yield
        except BaseException:
            with suppress(TenantqError, DeltaError, OSError):  # the claim then expires
                self._claim(_FAILED)
            raise
        self._claim("")

    def _claim(self, claim: str) -> None:
        newest = self.newest if self.sets else msgspec.structs.replace(self.newest, number=1)
        self.record([*self.sets[:-1], msgspec.structs.replace(newest, claim=claim)])

    def _is_ahead(self, table: str) -> bool:
        """Return whether the log of a table has versions after the newest version set."""
        names = (name.rpartition("/")[2] for name in self.target.names(f"{table}/{LOG}"))
        newest = max((name for name in names if name.endswith(".json")), default="")
        return newest >= f"{self.newest.tables.get(table, -1) + 1:020d}"

    def roll_back(self) -> None:
        """Undo commits to tables that no version set has, and delete their files."""
        restored: dict[str, int] = {}
        for table in TABLES:
            uri, recorded = f"{self.uri}/{table}", self.newest.tables.get(table)
            try:
                latest = delta_table(uri).version()
            except TableNotFoundError:
                latest = -1
            if recorded is None and (self.is_local or latest >= 0):
                for name in self.target.names(table):
                    self.target.delete(name)
            elif recorded is not None and latest > recorded:
                delta_table(uri).restore(recorded, post_commithook_properties=KEEP_LOG)
                restored[table] = latest + 1
        if restored:
            tables = {**self.newest.tables, **restored}
            self.record([*self.sets[:-1], msgspec.structs.replace(self.newest, tables=tables)])
        self.sweep(TABLES)

    # ---- files ----

    def has(self, table: str) -> bool:
        """Return whether a run has created the table, with or without rows."""
        return table in self.newest.tables

    def files(self, table: str, version: int | None = None) -> list[DataFile]:
        """Return the files of a table, in the newest version set or in a given version."""
        if version is None:
            version = self.newest.tables.get(table, -1)
        if version >= 0 and (table, version) not in self._files:
            split = TABLES[table].split
            found = delta_table(f"{self.uri}/{table}", version).get_add_actions(flatten=True)
            self._files[table, version] = [
                DataFile(
                    row["path"], row["size_bytes"], row["num_records"],
                    row["num_records"] - (row.get(f"null_count.{split.counted}") or 0) if split else 0,
                    row.get("max.ts"),
                )
                for row in pa.table(found).sort_by("path").to_pylist()
            ]  # fmt: skip
        return self._files.get((table, version), [])

    def local_copy(self, name: str) -> Path:
        """Return the local path of a file of the lake, copied first if the lake is at a URL."""
        file = self.path / name
        if not self.is_local and not file.exists():
            try:
                data = self.target.read(name)
            except FileNotFoundError as error:  # of an older version set
                raise Conflict(f"lake {self.name}: another run changed the lake. Run the command again.") from error
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")  # tables are read in parallel
            draft.write_bytes(data)
            draft.rename(file)
        return file

    def rows(self, files: Iterable[Path], filters: Any = None) -> list[dict[str, Any]]:
        """Return the rows of files, read without Spark and without partition columns."""
        return [row for file in files for row in pq.read_table(file, filters=filters, partitioning=None).to_pylist()]

    # ---- commits ----

    def commit(self, table: str, changes: Mapping[str, list[Path]], now_ms: int) -> int:
        """Replace partitions of a table by new files, and create it if needed. Return its new version.

        Raise Conflict if another process committed to it since the newest version set.
        """
        known = TABLES[table]
        adds = [add_action(file, name, known) for name, files in changes.items() for file in files]
        self._publish(table, changes)
        removes = [
            RemoveAction(file.path, True, now_ms, file.size, partition_values(file.partition))
            for file in self.files(table)
            if file.partition in changes
        ]
        uri, columns = f"{self.uri}/{table}", Schema.from_arrow(to_arrow_schema(known.columns, timezone="UTC"))
        partitions, version = list(known.partitions), self.newest.tables.get(table, -1)
        try:
            if version < 0:
                create_table_with_add_actions(uri, columns, adds, partition_by=partitions, configuration=KEEP_FILES, commit_properties=AT_ONCE, post_commithook_properties=KEEP_LOG, storage_options=storage_options())  # fmt: skip
            else:
                before = delta_table(uri, version)
                before.create_write_transaction([*adds, *removes], "append", columns, partitions, commit_properties=AT_ONCE, post_commithook_properties=KEEP_LOG)  # fmt: skip
        except DeltaError as error:
            raise Conflict(f"lake {self.name}: another run changed table {table} ({error}). Run the command again.") from error  # fmt: skip
        if self.is_local:
            sync_log(self.path / table, version + 1)
        return version + 1

    def _publish(self, table: str, changes: Mapping[str, list[Path]]) -> None:
        """Move new files into the table, synced before Delta refers to them."""
        if not self.is_local:
            for name, files in changes.items():
                for file in files:
                    self.target.write(os.path.normpath(f"{table}/{name}/{file.name}"), file.read_bytes())
            return
        sync_all(file for files in changes.values() for file in files)
        touched: set[Path] = set()
        for name, files in changes.items():
            place = self.path / table / name
            place.mkdir(parents=True, exist_ok=True)
            for file in files:
                file.rename(place / file.name)
            touched.update(path for path in (place, *place.parents) if path.is_relative_to(self.path))
        sync_all(touched)

    # ---- files of old versions ----

    def sweep(self, tables: Iterable[str], erased: str = "") -> None:
        """Delete files and log entries that no version set needs, and keep an empty file in tables without rows.

        Files with rows of a tenant under a legal hold stay, unless they also have rows of the ``erased`` one.
        """
        held: set[str] | None = None
        for table in filter(self.has, tables):
            for name in self.old_files(table):
                held = self.held_tenants() if held is None else held
                if held and self.has_rows(name, held) and not (erased and self.has_rows(name, {erased})):
                    continue
                self.target.delete(name)
                (self.path / name).unlink(missing_ok=True)  # the local copy, if the lake is at a URL
            if self.files(table):
                self.target.delete(f"{table}/{_EMPTY}")
            else:
                buffer = io.BytesIO()
                pq.write_table(to_arrow_schema(TABLES[table].columns, timezone="UTC").empty_table(), buffer)
                self.target.write(f"{table}/{_EMPTY}", buffer.getvalue())
            self._trim_log(table, self._versions(table))
            if self.is_local:
                _remove_empty_directories(self.path / table)
        if self.sets:
            recorded = delta_table(f"{self.uri}/{VERSIONS}")
            used = {uri.rpartition("/")[2] for uri in recorded.file_uris()}
            for name in _data_files(self.target.names(VERSIONS)):
                if name.rpartition("/")[2] not in used:
                    self.target.delete(name)
            self._trim_log(VERSIONS, {recorded.version()})

    def _trim_log(self, table: str, kept: set[int]) -> None:
        """Delete log entries that the kept versions do not need. The checkpoints that replace them are synced first."""
        unneeded = list(unneeded_entries(self.target.names(f"{table}/{LOG}"), kept))
        if unneeded and self.is_local:
            log = self.path / table / LOG
            sync_all([*log.glob("*checkpoint*"), log])
        for name in unneeded:
            self.target.delete(name)

    def _versions(self, table: str) -> set[int]:
        return {one.tables[table] for one in self.sets if table in one.tables}

    def old_files(self, table: str) -> list[str]:
        """Return the files of a table that no version set has."""
        versions = self._versions(table)
        kept = {f"{table}/{file.path}" for version in versions for file in self.files(table, version)}
        return [name for name in _data_files(self.target.names(table)) if name not in {*kept, f"{table}/{_EMPTY}"}]

    def held_tenants(self) -> set[str]:
        """Return the tenants under a legal hold: while it lasts, none of their rows may be erased or deleted."""
        files = [self.local_copy(f"tenant_changes/{file.path}") for file in self.files("tenant_changes")]
        return held_tenants(self.rows(files, filters=[("op", "in", HOLD_OPS)]))

    def has_rows(self, name: str, tenants: set[str]) -> bool:
        """Return whether a file has rows of one of these tenants."""
        if not TABLES[name.partition("/")[0]].has_tenants:
            return False
        with self.target.open(name) as stream:
            found = pq.read_table(stream, columns=["tenant"], filters=[("tenant", "in", sorted(tenants))])
        return bool(found.num_rows)


def _data_files(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(".parquet") and f"/{LOG}/" not in name]


def _remove_empty_directories(root: Path) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        try:
            Path(directory).rmdir()
        except OSError:
            continue  # it has files
    sync(root)
