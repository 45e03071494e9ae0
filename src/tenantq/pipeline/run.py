"""One run of the pipeline: computes every table that new segments touch, sources first, and commits them together."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from decimal import Decimal
from functools import cached_property, partial
from graphlib import TopologicalSorter
from threading import Lock
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from tenantq.pipeline.arrow_shuffle import FileRows, few_rows_frame
from tenantq.pipeline.bronze.ingestion import LOCAL_ROWS, NewSegments, overlap
from tenantq.pipeline.bronze.rows import RowRules
from tenantq.pipeline.journal_source import FETCH, JournalFiles, local_journal
from tenantq.pipeline.lake.archive import bring_back, deleted_dates
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.pieces import Pieces
from tenantq.pipeline.reduction import Reduce
from tenantq.pipeline.run_options import RunOptions, RunReport
from tenantq.pipeline.scopes import NEEDED, Selection, Selector
from tenantq.pipeline.session import MEDIUM_ROWS, SMALL_ROWS
from tenantq.pipeline.tables import JOURNAL, TABLES, Input, LakeTable, day_of

START: Final = "start Spark"
VERIFY: Final = "verify segments"
READ: Final = "read segments"
COMMIT: Final = "commit"
STAGES: Final = (FETCH, START, VERIFY, READ, *TABLES, COMMIT)
"""The stages of a run, in order. Tables that are up to date are left out; without new data, Spark is too."""
_AT_ONCE: Final = 4  # tables that are planned and computed side by side; Spark's cores limit the tasks
_CODEGEN: Final = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")

OpenSpark = Callable[[int], SparkSession]
"""Opens a session that suits a run over about this many rows."""


def run(
    spark: SparkSession | OpenSpark,
    journal: str,
    lake: Lake,
    options: RunOptions,
    progress: Callable[[str], None] = lambda _: None,
) -> RunReport:
    """Process what the journal, a directory or a URL, has and the lake has not.

    Raise Invalid for a journal that does not exist or is empty, Unavailable if it cannot be read, Conflict if another run
    is changing the lake.
    """
    with lake.locked(), local_journal(journal, lake, options, progress) as files:
        return process(spark, files, lake, options, progress)


def process(
    spark: SparkSession | OpenSpark,
    files: JournalFiles,
    lake: Lake,
    options: RunOptions,
    progress: Callable[[str], None] = lambda _: None,
) -> RunReport:
    """Compute all tables from these segments and commit them. The lake must be locked."""
    open_spark = spark if not isinstance(spark, SparkSession) else lambda _: spark
    step = _Run(open_spark, lake, options, progress)
    try:
        step.ingest(files)
        step.compute()
        return step.commit()
    finally:
        step.close()


class _Run:
    """The state of one run."""

    def __init__(self, spark: OpenSpark, lake: Lake, options: RunOptions, progress: Callable[[str], None]) -> None:
        self._open_spark, self._lake, self._options, self._progress = spark, lake, options, progress
        self._report = RunReport(quarantined={}, changed=[], stages={}, repriced=[], restored=[])
        self._rows = 0  # that the run reads, about
        self._new = NewSegments(lambda: self._spark)
        self._small: dict[str, DataFrame] = {}
        self._small_lock = Lock()
        self._before: dict[str, str] = {}  # settings to restore
        self._selector: Selector

    @cached_property
    def _spark(self) -> SparkSession:
        with self._timed(START):
            session = self._open_spark(self._rows)
        self._before = {name: str(session.conf.get(name)) for name in _CODEGEN}
        return session

    def ingest(self, files: JournalFiles) -> None:
        """Verify the segments and read the rows of those that are accepted."""
        lake, new, report = self._lake, self._new, self._report
        known = {one["manifest"]: one for one in lake.rows("segments")}
        new.orphans = files.orphans
        rows = files.count_rows()
        first = min((day_of(name) for name in files.segments), default="9999")
        self._rows = rows + sum(file.rows for file in lake.tables.files("bronze") if day_of(file.path) >= first)
        state = lake.state()
        rules = RowRules(
            now_ms=self._options.now_ms,
            deleted_dates=tuple(deleted_dates(state)),
            erased=tuple((one.tenant, one.until_ms) for one in state.erased),
        )
        self._verify(files, rules, rows)
        report.segments, report.accepted = len(new.verdicts), len(new.accepted)
        if new.accepted:
            known |= {one["manifest"]: one for one in new.verdicts}
            unique = not overlap([one for one in known.values() if not one["reason"]])
            rules = msgspec.structs.replace(rules, unique=unique)
            with self._timed(READ):
                restore = self._restore if any(day.is_cold for day in state.archived) else None
                new.read(files.root, rules, restore, lambda: lake.read(self._spark, "bronze"))
        report.rows = new.summary.rows
        self._selector = Selector(lake, self._options, new, lake.state(), report)

    def _verify(self, files: JournalFiles, rules: RowRules, rows: int) -> None:
        """Verify the segments: few in this process while Java starts, many on Spark."""

        def verify() -> None:
            with self._timed(VERIFY):
                self._new.verify(files.root, files.manifests, self._options.public_key, rules, rows)

        with ThreadPoolExecutor(1) as aside:
            verified = aside.submit(verify) if rows <= LOCAL_ROWS else None
            if files.manifests:
                _ = self._spark  # opened by the main thread, because it sets signal handlers
            if verified is None:
                verify()
            else:
                verified.result()

    def _restore(self, rows: DataFrame) -> None:
        self._report.restored = bring_back(self._spark, self._lake, rows)

    def compute(self) -> None:
        """Compute and stage the partitions that are not up to date. Independent tables are computed side by side."""
        order = TopologicalSorter({name: _awaited(table) for name, table in TABLES.items()})
        order.prepare()
        ready: list[str] = []
        running: dict[Future[None], LakeTable] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while order.is_active():
                ready += order.get_ready()
                for table in self._startable([TABLES[name] for name in ready], list(running.values())):
                    ready.remove(table.name)
                    selection = self._selector.select(table.scope)
                    if selection is None:
                        order.done(table.name)
                        continue
                    _compile_code(self._spark, wanted=self._is_large(table))
                    running[pool.submit(self._compute, table, selection)] = table
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    order.done(running.pop(future).name)
                    future.result()

    def _startable(self, ready: list[LakeTable], running: list[LakeTable]) -> list[LakeTable]:
        """Return the tables that may start now. A session compiles code for all tables at a time, or for none."""
        together = [*running, *ready][:1]
        return [one for one in ready if self._is_large(one) == self._is_large(together[0])]

    def _compute(self, table: LakeTable, selection: Selection) -> None:
        with self._timed(table.name):
            known = {name for name in self._lake.partitions(table.name, staged=False) if selection.covers(name)}
            pieces = self._pieces(table, known)
            frames = [self._input(table, one, selection, known) for one in table.inputs]
            values: dict[str, Callable[[], Any]] = {**self._values(selection), "pieces": lambda: pieces}
            rows = table.function(*frames, **{name: values[name]() for name in table.parameters})
            if table.appends and known:
                assert isinstance(rows, DataFrame), table.name
                rows = self._lake.view(self._spark, table.name, known.__contains__).unionByName(rows)
            few, reductions = self._rows <= MEDIUM_ROWS or not table.partitions, _reductions(table, values)
            self._lake.stage(rows, table.name, selection.covers, pieces, few=few, reductions=reductions)

    def _is_large(self, table: LakeTable) -> bool:
        """Return whether a table is computed from many rows. Only then it pays off to compile code.

        If there are very many, that is true of most tables, and the others need not wait for their turn.
        """
        of_rows = [
            TABLES[one.table].split and not (one.files or one.reduction) for one in table.inputs if one.table != JOURNAL
        ]
        return self._rows > MEDIUM_ROWS or (self._rows > SMALL_ROWS and any(of_rows))

    def _pieces(self, table: LakeTable, known: set[str]) -> Pieces | None:
        """Return the files that the partitions of a split table will have; None for tables that are not split."""
        if table.split is None:
            return None
        new = table.split.added(self._new.summary)
        sizes = self._lake.sizes(table.name, known)
        return Pieces({name: sizes.get(name, 0) + new.get(name, 0) for name in {*sizes, *new}}, table.split.rows)

    def _input(
        self, reader: LakeTable, one: Input, selection: Selection, known: set[str]
    ) -> DataFrame | FileRows | None:
        """Return the part of a table that an input of another one asks for."""
        if one.part == "new":
            return self._new.source()
        if one.table == JOURNAL or one.part == "resets":
            return self._new.frame(one.part)
        if one.part == "known" and not known:
            return None
        if one.part == "all" and TABLES[one.table].small:
            with self._small_lock:
                if one.table not in self._small:
                    self._small[one.table] = self._lake.local_view(self._spark, one.table)
            return self._small[one.table]
        wanted = {"all": lambda _: True, "selected": selection.covers, "known": known.__contains__}[one.part]
        if one.files:
            return self._lake.file_rows(self._spark, one.table, wanted, reader.name)
        if one.reduction is not None:
            files = self._lake.file_rows(self._spark, one.table, wanted, reader.name)
            return self._in_one(few_rows_frame(files, one.reduction, TABLES[one.table].columns), few=files.few)
        few = self._lake.has_few_bytes(one.table, wanted)
        return self._in_one(self._lake.view(self._spark, one.table, wanted), few=few)

    def _in_one(self, rows: DataFrame, *, few: bool = False) -> DataFrame:
        """Return rows of a small run, or ``few`` of a larger one, in one partition, so that nothing is shuffled."""
        return rows.coalesce(1) if few or self._rows <= SMALL_ROWS else rows

    def _values(self, selection: Selection) -> dict[str, Callable[[], Any]]:
        """Return the values that tables may name as parameters of their functions and reductions."""
        return {
            "from_date": lambda: selection.first,
            "resets": lambda: self._selector.resets,
            "days": lambda: sorted({day_of(one) for one in self._lake.partitions("bronze") if selection.covers(one)}),
            "dates": lambda: sorted(day_of(one) for one in self._lake.partitions("ops_daily")),
            "as_of_ms": partial(self._lake.newest_ms, "bronze"),
            "objective": lambda: self._options.objective,
            "prices": lambda: self._options.prices,
            "erased_usage": self._erased_usage,
            "closed": lambda: {
                month: one for month, one in self._selector.state.closed.items() if selection.covers(f"period={month}")
            },
        }

    def _erased_usage(self) -> list[dict[str, Any]]:
        """Return the monthly sums of erased tenants: the shares of others in common costs do not change by an erasure."""
        return [
            {"tenant": "", "period": month, **{name: Decimal(value) for name, value in sums.items()}}
            for erasure in self._selector.state.erased
            for month, sums in erasure.months.items()
        ]

    def commit(self) -> RunReport:
        """Commit everything staged and return the report."""
        with self._timed(COMMIT):
            self._commit()
        return self._report

    def _commit(self) -> None:
        if self._selector.state != self._lake.state():
            self._lake.stage_state(self._selector.state)
        self._lake.stage_missing()
        self._report.changed = self._lake.commit(keep=self._options.keep_versions)
        counts = Counter[str]()
        for row in self._lake.rows("quarantine"):
            counts[row["reason"]] += row["count"]
        self._report.quarantined = dict(sorted(counts.items()))

    def close(self) -> None:
        """Release cached rows."""
        self._new.close()
        for name, value in self._before.items():
            self._spark.conf.set(name, value)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        self._progress(stage)
        started = time.monotonic()
        try:
            yield
        finally:
            spent = self._report.stages.get(stage, 0.0) + time.monotonic() - started
            self._report.stages[stage] = round(spent, 3)


def _awaited(table: LakeTable) -> set[str]:
    """Return the tables that must be staged before a table is computed. New rows of a table are there before it is."""
    sources = {one.table for one in table.inputs if one.part not in {"new", "resets"}} - {JOURNAL, table.name}
    return {*sources, *NEEDED.get(table.scope, ())}


def _reductions(table: LakeTable, values: Mapping[str, Callable[[], Any]]) -> dict[str, Reduce]:
    """Return the reductions of a table's new files, by the tables that read them."""
    return {
        reader.name: one.reduction.given({name: values[name]() for name in one.reduction.parameters})
        for reader in TABLES.values()
        for one in reader.inputs
        if one.table == table.name and one.reduction is not None
    }


def _compile_code(spark: SparkSession, *, wanted: bool) -> None:
    """Have Spark compile code for its stages, or interpret them."""
    for name, value in zip(_CODEGEN, ("true", "FALLBACK") if wanted else ("false", "NO_CODEGEN"), strict=True):
        spark.conf.set(name, value)
