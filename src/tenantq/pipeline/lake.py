"""The lake: one directory per table, Parquet, the same rows in the same bytes, and changes that happen wholly or not at all.

A run stages new partitions in ``_staging``, syncs them, writes down what it is going to put where (``_commit.json``), and
moves them. A run that is killed before that line leaves nothing; one that is killed after it is finished by the next.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import functions as f

from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.pipeline.lake_state import LakeState
from tenantq.pipeline.parquet_footer import filled_rows, settle
from tenantq.pipeline.tables import TABLES
from tenantq.runtime.durable_files import sync, sync_all, tree, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tenantq.pipeline.tables import Table

_STAGING: Final = "_staging"
_INCOMING: Final = "_incoming"
_COMMIT: Final = "_commit.json"
_LOCK: Final = "_lock"
_STATE: Final = "_state"
_STATE_FILE: Final = "state.json"
_NO_TEXT: Final = "\0"  # no date, name of a file, reason or shard is that
PIECE: Final = "piece"
"""The column that tells in which file of its partition a row belongs."""
ROW_GROUP_BYTES: Final = 16_000_000
"""Rows are sorted by tenant: whoever asks for one reads only the row groups that have it, by their statistics."""


class Move(msgspec.Struct, frozen=True):
    """A partition's directory that takes the place of another; without a source, that one goes."""

    source: str
    target: str


class Lake:
    """The tables at a path. Only one process changes them at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._staged: dict[str, dict[str, bool]] = {}  # by table: partition directory -> whether it has rows
        self._staging = ""  # of this run; another has another name, since Spark remembers what it read by path

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Keep others from changing the lake, and finish or forget what a killed run left.

        Raise Conflict where another is changing it; with ``wait``, wait for its end.
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
        """Finish what a killed run had begun to put in place, before somebody reads. Raise NotFound, Invalid or Conflict."""
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
        """Finish what was written down to be done; drop what was not."""
        if (self.path / _COMMIT).exists():
            self._finish()
        shutil.rmtree(self.path / _INCOMING, ignore_errors=True)
        self._forget_staged()

    def incoming(self) -> Path:
        """Return an empty directory for what is fetched, until the next one takes the lock."""
        place = self.path / _INCOMING
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def _forget_staged(self) -> None:
        shutil.rmtree(self.path / _STAGING, ignore_errors=True)
        self._staged.clear()
        self._staging = ""

    # ---- what is remembered ----

    def state(self) -> LakeState:
        """Return what the lake remembers; Invalid where that cannot be read."""
        file = self.path / _STATE / _STATE_FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=LakeState)
        except FileNotFoundError:
            return LakeState()
        except (msgspec.DecodeError, OSError) as error:
            raise Invalid(f"{file}: cannot be read: {error}; restore it from a backup of the lake") from error

    def stage_state(self, state: LakeState) -> None:
        """Remember this from the commit on."""
        place = self._place(_STATE)
        place.mkdir(parents=True, exist_ok=True)
        (place / _STATE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(state, order="sorted")) + b"\n")
        self._staged[_STATE] = {".": True}

    # ---- reading ----

    def has(self, table: str) -> bool:
        """Tell whether there is anything of a table."""
        return any((self.path / table).rglob("*.parquet"))

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """Return a table as it stands, without what is staged; empty where it was never written."""
        known = TABLES[table]
        if not self.has(table):
            return spark.createDataFrame([], known.columns)
        return spark.read.schema(known.columns).parquet(str(self.path / table)).select(*known.columns.names)

    def need(self, spark: SparkSession, table: str) -> DataFrame:
        """Return a table, or raise NotFound where no run has made it."""
        if not self.has(table):
            raise NotFound(f"lake {self.path}: there is no table {table} yet; run tenantq pipeline run first")
        return self.read(spark, table)

    def partitions(self, table: str, *, staged: bool = True) -> set[str]:
        """Return the partition directories of a table, as they will be after the commit."""
        found = _leaves(self.path / table)
        if staged:
            for name, filled in self._staged.get(table, {}).items():
                (found.add if filled else found.discard)(name)
        return found

    def view(self, spark: SparkSession, table: str, wanted: Callable[[str], bool] = lambda _: True) -> DataFrame:
        """Return a table as it will be after the commit; only partitions whose directory name is ``wanted``."""
        known, staged = TABLES[table], self._staged.get(table, {})
        found: DataFrame | None = None
        for root, names in (
            (self.path / table, [one for one in _leaves(self.path / table) if one not in staged]),
            (self.path / self._staging / table, [name for name, filled in staged.items() if filled]),
        ):
            paths = [str(root / name) for name in sorted(names) if wanted(name)]
            if paths:
                part = spark.read.schema(known.columns).option("basePath", str(root)).parquet(*paths)
                part = part.select(*known.columns.names)
                found = part if found is None else found.unionByName(part)
        return found if found is not None else spark.createDataFrame([], known.columns)

    # ---- changing ----

    def stage(
        self,
        rows: DataFrame,
        table: str,
        covers: Callable[[str], bool] = lambda _: True,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Write what takes the place of every partition that ``covers`` says yes to; one without rows will be gone.

        A partition is one file; of a table that is split it may be several (``dealt``), by the ``sizes`` of partitions, which are
        counted where they are not given. Rows that come with their piece must lie and stand as they are to be written.
        """
        known = TABLES[table]
        place = self._place(table)
        keys = known.partitions
        if known.split is not None:
            keys = (*keys, PIECE)
            if PIECE not in rows.columns:
                rows = dealt(rows, known, _sizes(rows, known) if sizes is None else sizes).repartition(*keys)
        elif keys:
            rows = rows.repartition(*keys)
        else:
            rows = rows.coalesce(1)
        sorted_rows = rows.sortWithinPartitions(*keys, *known.order)
        writer = _nullable(sorted_rows, known.columns, keys).write.mode("overwrite")
        writer = writer.option("parquet.block.size", ROW_GROUP_BYTES)
        writer = writer.option("parquet.enable.dictionary#message_id", value=False)  # no two are alike, or few
        (writer.partitionBy(*keys) if keys else writer).parquet(str(place))
        staged = {name: True for name in _name_files(place) if _has_rows(place / name, known.partitions)}
        for name in _leaves(self.path / table):
            if covers(name):
                staged.setdefault(name, False)
        self._staged[table] = staged

    def sizes(self, table: str, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of partitions that are there, by which they are split (see Split)."""
        split = TABLES[table].split
        assert split is not None, table
        found = {}
        for name in names:
            files = (self.path / table / name).glob("*.parquet")
            found[name] = sum(filled_rows(file, split.counted) for file in files)
        return found

    def stage_removal(self, table: str, names: set[str]) -> None:
        """Take partitions away with the commit."""
        self._staged.setdefault(table, {}).update(dict.fromkeys(names, False))

    def staged_path(self, partition: str) -> Path:
        """Return where a partition (table/name) is staged; there is nothing where it will be gone."""
        return self.path / self._staging / os.path.normpath(partition)

    def scratch(self, name: str) -> Path:
        """Return an empty directory for the time until the commit."""
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
        """Put everything staged in its place at once; return the tables' partitions that changed."""
        moves = []
        for table, staged in sorted(self._staged.items()):
            for name, filled in sorted(staged.items()):
                target = os.path.normpath(f"{table}/{name}")
                source = os.path.normpath(f"{self._staging}/{table}/{name}")
                if not filled:
                    moves.append(Move("", target))
                elif not _same(self.path / source, self.path / target):
                    moves.append(Move(source, target))
        if moves:
            # What is moved must be on the disk before the line that says so is, and the line before the first move.
            sync_all(path for move in moves if move.source for path in tree(self.path / move.source))
            sync_all({(self.path / move.source).parent for move in moves if move.source})
            write_durably(self.path / _COMMIT, msgspec.json.encode(moves))
            self._finish()
        self._forget_staged()
        return [move.target for move in moves if move.target != _STATE]

    def _finish(self) -> None:
        """Do what the commit says; what is done already is done again without harm."""
        touched: set[Path] = set()
        for move in msgspec.json.decode((self.path / _COMMIT).read_bytes(), type=list[Move]):
            source, target = self.path / move.source, self.path / move.target
            if move.source and not source.exists():
                continue  # moved before the run was killed
            shutil.rmtree(target, ignore_errors=True)
            if move.source:
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
            touched.update(path for path in target.parents if path.is_relative_to(self.path) and path.exists())
        sync_all(touched)  # the new names are there before the line that would make them again goes
        (self.path / _COMMIT).unlink()
        sync(self.path)


def dealt(rows: DataFrame, table: Table, sizes: Mapping[str, int]) -> DataFrame:
    """Add the column ``piece`` to rows of a table that is split, or to what will be such rows."""
    split = table.split
    assert split is not None, table.name
    pieces = [
        (*[part.partition("=")[2] for part in name.split("/")], 1 + (size - 1) // split.rows)
        for name, size in sorted(sizes.items())
        if size > split.rows
    ]
    count = f.lit(1)
    if pieces:
        columns = ", ".join([*[f"{name} string" for name in table.partitions], "_pieces int"])
        rows = rows.join(
            f.broadcast(rows.sparkSession.createDataFrame(pieces, columns)), list(table.partitions), "left"
        )
        count = f.coalesce(f.col("_pieces"), count)
    return rows.withColumn(PIECE, f.pmod(f.xxhash64(*split.by), count).cast("int")).drop("_pieces")


def _sizes(rows: DataFrame, table: Table) -> dict[str, int]:
    """Count the rows of partitions that are about to be."""
    assert table.split is not None, table.name
    counted = rows.groupBy(*table.partitions).agg(f.count(table.split.counted)).collect()
    return {
        "/".join(f"{name}={value}" for name, value in zip(table.partitions, row[:-1], strict=True)): row[-1]
        for row in counted
    }


def _nullable(rows: DataFrame, columns: StructType, keys: tuple[str, ...]) -> DataFrame:
    """Return the same rows, in the same order, in exactly the columns of a table, each of which may be null; ``keys`` last.

    Spark writes whether a column can be null into the file. That depends on how the rows were computed, and bytes must not.
    """
    wanted = [column for column in columns if column.name not in keys]
    never = f.col([*keys, wanted[0].name][0]).eqNullSafe(f.lit(_NO_TEXT))
    shaped = [
        f.when(never, f.lit(None).cast(column.dataType)).otherwise(f.col(column.name)).alias(column.name)
        for column in wanted
    ]
    return rows.select(*shaped, *keys)


def _leaves(root: Path) -> set[str]:
    """Return the directories below ``root`` that hold Parquet files, relative; "." is the root itself."""
    return {file.parent.relative_to(root).as_posix() for file in root.rglob("*.parquet")}


def _name_files(root: Path) -> set[str]:
    """Take away from files and names what tells which task of which process wrote them; return the partitions."""
    for stray in [*root.rglob("*.crc"), *root.rglob("_SUCCESS")]:
        stray.unlink()
    for piece in list(root.rglob(f"{PIECE}=*")):
        (file,) = piece.iterdir()  # or else rows did not lie as they were said to
        file.rename(piece.parent / f"{int(piece.name.partition('=')[2]):05d}.parquet")
        piece.rmdir()
    leaves = _leaves(root)
    for leaf in leaves:
        for number, file in enumerate(sorted((root / leaf).glob("*.parquet"))):
            settle(file)
            file.rename(file.with_name(f"{number:05d}.parquet"))
    return leaves


def _has_rows(directory: Path, partitions: tuple[str, ...]) -> bool:
    """Tell whether a partition is to be kept: of a table without partitions also the empty file is."""
    return not partitions or any(directory.glob("*.parquet"))


def _same(one: Path, other: Path) -> bool:
    names = sorted(file.name for file in one.iterdir())
    if not other.is_dir() or names != sorted(file.name for file in other.iterdir()):
        return False
    return all(filecmp.cmp(one / name, other / name, shallow=False) for name in names)
