"""The lake: tables that runs change by atomic commits.

A commit moves staged files into the tables, commits each table with deltalake, and records the versions of all tables. It
happens when that record is written (see ``versions.py``): the next writer rolls back what a killed one left beyond it.
A partition whose rows did not change keeps its files.

Files of older versions are deleted at once, unless they belong to a pinned or kept version set, or have rows of a tenant
under a legal hold. Plain Parquet readers therefore find each row once.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Final

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.pipeline.arrow_shuffle import ArrowShuffle, FileRows
from tenantq.pipeline.lake.data_files import (
    count_rows,
    name_files,
    nullable_columns,
    reduced_files,
    same_rows,
    split_rows,
    write_piece,
    write_rows,
)
from tenantq.pipeline.lake.delta_tables import DeltaTables
from tenantq.pipeline.lake.pieces import Pieces
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.lake.versions import VERSIONS, VersionSet, drop_torn_entry
from tenantq.pipeline.reduction import Reduce
from tenantq.pipeline.schemas import local_frame
from tenantq.pipeline.tables import TABLES
from tenantq.runtime.clock import Clock, SystemClock

_STAGING: Final = "_staging"
_INCOMING: Final = "_incoming"
_LOCK: Final = "_lock"
ROW_GROUP_BYTES: Final = 16_000_000
"""Rows are sorted by tenant, so a query for one tenant reads only the row groups whose statistics include it."""
_FEW_BYTES: Final = 2_000_000  # about 100,000 rows


class Lake:
    """The tables at a path or URL, with what is staged for the next commit. Only one process changes them at a time."""

    def __init__(self, where: str | Path, clock: Clock = SystemClock()) -> None:  # noqa: B008  # it has no state
        self.tables = DeltaTables(where, clock)
        self.path, self.name = self.tables.path, self.tables.name
        self._clock = clock
        self._staged: dict[str, dict[str, list[Path]]] = {}  # by table: partition -> its new files, empty: removed
        self._reduced: dict[str, dict[str, dict[Path, Path]]] = {}  # by table and reader: new file -> its reduced rows
        self._state: LakeState | None = None  # to commit
        self._staging = ""  # unique per commit, because Spark caches what it read by path
        self._naming = Lock()  # tables are staged by several threads

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Lock the lake against other writers, and roll back what a killed one left.

        Raise Conflict if another process holds the lock; with ``wait``, wait for it. A lake at a URL has no lock,
        but a claim during a commit: the second of two runs fails when it commits.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream = (self.path / _LOCK).open("w")
        except FileExistsError as error:
            raise Invalid(f"lake {self.name}: must be a directory, but is a file") from error
        except OSError as error:
            raise Invalid(f"lake {self.name}: cannot be written: {error.strerror}") from error
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                raise Conflict(f"lake {self.name}: another run is changing it. Wait until it has ended.") from error
            self._recover()
            yield

    def _recover(self) -> None:
        """Undo what a killed writer left, if it left a staging directory. At a URL, the next commit does so."""
        self.tables.refresh()
        self._state = None
        killed = (self.path / _STAGING).exists()
        if self.tables.is_local and any((self.path / name).exists() for name in ("_state", "_commit.json")):
            raise Invalid(
                f"lake {self.name}: is of a version before Delta Lake. Run the pipeline into a new directory."
            )
        if killed and self.tables.is_local:
            for table in (VERSIONS, *TABLES):
                drop_torn_entry(self.path / table)
            self.tables.roll_back()
        shutil.rmtree(self.path / _INCOMING, ignore_errors=True)
        self._forget_staged()

    def settle(self) -> None:
        """Read the newest version set. Raise NotFound if no run has written the lake, Invalid if it cannot be read."""
        self.tables.refresh()
        if self.path.exists() and not self.path.is_dir():
            raise Invalid(f"lake {self.name}: must be a directory, but is a file")
        if not self.tables.sets:
            raise NotFound(f"lake {self.name}: has no tables; run tenantq pipeline run first")

    def state(self) -> LakeState:
        """Return the lake's state as committed."""
        return self.tables.newest.state

    def stage_state(self, state: LakeState) -> None:
        """Replace the state with the next commit."""
        self._state = state

    # ---- reading ----

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """Return a table as committed; empty if no run created it."""
        return self.view(spark, table, staged=False)

    def need(self, spark: SparkSession, table: str) -> DataFrame:
        """Return a table as committed; raise NotFound if no run created it."""
        if not self.tables.has(table):
            raise NotFound(f"lake {self.name}: has no table {table} yet; run tenantq pipeline run first")
        return self.read(spark, table)

    def partitions(self, table: str, *, staged: bool = True) -> set[str]:
        """Return the partition directories of a table: as committed, with what is ``staged`` applied."""
        found = {file.partition for file in self.tables.files(table)}
        changed = self._staged.get(table, {}) if staged else {}
        return (found - changed.keys()) | {name for name, files in changed.items() if files}

    def files(
        self, table: str, wanted: Callable[[str], bool] = lambda _: True, *, staged: bool = False
    ) -> dict[str, list[Path]]:
        """Return the local files of the partitions that are ``wanted``, copied first if the lake is at a URL."""
        changed = self._staged.get(table, {}) if staged else {}
        found: dict[str, list[Path]] = {}
        for file in self.tables.files(table):
            if file.partition not in changed and wanted(file.partition):
                found.setdefault(file.partition, []).append(self.tables.local_copy(f"{table}/{file.path}"))
        return found | {name: files for name, files in changed.items() if files and wanted(name)}

    def view(
        self, spark: SparkSession, table: str, wanted: Callable[[str], bool] = lambda _: True, *, staged: bool = True
    ) -> DataFrame:
        """Return a table as the next commit will leave it; only partitions whose directory name is ``wanted``."""
        known = TABLES[table]
        paths: dict[Path, list[str]] = {}
        for name, files in self.files(table, wanted, staged=staged).items():
            root = files[0].parents[name.count("/") + 1 if name != "." else 0]
            paths.setdefault(root, []).extend(map(str, files))
        found: DataFrame | None = None
        for root, names in paths.items():
            part = spark.read.schema(known.columns).option("basePath", str(root)).parquet(*names)
            part = part.select(*known.columns.names)
            found = part if found is None else found.unionByName(part)
        return found if found is not None else local_frame(spark, [], known.columns)

    def file_rows(self, spark: SparkSession, table: str, wanted: Callable[[str], bool], reader: str) -> FileRows:
        """Return the same rows as ``view``, in files that tasks read, reduced for a table if it has a reduction."""
        found = self.files(table, wanted, staged=True)
        reduced = self._reduced.get(table, {}).get(reader, {})
        return FileRows(spark, (file for name in sorted(found) for file in found[name]), reduced)

    def has_few_bytes(self, table: str, wanted: Callable[[str], bool] = lambda _: True) -> bool:
        """Return whether the files that ``view`` reads are small enough for one task."""
        files = self.files(table, wanted, staged=True).values()
        return sum(file.stat().st_size for some in files for file in some) <= _FEW_BYTES

    def local_view(self, spark: SparkSession, table: str) -> DataFrame:
        """Return a small table without partitions as ``view`` does, read by this process."""
        return local_frame(spark, self.rows(table), TABLES[table].columns)

    def rows(self, table: str, *, staged: bool = True) -> list[dict[str, Any]]:
        """Return the rows of a small table, read without Spark and without its partition columns."""
        return self.tables.rows(file for files in self.files(table, staged=staged).values() for file in files)

    def newest_ms(self, table: str) -> int:
        """Return the highest ``ts`` in a table, from the statistics of its files; 0 if it has none."""
        changed = self._staged.get(table, {})
        times = [file.newest for file in self.tables.files(table) if file.newest and file.partition not in changed]
        for files in changed.values():
            for file in files:
                meta = pq.read_metadata(file)
                at = meta.schema.names.index("ts")
                times += [meta.row_group(group).column(at).statistics.max for group in range(meta.num_row_groups)]
        return round(max(times).timestamp() * 1_000) if times else 0

    def sizes(self, table: str, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of committed partitions, by which they are split (see Split)."""
        found = dict.fromkeys(names, 0)
        for file in self.tables.files(table):
            if file.partition in found:
                found[file.partition] += file.counted
        return found

    # ---- changing ----

    def stage(
        self,
        rows: DataFrame | ArrowShuffle,
        table: str,
        covers: Callable[[str], bool] = lambda _: True,
        pieces: Pieces | None = None,
        *,
        few: bool = False,
        reductions: Mapping[str, Reduce] = MappingProxyType({}),
    ) -> None:
        """Write rows that replace every partition that ``covers`` accepts. Partitions that get no rows are removed.

        A partition is one file. Spark writes it, or this process if the rows are ``few``. Partitions of a split table may be
        several files: their ``pieces``, which are counted if not given. Rows of a shuffle are in these pieces already.
        ``reductions`` are those of the tables that read a split table.
        """
        known = TABLES[table]
        place = self._place(table)
        if known.split is not None:
            if pieces is None:
                assert isinstance(rows, DataFrame), table
                pieces = Pieces(count_rows(rows, known), known.split.rows)
            given = split_rows(rows, known, pieces) if isinstance(rows, DataFrame) else rows
            columns = to_arrow_schema(known.columns, timezone="UTC")
            reduced = {f"{self._reduced_place(table, name).absolute()}": one for name, one in reductions.items()}
            given.write(
                partial(write_piece, place=str(place.absolute()), pieces=pieces, columns=columns, reductions=reduced)
            )
        else:
            assert isinstance(rows, DataFrame), table
            if few:
                write_rows(rows.toArrow(), place, known)
            else:
                keys = known.partitions
                sorted_rows = (rows.repartition(*keys) if keys else rows.coalesce(1)).sortWithinPartitions(
                    *keys, *known.order
                )
                writer = nullable_columns(sorted_rows, known.columns, keys).write.mode("overwrite")
                writer = writer.option("parquet.block.size", ROW_GROUP_BYTES)
                (writer.partitionBy(*keys) if keys else writer).parquet(str(place))
        removed: dict[str, list[Path]] = {name: [] for name in self.partitions(table, staged=False) if covers(name)}
        written = name_files(place, self._staging.rpartition("/")[2])
        self._staged[table] = {**removed, **({} if known.partitions and set(written) == {"."} else written)}
        self._reduced[table] = {name: reduced_files(self._reduced_place(table, name), written) for name in reductions}

    def stage_missing(self) -> None:
        """Create every table that no run has created yet, without rows."""
        for table in TABLES:
            if not self.tables.has(table):
                self._staged.setdefault(table, {})

    def stage_removal(self, table: str, names: set[str]) -> None:
        """Remove partitions with the next commit."""
        self._staged.setdefault(table, {}).update({name: [] for name in names})

    def incoming(self) -> Path:
        """Return an empty directory for downloads. The next lock removes it."""
        place = self.path / _INCOMING
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def scratch(self, name: str) -> Path:
        """Return an empty directory that lasts until the commit."""
        place = self._place(f"_{name}")
        place.mkdir(parents=True)
        return place

    def _place(self, table: str) -> Path:
        """Return the directory in which a table is staged."""
        with self._naming:
            if not self._staging:
                (self.path / _STAGING).mkdir(exist_ok=True)
                self._staging = f"{_STAGING}/{Path(tempfile.mkdtemp(prefix='', dir=self.path / _STAGING)).name}"
            return self.path / self._staging / table

    def _reduced_place(self, table: str, reader: str) -> Path:
        return self._place(f"_reduced/{table}/{reader}")

    def _forget_staged(self) -> None:
        shutil.rmtree(self.path / _STAGING, ignore_errors=True)
        self._staged.clear()
        self._reduced.clear()
        self._staging = ""

    def commit(self, *, keep: int | None = None, erased: str = "") -> list[str]:
        """Apply everything staged at once; return the partitions of tables that changed.

        Afterwards the files of the newest version set, of pinned ones, and of those that runs keep are left. A run gives
        the number of sets to ``keep``, with its own; without it, those of earlier runs stay. If a tenant was ``erased``,
        only the files of the newest set are left, so older versions of its rows are gone too.
        """
        self._place("")  # says that a commit has begun, until it is complete
        with self.tables.claimed(self._staged):
            changed = self._commit(keep, erased)
        self._state = None
        self._forget_staged()
        return changed

    def _commit(self, keep: int | None, erased: str) -> list[str]:
        sets, before, versions = self.tables.sets, self.tables.newest, dict(self.tables.newest.tables)
        changed: list[str] = []
        now_ms = self._clock.wall_ms()
        for table in sorted(self._staged):
            changes = self._changes(table)
            if changes or not self.tables.has(table):
                versions[table] = self.tables.commit(table, changes, now_ms)
                changed += [os.path.normpath(f"{table}/{name}") for name in changes]
        state = self._state or before.state
        if (versions, state) != (before.tables, before.state):
            after = VersionSet(
                number=before.number + 1, at_ms=now_ms, tables=versions, state=state, claim=before.claim,
                kept=keep is not None and keep > 1,
            )  # fmt: skip
            self.tables.record([*([] if erased else _kept_sets(sets, keep)), after])
        recorded = self.tables.sets
        dropped = {
            table
            for one in sets
            for table, version in one.tables.items()
            if all(other.tables.get(table) != version for other in recorded)
        }
        self.tables.sweep(TABLES if erased else sorted({*self._staged, *dropped}), erased)
        return changed

    def _changes(self, table: str) -> dict[str, list[Path]]:
        """Return the staged partitions of a table whose rows differ from the committed ones."""
        old = self.files(table, self._staged[table].__contains__)
        return {
            name: files
            for name, files in sorted(self._staged[table].items())
            if (files or name in old) and not same_rows(files, old.get(name, []))
        }


def _kept_sets(sets: list[VersionSet], keep: int | None) -> list[VersionSet]:
    """Return the sets that stay when another one is recorded, by a run with ``keep`` or by another command."""
    of_runs = [one.number for one in sets if one.kept]
    if keep is not None:
        of_runs = of_runs or [one.number for one in sets[-1:]]
        of_runs = of_runs[max(len(of_runs) - keep + 1, 0) :]
    return [
        msgspec.structs.replace(one, claim="", kept=one.number in of_runs)
        for one in sets
        if one.pin or one.number in of_runs
    ]
