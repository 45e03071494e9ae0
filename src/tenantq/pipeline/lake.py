"""The lake: one directory per table, Parquet, the same rows in the same bytes, and changes that happen wholly or not at all.

A run stages new partitions in ``_staging``, then writes down what it is going to put where (``_commit.json``), then moves
them. A run that is killed before that line leaves nothing; one that is killed after it is finished by the next.
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

from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.pipeline.parquet_footer import settle
from tenantq.pipeline.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

_STAGING: Final = "_staging"
_COMMIT: Final = "_commit.json"
_LOCK: Final = "_lock"
ROWS_PER_FILE: Final = 4_000_000


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
    def locked(self) -> Iterator[None]:
        """Keep others from changing the lake, and finish or forget what a killed run left."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream = (self.path / _LOCK).open("w")
        except OSError as error:
            raise Invalid(f"lake {self.path}: {error.strerror}") from error
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Conflict(f"lake {self.path}: another run is changing it; wait for its end") from error
            self.recover()
            yield

    def recover(self) -> None:
        """Finish what was written down to be done; drop what was not."""
        if (self.path / _COMMIT).exists():
            self._finish()
        shutil.rmtree(self.path / _STAGING, ignore_errors=True)
        self._staged.clear()
        self._staging = ""

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

    def stage(self, rows: DataFrame, table: str, covers: Callable[[str], bool] = lambda _: True) -> None:
        """Write what takes the place of every partition that ``covers`` says yes to; one without rows will be gone."""
        known = TABLES[table]
        if not self._staging:
            (self.path / _STAGING).mkdir(exist_ok=True)
            self._staging = f"{_STAGING}/{Path(tempfile.mkdtemp(dir=self.path / _STAGING)).name}"
        place = self.path / self._staging / table
        rows = rows.select(*known.columns.names)
        if known.partitions:
            sorted_rows = rows.repartition(*known.partitions).sortWithinPartitions(*known.partitions, *known.order)
        else:
            sorted_rows = rows.coalesce(1).sortWithinPartitions(*known.order)
        writer = sorted_rows.write.mode("overwrite").option("maxRecordsPerFile", ROWS_PER_FILE)
        (writer.partitionBy(*known.partitions) if known.partitions else writer).parquet(str(place))
        staged = {name: True for name in _name_files(place) if _has_rows(place / name, known.partitions)}
        for name in _leaves(self.path / table):
            if covers(name):
                staged.setdefault(name, False)
        self._staged[table] = staged

    def commit(self) -> list[str]:
        """Put everything staged in its place at once; return the partitions that changed."""
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
            _write_durably(self.path / _COMMIT, msgspec.json.encode(moves))
            self._finish()
        shutil.rmtree(self.path / _STAGING, ignore_errors=True)
        self._staged.clear()
        self._staging = ""
        return [move.target for move in moves]

    def _finish(self) -> None:
        """Do what the commit says; what is done already is done again without harm."""
        for move in msgspec.json.decode((self.path / _COMMIT).read_bytes(), type=list[Move]):
            source, target = self.path / move.source, self.path / move.target
            if move.source and not source.exists():
                continue  # moved before the run was killed
            shutil.rmtree(target, ignore_errors=True)
            if move.source:
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
        (self.path / _COMMIT).unlink()


def _leaves(root: Path) -> set[str]:
    """Return the directories below ``root`` that hold Parquet files, relative; "." is the root itself."""
    return {file.parent.relative_to(root).as_posix() for file in root.rglob("*.parquet")}


def _name_files(root: Path) -> set[str]:
    """Take away from files and names what tells which task of which process wrote them; return the partitions."""
    for stray in [*root.rglob("*.crc"), *root.rglob("_SUCCESS")]:
        stray.unlink()
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


def _write_durably(file: Path, data: bytes) -> None:
    fresh = file.with_name(f".{file.name}.new")
    with fresh.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.rename(file)
