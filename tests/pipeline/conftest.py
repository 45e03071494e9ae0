"""Fixtures: one Spark session for all tests, a journal directory and a lake."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import local
from types import MappingProxyType
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.signing import SigningKey
from tenantq.pipeline.arrow_shuffle import ArrowShuffle, FileRows
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.pieces import Pieces
from tenantq.pipeline.reduction import Reduce
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions, RunReport
from tenantq.pipeline.session import open_session
from tests.pipeline.journals import DAY, MINUTE, START, JournalWriter, write_history
from tests.pipeline.platform_journal import PRICES, write_days

RunPipeline = Callable[..., RunReport]

NOW = START + 365 * DAY
FAST_STARTUP = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""Java options for many short jobs: code is compiled once and not optimized further."""
SMALL_DATA = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # for a dozen rows, compiling takes longer than running uncompiled
    "spark.sql.ui.explainMode": "simple",  # nothing reads the plan text
}
"""Settings that make small data fast. The tables do not depend on them: in test_cluster.py, Spark compiles."""


class ProcessedJournal(NamedTuple):
    """A journal of two days and the lake of one run over it. Tests that change the lake take a copy."""

    journal: DirectoryTarget
    writer: JournalWriter
    lake: Lake
    report: RunReport

    def copy(self, path: Path) -> Lake:
        """Return a copy of the lake with the same tables."""
        shutil.copytree(self.lake.path, path)
        return Lake(path)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return one session on two cores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = open_session(
            "local[2,2]",  # a failed task is retried once, like on a cluster
            {
                "spark.sql.shuffle.partitions": "2",
                "spark.default.parallelism": "2",
                "spark.driver.memory": "1g",
                "spark.driver.defaultJavaOptions": FAST_STARTUP,
                **SMALL_DATA,
            },
        )
    yield session
    session.stop()


class WatchedLake(Lake):
    """A lake that records which tables each staged table was computed from."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read_from: dict[str, set[str]] = {}
        self._read = local()  # a thread computes one table at a time

    def file_rows(self, spark: SparkSession, table: str, wanted: Callable[[str], bool], reader: str) -> FileRows:
        """Record that the files of a table are read."""
        self._read.tables = {*getattr(self._read, "tables", ()), table}
        return super().file_rows(spark, table, wanted, reader)

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
        """Record the files that the rows come from, then stage them."""
        if isinstance(rows, ArrowShuffle):
            sources = [one.rows for one in rows.inputs]
            files = [file for one in sources for file in (one.files if isinstance(one, FileRows) else one.inputFiles())]
        else:
            files = rows.inputFiles()
        found = {re.sub(r"^.*/lake/(_staging/[^/]*/)?", "", file).split("/")[0] for file in files}
        found = {"journal" if name in {"file:", ""} else name for name in found} | getattr(self._read, "tables", set())
        self.read_from[table] = found - {table}
        self._read.tables = set()
        super().stage(rows, table, covers, pieces, few=few, reductions=reductions)


@pytest.fixture(scope="session")
def busy_lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> WatchedLake:
    """Return the lake of a few days of platform activity, including hostile names. Tests only read it."""
    root = tmp_path_factory.mktemp("busy")
    target = DirectoryTarget(root / "journal")
    target.path.mkdir()
    write_days(target, days=3, rounds=1)
    lake = WatchedLake(root / "lake")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(spark.range(1)), "persist", lambda rows, *_: rows
        )  # a plan does not show the sources of persisted rows
        run(spark, str(target.path), lake, RunOptions(now_ms=NOW, prices=PRICES))
    return lake


@pytest.fixture(scope="session")
def processed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ProcessedJournal:
    """Run the pipeline once for all tests that read its output."""
    root = tmp_path_factory.mktemp("processed")
    (root / "journal").mkdir()
    journal, lake = DirectoryTarget(root / "journal"), Lake(root / "lake")
    writer = write_history(journal, seed=3, rounds=30, every_ms=97 * MINUTE)
    return ProcessedJournal(journal, writer, lake, run(spark, str(journal.path), lake, RunOptions(now_ms=NOW)))


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    """Return the signing key."""
    return SigningKey.load_or_make(tmp_path)


@pytest.fixture
def journal(tmp_path: Path) -> DirectoryTarget:
    """Return the directory of the segments."""
    (tmp_path / "journal").mkdir()
    return DirectoryTarget(tmp_path / "journal")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return an empty lake."""
    return Lake(tmp_path / "lake")


@pytest.fixture
def pipeline(spark: SparkSession, journal: DirectoryTarget, lake: Lake) -> RunPipeline:
    """Return a function that runs the pipeline over the journal."""

    def once(**options: object) -> RunReport:
        into = options.pop("lake", lake)
        return run(spark, str(journal.path), into, RunOptions(**{"now_ms": NOW, **options}))  # type: ignore[arg-type]

    return once


_TOKEN = re.compile(r"-[^-/]*(?=\.parquet$)")


def digests(lake: Lake) -> dict[str, str]:
    """Return a digest of the rows of every table file, by its name without the unique part."""
    files = [file for file in lake.path.glob("[a-z]*/**/*.parquet") if "_delta_log" not in file.parts]
    return {_TOKEN.sub("", file.relative_to(lake.path).as_posix()): rows_digest(file) for file in sorted(files)}


def rows_digest(file: Path) -> str:
    """Return a digest of a file's rows in order. Its bytes also depend on the process that wrote it."""
    return hashlib.sha256(repr(pq.read_table(io.BytesIO(file.read_bytes())).to_pylist()).encode()).hexdigest()
