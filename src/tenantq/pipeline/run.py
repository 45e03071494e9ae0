"""One run of the pipeline: what is new in the journal goes through all layers, and only what it touches is written anew."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import functions as f

from tenantq.errors import Invalid
from tenantq.journal.manifest import HEAD, MANIFESTS
from tenantq.journal.target import DirectoryTarget
from tenantq.pipeline import bronze as layers
from tenantq.pipeline.gold.anomalies import anomalies
from tenantq.pipeline.gold.compliance_gdpr_art30 import compliance_gdpr_art30
from tenantq.pipeline.gold.compliance_soc2 import compliance_soc2
from tenantq.pipeline.gold.invoice_lines import invoice_lines
from tenantq.pipeline.gold.slo_daily import Objective, slo_daily
from tenantq.pipeline.gold.tenant_growth import tenant_growth
from tenantq.pipeline.gold.usage_hourly import usage_hourly
from tenantq.pipeline.price_book import DEFAULT, PriceBook
from tenantq.pipeline.schemas import BRONZE, QUARANTINE, SEGMENT, VERDICTS
from tenantq.pipeline.silver_daily import ops_daily, places_daily, tenant_changes
from tenantq.pipeline.silver_message_lives import OPEN, life_date, life_events, message_lives
from tenantq.pipeline.silver_queue_hours import queue_hours
from tenantq.pipeline.silver_queue_resets import queue_resets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from tenantq.pipeline.lake import Lake

_ROW_REASONS: Final = ("missing_value", "unknown_op", "negative_value", "future_timestamp")
_FILES_PER_TASK: Final = 4
"""How many days after a late one its baseline can still be felt in ``anomalies`` and ``tenant_growth``."""


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


def run(
    spark: SparkSession, journal: str, lake: Lake, options: Options, progress: Callable[[str], None] = lambda _: None
) -> RunReport:
    """Process what the journal has and the lake has not."""
    with lake.locked():
        names, strays = new_manifests(spark, journal, lake, options)
        return process(spark, journal, lake, names, strays, options, progress)


def new_manifests(spark: SparkSession, journal: str, lake: Lake, options: Options) -> tuple[list[str], list[str]]:
    """Return manifests that were not accepted before, and segments that no manifest names."""
    target = _target(journal)
    done = {row["manifest"] for row in lake.read(spark, "segments").where("reason = ''").select("manifest").collect()}
    files = {_span(name): name for name in target.names("") if name.endswith(".parquet")}
    manifests = [
        name
        for name in target.names(MANIFESTS)
        if name.endswith(".json") and not name.endswith(f"/{HEAD}")
    ]  # fmt: skip
    described = {_span(name) for name in manifests}
    wanted = [name for name in manifests if name not in done and _in_range(files.get(_span(name), ""), options)]
    strays = [file for span, file in sorted(files.items()) if span not in described and _in_range(file, options)]
    return wanted, strays


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
        self._report = RunReport(quarantined={}, changed=[], stages={})
        self._rows = spark.createDataFrame([], BRONZE)
        self._started = time.monotonic()
        self._stage = ""
        self._hours: set[str] = set()  # of bronze: those to be computed anew
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
            now_ms = self._options.now_ms
            quarantine = quarantine.unionByName(layers.rejected(raw, now_ms, self._relative()))
            self._take_in(raw, overlapping=_overlap([one for one in verdicts if not one["reason"]]))
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
        root = _target(self._journal).path.absolute()
        return self._spark.read.schema(SEGMENT).parquet(*[str(root / file) for file in files]).drop("link", "payload")

    def _relative(self) -> Any:
        path = f.col("_metadata.file_path")
        return f.regexp_extract(path, r"(date=[^/]*/hour=[^/]*/shard=[^/]*/[^/]*)$", 1)

    def _take_in(self, raw: DataFrame, *, overlapping: bool) -> None:
        """Put new rows into bronze, hour by hour."""
        spark, lake = self._spark, self._lake
        rows = layers.bronze(raw, self._options.now_ms, unique=not overlapping)
        if overlapping:
            there = lake.read(spark, "bronze").select("shard", "seq", "n")
            rows = rows.join(there, ["shard", "seq", "n"], "left_anti").select(*BRONZE.names)
        self._rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(self._rows)
        counted = self._rows.groupBy("date", "hour").count().collect()
        self._report.rows = sum(row["count"] for row in counted)
        self._hours = {f"date={row['date']}/hour={row['hour']}" for row in counted}
        if self._hours:
            there = lake.view(spark, "bronze", self._hours.__contains__)
            lake.stage(there.unionByName(self._rows), "bronze", self._hours.__contains__)

    # ---- silver and gold ----

    def layers(self) -> None:
        """Bring silver and gold up to the new rows; nothing new: nothing to do."""
        if not self._report.rows:
            if self._report.segments:
                self._audit_only()
            return
        dates = {_date(hour) for hour in self._hours}
        newest_before = max((_date(one) for one in self._lake.partitions("bronze", staged=False)), default="")
        self._silver(dates)
        self._gold(min([*dates, *([newest_before] if newest_before else [])]))

    def _silver(self, dates: set[str]) -> None:
        spark, lake = self._spark, self._lake
        self._begin("message_lives")
        new_resets = queue_resets(self._rows).collect()
        lake.stage(lake.read(spark, "queue_resets").unionByName(queue_resets(self._rows)), "queue_resets")
        resets = lake.view(spark, "queue_resets").persist()
        self._kept.append(resets)
        events = life_events(self._rows)
        touched = {f"date={row[0]}" for row in events.select(life_date()).distinct().collect()}
        if new_resets:
            self._hours |= self._later_hours(min(row["ts"] for row in new_resets).strftime("date=%Y-%m-%d/hour=%H"))
            touched |= self._open_in(queue_resets(self._rows))
        known = lake.view(spark, "message_lives", touched.__contains__)
        lake.stage(message_lives(events, known, resets), "message_lives", touched.__contains__)
        self._begin("queue_hours")
        lives = lake.view(spark, "message_lives", touched.__contains__)
        late = (
            lives.where((f.col("outcome") == "removed") & f.col("leased_at_end"))
            .join(events.select("tenant", "message_id"), ["tenant", "message_id"], "left_semi")
            .select(f.date_format("ended_at", "'date='yyyy-MM-dd'/hour='HH"))
            .distinct()
        )
        self._hours |= {row[0] for row in late.collect()} & lake.partitions("bronze")
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

    def _gold(self, from_date: str) -> None:
        spark, lake, options = self._spark, self._lake, self._options

        def since(first: str) -> Callable[[str], bool]:
            return lambda one: _date(one) >= first

        self._begin("usage_hourly")
        hours, resets = lake.view(spark, "queue_hours"), lake.view(spark, "queue_resets")
        lake.stage(usage_hourly(hours, resets, from_date), "usage_hourly", since(from_date))
        self._begin("slo_daily")
        rows = lake.view(spark, "bronze", since(from_date))
        newest = rows.agg(f.unix_millis(f.max("ts"))).collect()[0][0]
        lake.stage(
            slo_daily(rows, lake.view(spark, "message_lives"), newest, options.objective), "slo_daily", since(from_date)
        )
        self._begin("invoice_lines")
        month = from_date[:7]
        usage = lake.view(spark, "usage_hourly", since(month))
        lake.stage(invoice_lines(usage, options.prices), "invoice_lines", lambda one: one >= f"period={month}")
        self._begin("tenant_growth")
        daily = lake.view(spark, "usage_hourly")
        growth = tenant_growth(daily, lake.view(spark, "tenant_changes"), from_date)
        lake.stage(growth, "tenant_growth", since(from_date))
        self._audit(from_date)

    def _audit_only(self) -> None:
        """Only segments that cannot be trusted are new: the tables of evidence must say so."""
        newest = max((_date(one) for one in self._lake.partitions("bronze")), default="")
        if newest:
            self._audit(newest)

    def _audit(self, from_date: str) -> None:
        spark, lake = self._spark, self._lake
        covered = lambda one: _date(one) >= from_date  # noqa: E731  # a name for one line
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
            compliance_soc2(ops, lake.view(spark, "anomalies", covered), segments, quarantine),
            "compliance_soc2",
            covered,
        )
        lake.stage(compliance_gdpr_art30(ops, segments, quarantine), "compliance_gdpr_art30", covered)

    # ---- the end ----

    def finish(self) -> RunReport:
        """Commit and say what was done."""
        self._begin("commit")
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


def _target(journal: str) -> DirectoryTarget:
    path = Path(journal.removeprefix("file://"))
    if not path.is_dir():
        raise Invalid(f"journal {journal}: is no directory; give the one that holds date=… and manifest/")
    if not _readable(path):
        raise Invalid(f"journal {journal}: cannot be read; check its permissions")
    return DirectoryTarget(path)


def _readable(path: Path) -> bool:
    try:
        next(path.iterdir(), None)
    except OSError:
        return False
    return True


def _span(name: str) -> tuple[str, str]:
    """Return (shard, span of records) of a segment's or manifest's name."""
    *_, shard, file = name.split("/") if name.count("/") else ("", "", name)
    return shard, file.rpartition(".")[0]


def _in_range(file: str, options: Options) -> bool:
    date = file.removeprefix("date=")[:10] if file.startswith("date=") else ""
    return not date or (
        (not options.from_date or date >= options.from_date) and (not options.to_date or date <= options.to_date)
    )


def _overlap(verdicts: list[dict[str, Any]]) -> bool:
    """Tell whether any record stands in two segments."""
    spans = sorted((one["shard"], one["first_seq"], one["last_seq"]) for one in verdicts)
    return any(a[0] == b[0] and b[1] <= a[2] for a, b in pairwise(spans))


def _date(partition: str) -> str:
    return partition.removeprefix("date=")[:10]
