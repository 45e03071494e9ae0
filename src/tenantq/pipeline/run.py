"""One run of the pipeline: computes every table that new segments touch, sources first, and commits them together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from tenantq.pipeline.bronze.ingestion import NewSegments, overlap
from tenantq.pipeline.bronze.rows import RowRules
from tenantq.pipeline.journal_source import FETCH, JournalFiles, local_journal
from tenantq.pipeline.lake.archive import bring_back, deleted_dates
from tenantq.pipeline.lake.data_files import with_pieces
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.run_options import RunOptions, RunReport
from tenantq.pipeline.scopes import Selection, Selector
from tenantq.pipeline.session import SMALL_ROWS
from tenantq.pipeline.tables import JOURNAL, TABLES, Input, LakeTable, day_of

START: Final = "start Spark"
VERIFY: Final = "verify segments"
COMMIT: Final = "commit"
STAGES: Final = (FETCH, VERIFY, START, *TABLES, COMMIT)
"""The stages of a run, in order. Tables that are up to date are left out; without new data, Spark is too."""

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
        for table in TABLES.values():
            step.compute(table)
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
        self._cached: dict[str, DataFrame] = {}
        self._stage, self._started = "", time.monotonic()
        self._selector: Selector

    @cached_property
    def _spark(self) -> SparkSession:
        stage = self._stage
        self._begin(START)
        session = self._open_spark(self._rows)
        self._begin(stage)
        return session

    def ingest(self, files: JournalFiles) -> None:
        """Verify the segments and read the rows of those that are accepted."""
        self._begin(VERIFY)
        lake, new, report = self._lake, self._new, self._report
        known = {one["manifest"]: one for one in lake.rows("segments")}
        new.strays = files.strays
        rows = files.count_rows()
        first = min((day_of(name) for name in files.segments), default="9999")
        self._rows = rows + sum(file.rows for file in lake.tables.files("bronze") if day_of(file.path) >= first)
        new.verify(files.root, files.manifests, self._options.public_key, rows)
        report.segments, report.accepted = len(new.verdicts), len(new.accepted)
        state = lake.state()
        if new.accepted:
            known |= {one["manifest"]: one for one in new.verdicts}
            rules = RowRules(
                now_ms=self._options.now_ms,
                unique=not overlap([one for one in known.values() if not one["reason"]]),
                deleted_dates=tuple(deleted_dates(state)),
                erased=tuple((one.tenant, one.until_ms) for one in state.erased),
            )
            new.read(files.root, rules, self._restore, lambda: lake.read(self._spark, "bronze"))
        report.rows = new.summary.rows
        self._selector = Selector(lambda: self._spark, lake, self._options, new, lake.state(), report)

    def _restore(self, rows: DataFrame) -> None:
        self._report.restored = bring_back(self._spark, self._lake, rows)

    def compute(self, table: LakeTable) -> None:
        """Compute and stage the partitions of a table that are not up to date."""
        selection = self._selector.select(table.scope)
        if selection is None:
            return
        self._begin(table.name)
        known = {name for name in self._lake.partitions(table.name, staged=False) if selection.covers(name)}
        sizes = self._sizes(table, known)
        frames = [self._frame(one, table, selection, known, sizes) for one in table.inputs]
        values = self._values(selection)
        rows = table.function(*frames, **{name: values[name]() for name in table.parameters})
        if table.appends:
            self._selector.new_rows[table.name] = rows
            if known:
                rows = self._lake.view(self._spark, table.name, known.__contains__).unionByName(rows)
        with _compiling(self._spark, self._is_large(table)):
            self._lake.stage(rows, table.name, selection.covers, sizes, few=self._rows <= SMALL_ROWS)

    def _is_large(self, table: LakeTable) -> bool:
        """Return whether a table is computed from many rows. Only then it pays off to compile code."""
        of_rows = [one.part == "rows" if one.table == JOURNAL else TABLES[one.table].split for one in table.inputs]
        return self._rows > SMALL_ROWS and any(of_rows)

    def _sizes(self, table: LakeTable, known: set[str]) -> Mapping[str, int] | None:
        """Return how many rows each partition of a split table will have; None for tables that are not split."""
        if table.split is None:
            return None
        new = {"bronze": self._new.summary.hours, "message_lives": self._new.summary.lives}[table.name]
        return Counter(new) + Counter(self._lake.sizes(table.name, known))

    def _frame(
        self, one: Input, table: LakeTable, selection: Selection, known: set[str], sizes: Mapping[str, int] | None
    ) -> DataFrame | None:
        """Return the part of a table that an input asks for."""
        if one.table == JOURNAL:
            return self._new.frame(one.part)
        if one.part == "known" and not known:
            return None
        if one.part == "all" and TABLES[one.table].cached:
            if one.table not in self._cached:
                self._cached[one.table] = self._lake.view(self._spark, one.table).persist()
            return self._cached[one.table]
        if one.part == "new":
            rows = self._selector.new_rows[one.table]
        else:
            wanted = {"all": lambda _: True, "selected": selection.covers, "known": known.__contains__}[one.part]
            rows = self._lake.view(self._spark, one.table, wanted)
        if one.through is not None:
            rows = one.through(rows)
        # Rows that are merged into a split table get their piece first, so one shuffle does for merging and writing.
        merged = sizes is not None and one.part in {"new", "known"}
        return with_pieces(rows, table, sizes or {}) if merged else rows

    def _values(self, selection: Selection) -> dict[str, Callable[[], Any]]:
        """Return the values that tables may name as parameters of their function."""
        return {
            "rules": lambda: self._new.rules,
            "from_date": lambda: selection.first,
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
        self._begin(COMMIT)
        if self._selector.state != self._lake.state():
            self._lake.stage_state(self._selector.state)
        self._lake.stage_missing()
        self._report.changed = self._lake.commit(keep=self._options.keep_versions)
        counts = Counter[str]()
        for row in self._lake.rows("quarantine"):
            counts[row["reason"]] += row["count"]
        self._report.quarantined = dict(sorted(counts.items()))
        self._begin("")
        return self._report

    def close(self) -> None:
        """Release cached rows."""
        self._new.close()
        for rows in self._cached.values():
            rows.unpersist()

    def _begin(self, stage: str) -> None:
        now = time.monotonic()
        if self._stage:
            spent = self._report.stages.get(self._stage, 0.0) + now - self._started
            self._report.stages[self._stage] = round(spent, 3)
        self._stage, self._started = stage, now
        if stage:
            self._progress(stage)


@contextmanager
def _compiling(spark: SparkSession, wanted: bool) -> Iterator[None]:  # noqa: FBT001  # a private helper
    """Have Spark compile code for its stages, or interpret them."""
    settings = {
        "spark.sql.codegen.wholeStage": str(wanted).lower(),
        "spark.sql.codegen.factoryMode": "FALLBACK" if wanted else "NO_CODEGEN",
    }
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
