"""One run of the pipeline: what is new in the journal goes through all layers, and only what it touches is written anew."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import functions as f

from tenantq.pipeline import bronze as layers
from tenantq.pipeline.archive import bring_back, deleted_dates
from tenantq.pipeline.gold.anomalies import anomalies
from tenantq.pipeline.gold.compliance_gdpr_art30 import compliance_gdpr_art30
from tenantq.pipeline.gold.compliance_soc2 import compliance_soc2
from tenantq.pipeline.gold.invoice_lines import invoice_lines
from tenantq.pipeline.gold.slo_daily import Objective, slo_daily
from tenantq.pipeline.gold.tenant_growth import tenant_growth
from tenantq.pipeline.gold.usage_hourly import usage_hourly
from tenantq.pipeline.lake import dealt
from tenantq.pipeline.new_segments import journal_path, new_manifests
from tenantq.pipeline.price_book import DEFAULT, PriceBook
from tenantq.pipeline.schemas import BRONZE, QUARANTINE, SEGMENT, VERDICTS
from tenantq.pipeline.silver_daily import ops_daily, places_daily, tenant_changes
from tenantq.pipeline.silver_message_lives import OPEN, life_events, message_lives
from tenantq.pipeline.silver_queue_hours import queue_hours
from tenantq.pipeline.silver_queue_resets import queue_resets
from tenantq.pipeline.survey import Survey, survey
from tenantq.pipeline.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from tenantq.pipeline.lake import Lake

_ROW_REASONS: Final = ("missing_value", "unknown_op", "negative_value", "future_timestamp")
_FILES_PER_TASK: Final = 4
STAGES: Final = (
    "verify segments", "bronze", "message_lives", "queue_hours", "daily", "usage_hourly", "slo_daily", "invoice_lines",
    "tenant_growth", "anomalies", "compliance", "commit",
)  # fmt: skip
"""What a run goes through, in this order; one with nothing new leaves out most."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked to do."""

    now_ms: int
    from_date: str = ""  # first and last day of segments to process; empty: all
    to_date: str = ""
    public_key: Path | None = None  # signatures are checked where it is given
    prices: PriceBook = DEFAULT
    objective: Objective = Objective()


class RunReport(msgspec.Struct):
    """What a run did."""

    segments: int = 0  # looked at
    accepted: int = 0
    rows: int = 0  # new in bronze
    quarantined: dict[str, int] = {}  # reason -> rows or records, over the whole lake
    changed: list[str] = []  # partitions that were written anew
    stages: dict[str, float] = {}  # seconds
    repriced: list[str] = []  # months whose lines were computed anew: the price book says something else about them
    restored: list[str] = []  # days that came back from the archive, since late rows re-opened them
    remeasured: bool = False  # slo_daily was computed anew, since the objective is another
    late: int = 0  # segments that came behind the stream's watermark
    watermark: str = ""  # of the stream


def run(
    spark: SparkSession, journal: str, lake: Lake, options: Options, progress: Callable[[str], None] = lambda _: None
) -> RunReport:
    """Process what the journal has and the lake has not."""
    with lake.locked():
        names, strays = new_manifests(spark, journal, lake, options)
        return process(spark, journal_path(journal), lake, names, strays, options, progress)


def process(
    spark: SparkSession,
    journal: str,
    lake: Lake,
    names: Iterable[str],
    strays: Iterable[str],
    options: Options,
    progress: Callable[[str], None] = lambda _: None,
) -> RunReport:
    """Take these manifests' segments through all layers and commit. The lake must be locked."""
    step = _Run(spark, journal, lake, options, progress)
    try:
        step.segments(list(names), list(strays))
        step.layers()
        return step.finish()
    finally:
        step.forget()


class _Run:
    def __init__(
        self, spark: SparkSession, journal: str, lake: Lake, options: Options, progress: Callable[[str], None]
    ) -> None:
        self._spark, self._journal, self._lake, self._options, self._progress = spark, journal, lake, options, progress
        self._report = RunReport(quarantined={}, changed=[], stages={}, repriced=[], restored=[])
        self._state = lake.state()
        self._rows = spark.createDataFrame([], BRONZE)
        self._started = time.monotonic()
        self._stage = ""
        self._hours: set[str] = set()  # of bronze: those to be computed anew
        self._lives: dict[str, int] = {}  # days of lives that new rows tell of, with how many begin
        self._kept: list[DataFrame] = []

    # ---- bronze ----

    def segments(self, names: list[str], strays: list[str]) -> None:
        """Verify segments, take their rows in, and write down what is not well."""
        self._begin("verify segments")
        spark, lake = self._spark, self._lake
        before = lake.read(spark, "segments")
        known = [row.asDict() for row in before.collect()]
        found = self._verify(names)
        fresh = {one["manifest"] for one in found}
        verdicts = [*[one for one in known if one["manifest"] not in fresh], *found]
        good = [one for one in found if not one["reason"]]
        self._report.segments, self._report.accepted = len(found), len(good)
        segments = spark.createDataFrame(verdicts, VERDICTS)
        bad = segments.where(f.col("reason") != "").select(
            "reason", "file", "shard", "first_seq", "last_seq", f.col("rows").alias("count"), "details"
        )
        lost = [
            {"reason": "missing_manifest", "file": one, "shard": "", "first_seq": 0, "last_seq": 0, "count": 1,
             "details": "no manifest names this segment"} for one in strays
        ]  # fmt: skip
        quarantine = bad.unionByName(layers.chained(segments)).unionByName(spark.createDataFrame(lost, QUARANTINE))
        kept = lake.read(spark, "quarantine").where(f.col("reason").isin(*_ROW_REASONS))
        quarantine = quarantine.unionByName(kept)
        if good:
            self._begin("bronze")
            raw = self._read([one["file"] for one in good])
            now_ms, gone = self._options.now_ms, deleted_dates(self._state)
            seen = survey(raw, now_ms, gone)
            if seen.faulty:
                quarantine = quarantine.unionByName(layers.rejected(raw, now_ms, self._relative(), gone))
            self._take_in(raw, seen, overlapping=_overlap([one for one in verdicts if not one["reason"]]))
        lake.stage(quarantine.dropDuplicates(["reason", "shard", "first_seq", "file", "details"]), "quarantine")
        lake.stage(segments, "segments")

    def _verify(self, names: list[str]) -> list[dict[str, Any]]:
        if not names:
            return []
        tasks = max(1, min(len(names), len(names) // _FILES_PER_TASK))
        manifests = self._spark.createDataFrame([(name,) for name in names], "manifest string").repartition(tasks)
        found = layers.verified(manifests, self._journal, self._options.public_key).collect()
        return sorted((row.asDict() for row in found), key=lambda one: str(one["manifest"]))

    def _read(self, files: list[str]) -> DataFrame:
        root = Path(self._journal)
        return self._spark.read.schema(SEGMENT).parquet(*[str(root / file) for file in files]).drop("link", "payload")

    def _relative(self) -> Any:
        path = f.col("_metadata.file_path")
        return f.regexp_extract(path, r"(date=[^/]*/hour=[^/]*/shard=[^/]*/[^/]*)$", 1)

    def _take_in(self, raw: DataFrame, seen: Survey, *, overlapping: bool) -> None:
        """Put new rows into bronze, hour by hour. What comes after reads the columns it needs from the segments again."""
        spark, lake, state, now_ms = self._spark, self._lake, self._state, self._options.now_ms
        gone = deleted_dates(state)
        faults = now_ms if seen.faulty else None
        rows = layers.bronze(raw, faults, unique=not overlapping, gone=gone, erased=state.erased)
        if state.archived:
            self._report.restored = bring_back(spark, lake, rows)
            self._state = lake.state()
        if overlapping:
            there = lake.read(spark, "bronze").select("shard", "seq", "n")
            rows = rows.join(there, ["shard", "seq", "n"], "left_anti").select(*BRONZE.names)
            rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
            self._kept.append(rows)
        if overlapping or state.erased:
            seen = survey(rows, now_ms, gone)
        self._rows, self._lives = rows, seen.days
        self._report.rows, self._hours = seen.rows, set(seen.hours)
        if self._hours:
            known = self._hours & lake.partitions("bronze")
            if known:
                rows = lake.view(spark, "bronze", known.__contains__).unionByName(rows)
            sizes = Counter(seen.hours) + Counter(lake.sizes("bronze", known))
            lake.stage(rows, "bronze", self._hours.__contains__, sizes)

    # ---- silver and gold ----

    def layers(self) -> None:
        """Bring silver and gold up to the new rows, and to what is asked of prices and service levels."""
        first = ""
        if self._report.rows:
            dates = {_date(hour) for hour in self._hours}
            newest_before = max((_date(one) for one in self._lake.partitions("bronze", staged=False)), default="")
            first = min([*dates, *([newest_before] if newest_before else [])])
            self._silver(dates)
            self._usage(first)
        self._service_levels(first)
        self._invoices(first[:7])
        if first:
            self._growth(first)
        self._audit(first)

    def _silver(self, dates: set[str]) -> None:
        spark, lake = self._spark, self._lake
        self._begin("message_lives")
        new_resets = queue_resets(self._rows)
        first_reset = new_resets.agg(f.min("ts")).collect()[0][0]
        if first_reset is not None or not lake.has("queue_resets"):
            lake.stage(lake.read(spark, "queue_resets").unionByName(new_resets), "queue_resets")
        resets = lake.view(spark, "queue_resets").persist()
        self._kept.append(resets)
        touched = set(self._lives)
        if first_reset is not None:
            self._hours |= self._later_hours(first_reset.strftime("date=%Y-%m-%d/hour=%H"))
            touched |= self._open_in(new_resets)
        self._stage_lives(touched, resets)
        self._begin("queue_hours")
        self._hours |= self._hours_of_removed_leases(touched)
        rows = lake.view(spark, "bronze", self._hours.__contains__)
        lake.stage(
            queue_hours(rows, lake.view(spark, "message_lives"), resets), "queue_hours", self._hours.__contains__
        )
        self._begin("daily")
        of_dates = lake.view(spark, "bronze", lambda one: _date(one) in dates)
        covered = {f"date={date}" for date in dates}.__contains__
        lake.stage(ops_daily(of_dates), "ops_daily", covered)
        lake.stage(places_daily(of_dates), "places_daily", covered)
        lake.stage(tenant_changes(of_dates), "tenant_changes", covered)

    def _stage_lives(self, touched: set[str], resets: DataFrame) -> None:
        spark, lake, table = self._spark, self._lake, TABLES["message_lives"]
        there = touched & lake.partitions("message_lives")
        sizes = Counter(self._lives) + Counter(lake.sizes("message_lives", there))
        events = dealt(life_events(self._rows), table, sizes)
        known = dealt(lake.view(spark, "message_lives", there.__contains__), table, sizes) if there else None
        lake.stage(message_lives(events, known, resets), "message_lives", touched.__contains__)

    def _hours_of_removed_leases(self, touched: set[str]) -> set[str]:
        """Return the hours in which leases ended by a remove that new events tell more of."""
        lives = self._lake.view(self._spark, "message_lives", touched.__contains__)
        leased = lives.where((f.col("outcome") == "removed") & f.col("leased_at_end"))
        if leased.isEmpty():
            return set()
        events = life_events(self._rows).select("tenant", "message_id")
        late = (
            leased.join(events, ["tenant", "message_id"], "left_semi")
            .select(f.date_format("ended_at", "'date='yyyy-MM-dd'/hour='HH"))
            .distinct()
        )
        return {row[0] for row in late.collect()} & self._lake.partitions("bronze")

    def _later_hours(self, hour: str) -> set[str]:
        return {one for one in self._lake.partitions("bronze") if one >= hour}

    def _open_in(self, resets: DataFrame) -> set[str]:
        """Return the partitions of lives that may be ended by these resets."""
        lives = self._lake.read(self._spark, "message_lives").where(f.col("outcome").isin(*OPEN)).alias("life")
        ended = resets.select("tenant", "queue").distinct().alias("reset")
        of_one = (f.col("life.tenant") == f.col("reset.tenant")) & (
            (f.col("reset.queue") == "") | (f.col("life.last.queue") == f.col("reset.queue"))
        )
        found = lives.join(f.broadcast(ended), of_one, "left_semi").select("date").distinct().collect()
        return {f"date={row[0]}" for row in found}

    def _usage(self, from_date: str) -> None:
        spark, lake = self._spark, self._lake
        self._begin("usage_hourly")
        hours, resets = lake.view(spark, "queue_hours"), lake.view(spark, "queue_resets")
        lake.stage(usage_hourly(hours, resets, from_date), "usage_hourly", _since(from_date))

    def _service_levels(self, from_date: str) -> None:
        """Compute slo_daily for days that changed; for all that are there where the objective is another."""
        spark, lake, objective = self._spark, self._lake, self._options.objective
        digest = hashlib.sha256(msgspec.json.encode(objective)).hexdigest()
        self._report.remeasured = self._state.objective not in {"", digest}
        self._state = msgspec.structs.replace(self._state, objective=digest)
        if self._report.remeasured:
            from_date = min((_date(one) for one in lake.partitions("bronze")), default="")
        if not from_date:
            return
        self._begin("slo_daily")
        rows = lake.view(spark, "bronze", _since(from_date))
        newest = rows.agg(f.unix_millis(f.max("ts"))).collect()[0][0]
        days = sorted({_date(one) for one in lake.partitions("bronze") if _date(one) >= from_date})
        levels = slo_daily(rows, lake.view(spark, "message_lives"), days, newest, objective)
        lake.stage(levels, "slo_daily", _since(from_date))

    def _invoices(self, from_month: str) -> None:
        """Compute the lines of months that changed, and of those about which the price book says something else."""
        spark, lake, book, known = self._spark, self._lake, self._options.prices, self._state.prices
        months = {_date(one)[:7] for one in lake.partitions("usage_hourly")}
        touched = {month for month in months if from_month and month >= from_month}
        stale = {
            month for month in months - touched if known.get(month) != book.digest(month) and self._asked_for(month)
        }
        self._report.repriced = sorted(
            {month for month in touched if known.get(month, book.digest(month)) != book.digest(month)} | stale
        )
        wanted = touched | stale
        prices = {**known, **{month: book.digest(month) for month in wanted}}
        self._state = msgspec.structs.replace(self._state, prices=dict(sorted(prices.items())))
        if not wanted:
            return
        self._begin("invoice_lines")
        usage = lake.view(spark, "usage_hourly", lambda one: _date(one)[:7] in wanted)
        gone = [
            {"tenant": "", "period": month, **{name: Decimal(value) for name, value in sums.items()}}
            for erasure in self._state.erased
            for month, sums in erasure.months.items()
        ]
        lines = invoice_lines(usage, book, gone)
        lake.stage(lines, "invoice_lines", lambda one: one.removeprefix("period=") in wanted)

    def _asked_for(self, month: str) -> bool:
        first, last = self._options.from_date[:7], self._options.to_date[:7]
        return (not first or month >= first) and (not last or month <= last)

    def _growth(self, from_date: str) -> None:
        spark, lake = self._spark, self._lake
        self._begin("tenant_growth")
        daily = lake.view(spark, "usage_hourly")
        growth = tenant_growth(daily, lake.view(spark, "tenant_changes"), from_date)
        lake.stage(growth, "tenant_growth", _since(from_date))

    def _audit(self, from_date: str) -> None:
        """Compute the tables of evidence for days that changed, and those whose segments have another verdict than before."""
        spark, lake = self._spark, self._lake
        days = sorted({_date(one) for one in lake.partitions("ops_daily")})
        if not days:
            return
        told = self._verdicts_changed(days)
        from_date = min([one for one in (from_date, told) if one], default="")
        if not from_date:
            return
        covered = _since(from_date)
        self._begin("anomalies")
        found = anomalies(
            lake.view(spark, "bronze", covered),
            lake.view(spark, "usage_hourly"),
            lake.view(spark, "places_daily"),
            lake.view(spark, "quarantine"),
            from_date,
        )
        lake.stage(found, "anomalies", covered)
        self._begin("compliance")
        ops, segments = lake.view(spark, "ops_daily", covered), lake.view(spark, "segments")
        quarantine = lake.view(spark, "quarantine")
        lake.stage(
            compliance_soc2(ops, lake.view(spark, "anomalies", covered), segments, quarantine, days),
            "compliance_soc2",
            covered,
        )
        lake.stage(compliance_gdpr_art30(ops, segments, quarantine, days), "compliance_gdpr_art30", covered)

    def _verdicts_changed(self, days: list[str]) -> str:
        """Return the first day of the lake about whose segments something else is known now; empty: there is none."""
        spark, lake = self._spark, self._lake
        first = ""
        for table in ("segments", "quarantine"):
            columns = [name for name in TABLES[table].columns.names if name != "manifest"]
            before, now = (
                {tuple(row) for row in rows.select(*columns).collect()}
                for rows in (lake.read(spark, table), lake.view(spark, table))
            )
            for row in before ^ now:
                file = row[columns.index("file")]
                day = _date(file) if file.startswith("date=") and _date(file) in days else days[-1]
                first = min(first or day, day)
        return first

    # ---- the end ----

    def finish(self) -> RunReport:
        """Commit and say what was done."""
        self._begin("commit")
        if self._state != self._lake.state():
            self._lake.stage_state(self._state)
        self._report.changed = self._lake.commit()
        counted = self._lake.read(self._spark, "quarantine").groupBy("reason").agg(f.sum("count")).collect()
        self._report.quarantined = {row[0]: row[1] for row in sorted(counted)}
        self._begin("")
        return self._report

    def forget(self) -> None:
        """Let go of what was kept in memory."""
        for kept in self._kept:
            kept.unpersist()

    def _begin(self, stage: str) -> None:
        now = time.monotonic()
        if self._stage:
            self._report.stages[self._stage] = round(now - self._started, 3)
        self._stage, self._started = stage, now
        if stage:
            self._progress(stage)


def _overlap(verdicts: list[dict[str, Any]]) -> bool:
    """Tell whether any record stands in two segments."""
    spans = sorted((one["shard"], one["first_seq"], one["last_seq"]) for one in verdicts)
    return any(a[0] == b[0] and b[1] <= a[2] for a, b in pairwise(spans))


def _since(first: str) -> Callable[[str], bool]:
    """Tell partitions of a day or later."""
    return lambda one: _date(one) >= first


def _date(partition: str) -> str:
    return partition.removeprefix("date=")[:10]
