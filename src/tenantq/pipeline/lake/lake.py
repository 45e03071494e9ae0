"""The lake: one directory of Parquet files per table, changed by atomic commits.

A run stages new partitions in ``_staging``, syncs them, records in ``_commit.json`` what it will move where, and moves it.
A run that is killed before that record leaves nothing behind. If it is killed later, the next run completes the commit.
A partition whose rows did not change keeps its files.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.pipeline.lake.partition_files import (
    PIECE,
    column_chunks,
    count_rows,
    name_files,
    nullable_columns,
    partition_names,
    same_rows,
    with_pieces,
)
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.tables import TABLES, LakeTable
from tenantq.runtime.durable_files import sync, sync_all, tree, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession


_STAGING: Final = "_staging"
_INCOMING: Final = "_incoming"
_COMMIT: Final = "_commit.json"
_LOCK: Final = "_lock"
_STATE: Final = "_state"
_STATE_FILE: Final = "state.json"
_EMPTY: Final = "empty.parquet"
"""The only file of a partitioned table that has no rows: it has the table's columns, so every reader finds a table."""
ROW_GROUP_BYTES: Final = 16_000_000
"""Rows are sorted by tenant, so a query for one tenant reads only the row groups whose statistics include it."""


class PartitionMove(msgspec.Struct, frozen=True):
    """A staged path that replaces another. Without a source, the target is removed."""

    source: str
    target: str


class Lake:
    """The tables at a path. Only one process changes them at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._staged: dict[str, dict[str, bool]] = {}  # by table: partition directory -> whether it has rows
        self._staging = ""  # unique per commit, because Spark caches what it read by path

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Lock the lake against other writers, and complete or discard what a killed run left.

        Raise Conflict if another process holds the lock; with ``wait``, wait for it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream = (self.path / _LOCK).open("w")
        except FileExistsError as error:
            raise Invalid(f"lake {self.path}: is a file; give a directory") from error
        except OSError as error:
            raise Invalid(f"lake {self.path}: cannot be written: {error.strerror}") from error
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                raise Conflict(f"lake {self.path}: another run is changing it; wait for its end") from error
            self.recover()
            yield

    def settle(self) -> None:
        """Complete the commit of a killed run before reading. Raise NotFound, Invalid or Conflict."""
        if self.path.exists() and not self.path.is_dir():
            raise Invalid(f"lake {self.path}: is a file; give a directory")
        try:
            there = next(self.path.iterdir(), None) is not None
            pending = (self.path / _COMMIT).exists()
        except FileNotFoundError:
            there = pending = False
        except OSError as error:
            raise Invalid(f"lake {self.path}: cannot be read: {error.strerror}") from error
        if not there:
            raise NotFound(f"lake {self.path}: there is nothing; run tenantq pipeline run first")
        if pending:
            with self.locked():
                pass

    def recover(self) -> None:
        """Complete a recorded commit; discard what was only staged."""
        if (self.path / _COMMIT).exists():
            self._finish()
        shutil.rmtree(self.path / _INCOMING, ignore_errors=True)
        self._forget_staged()

    def incoming(self) -> Path:
        """Return an empty directory for downloads. The next lock removes it."""
        place = self.path / _INCOMING
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def _forget_staged(self) -> None:
        shutil.rmtree(self.path / _STAGING, ignore_errors=True)
        self._staged.clear()
        self._staging = ""

    # ---- state ----

    def state(self) -> LakeState:
        """Return the lake's state; raise Invalid if it cannot be read."""
        file = self.path / _STATE / _STATE_FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=LakeState)
        except FileNotFoundError:
            return LakeState()
        except (msgspec.DecodeError, OSError) as error:
            raise Invalid(f"{file}: cannot be read: {error}; restore it from a backup of the lake") from error

    def stage_state(self, state: LakeState) -> None:
        """Replace the state with the next commit."""
        place = self._place(_STATE)
        place.mkdir(parents=True, exist_ok=True)
        (place / _STATE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(state, order="sorted")) + b"\n")
        self._staged[_STATE] = {".": True}

    # ---- reading ----

    def has(self, table: str) -> bool:
        """Tell whether a run has created the table, with or without rows."""
        return any((self.path / table).rglob("*.parquet"))

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """Return a table as committed; empty if no run created it."""
        return self.view(spark, table, staged=False)

    def need(self, spark: SparkSession, table: str) -> DataFrame:
        """Return a table as committed; raise NotFound if no run created it."""
        if not self.has(table):
            raise NotFound(f"lake {self.path}: there is no table {table} yet; run tenantq pipeline run first")
        return self.read(spark, table)

    def partitions(self, table: str, *, staged: bool = True) -> set[str]:
        """Return the partition directories of a table: as committed, with what is ``staged`` applied."""
        found = partition_names(self.path / table, TABLES[table])
        if staged:
            for name, filled in self._staged.get(table, {}).items():
                (found.add if filled else found.discard)(name)
        return found

    def view(
        self, spark: SparkSession, table: str, wanted: Callable[[str], bool] = lambda _: True, *, staged: bool = True
    ) -> DataFrame:
        """Return a table as the next commit will leave it; only partitions whose directory name is ``wanted``."""
        known = TABLES[table]
        found: DataFrame | None = None
        for root, names in self._roots(table, staged=staged):
            paths = [str(root / name) for name in sorted(names) if wanted(name)]
            if paths:
                part = spark.read.schema(known.columns).option("basePath", str(root)).parquet(*paths)
                part = part.select(*known.columns.names)
                found = part if found is None else found.unionByName(part)
        return found if found is not None else spark.createDataFrame([], known.columns)

    def rows(self, table: str, *, staged: bool = True) -> list[dict[str, Any]]:
        """Return the rows of a small table without partitions, read without Spark."""
        paths = [root / name for root, names in self._roots(table, staged=staged) for name in names]
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    def _roots(self, table: str, *, staged: bool) -> list[tuple[Path, set[str]]]:
        """Return the directories that hold a table's partitions, each with the names of those that count."""
        changed = self._staged.get(table, {}) if staged else {}
        return [
            (self.path / table, self.partitions(table, staged=False) - changed.keys()),
            (self.path / self._staging / table, {name for name, filled in changed.items() if filled} - {_EMPTY}),
        ]

    def newest_ms(self, table: str, column: str) -> int:
        """Return the highest time in the newest partition of a table, from the statistics in its files; 0 if it has none."""
        places = [(name, root / name) for root, names in self._roots(table, staged=True) for name in names]
        if not places:
            return 0
        groups = [group for file in max(places)[1].glob("*.parquet") for group in column_chunks(file, column)]
        newest: datetime = max(group.statistics.max for group in groups)
        return round(newest.timestamp() * 1_000)

    # ---- changing ----

    def stage(
        self,
        rows: DataFrame,
        table: str,
        covers: Callable[[str], bool] = lambda _: True,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Write rows that replace every partition that ``covers`` accepts. Partitions that get no rows are removed.

        A partition is one file. Partitions of a split table may be several (see ``with_pieces``), by their ``sizes``, which
        are counted if not given. Rows that already have a piece must be partitioned and sorted as the table is.
        """
        known = TABLES[table]
        place = self._place(table)
        keys = known.partitions
        if known.split is not None:
            keys = (*keys, PIECE)
            if PIECE not in rows.columns:
                rows = with_pieces(rows, known, count_rows(rows, known) if sizes is None else sizes).repartition(*keys)
        elif keys:
            rows = rows.repartition(*keys)
        else:
            rows = rows.coalesce(1)
        sorted_rows = rows.sortWithinPartitions(*keys, *known.order)
        writer = nullable_columns(sorted_rows, known.columns, keys).write.mode("overwrite")
        writer = writer.option("parquet.block.size", ROW_GROUP_BYTES)
        writer = writer.option("parquet.enable.dictionary#message_id", value=False)  # ids hardly repeat
        (writer.partitionBy(*keys) if keys else writer).parquet(str(place))
        staged = dict.fromkeys(name_files(place, known), True)
        for name in self.partitions(table, staged=False):
            if covers(name):
                staged.setdefault(name, False)
        self._staged[table] = staged

    def stage_missing(self) -> None:
        """Create every table that no run has created yet, without rows."""
        for table in TABLES:
            if not self.has(table):
                self._staged.setdefault(table, {})

    def sizes(self, table: str, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of committed partitions, by which they are split (see Split), from the files' footers."""
        split = TABLES[table].split
        assert split is not None, table
        return {
            name: sum(
                group.num_values - group.statistics.null_count
                for file in (self.path / table / name).glob("*.parquet")
                for group in column_chunks(file, split.counted)
            )
            for name in names
        }

    def stage_removal(self, table: str, names: set[str]) -> None:
        """Remove partitions with the next commit."""
        self._staged.setdefault(table, {}).update(dict.fromkeys(names, False))

    def staged_path(self, partition: str) -> Path:
        """Return the path of a staged partition (table/name). It does not exist if the commit will remove it."""
        return self.path / self._staging / os.path.normpath(partition)

    def scratch(self, name: str) -> Path:
        """Return an empty directory that lasts until the commit."""
        place = self._place(f"_{name}")
        place.mkdir(parents=True)
        return place

    def _place(self, table: str) -> Path:
        """Return the directory in which a table is staged."""
        if not self._staging:
            (self.path / _STAGING).mkdir(exist_ok=True)
            self._staging = f"{_STAGING}/{Path(tempfile.mkdtemp(dir=self.path / _STAGING)).name}"
        return self.path / self._staging / table

    def commit(self) -> list[str]:
        """Apply everything staged at once; return the partitions of tables that changed."""
        for table in self._staged.keys() & TABLES.keys():
            self._stage_empty_file(TABLES[table])
        moves = []
        for table, staged in sorted(self._staged.items()):
            for name, filled in sorted(staged.items()):
                target = os.path.normpath(f"{table}/{name}")
                source = os.path.normpath(f"{self._staging}/{table}/{name}")
                if not filled:
                    moves.append(PartitionMove("", target))
                elif not same_rows(self.path / source, self.path / target):
                    moves.append(PartitionMove(source, target))
        if moves:
            # Staged files must be on disk before the record of the commit, and the record before the first move.
            sync_all(path for move in moves if move.source for path in tree(self.path / move.source))
            sync_all({(self.path / move.source).parent for move in moves if move.source})
            write_durably(self.path / _COMMIT, msgspec.json.encode(moves))
            self._finish()
        self._forget_staged()
        return [move.target for move in moves if move.target != _STATE and not move.target.endswith(_EMPTY)]

    def _stage_empty_file(self, table: LakeTable) -> None:
        """Stage an empty file if the commit leaves the table without rows, and its removal if the table gets rows."""
        there = (self.path / table.name / _EMPTY).exists()
        if not self.partitions(table.name):
            place = self._place(table.name)
            place.mkdir(parents=True, exist_ok=True)
            pq.write_table(to_arrow_schema(table.columns, timezone="UTC").empty_table(), place / _EMPTY)
            self._staged[table.name][_EMPTY] = True
        elif there and table.partitions:
            self._staged[table.name][_EMPTY] = False

    def _finish(self) -> None:
        """Apply the recorded commit. Moves that were made before a kill are skipped."""
        touched: set[Path] = set()
        for move in msgspec.json.decode((self.path / _COMMIT).read_bytes(), type=list[PartitionMove]):
            source, target = self.path / move.source, self.path / move.target
            if move.source and not source.exists():
                continue  # moved before the run was killed
            if target.is_file():
                target.unlink()
            shutil.rmtree(target, ignore_errors=True)
            if move.source:
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
            touched.update(path for path in target.parents if path.is_relative_to(self.path) and path.exists())
        sync_all(touched)  # new names must be on disk before the record that would make them again is removed
        (self.path / _COMMIT).unlink()
        sync(self.path)
