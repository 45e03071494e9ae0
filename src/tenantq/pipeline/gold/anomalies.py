"""Gold ``anomalies``: events to look into, each with a severity and the journal rows that show it."""

from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType

from tenantq.pipeline.arrow_columns import Vocabulary, numbers
from tenantq.pipeline.gold.exclude_probe_tenants import exclude_probe_tenants
from tenantq.pipeline.reduction import Reduction, few_rows
from tenantq.pipeline.schemas import DOUBLE, TEXT, TIME, table_columns
from tenantq.pipeline.silver.places_daily import offset

ANOMALIES: Final = table_columns(
    kind=TEXT, severity=TEXT, tenant=TEXT, queue=TEXT, principal=TEXT, first_at=TIME, last_at=TIME, observed=DOUBLE,
    expected=DOUBLE, details=TEXT, evidence=ArrayType(TEXT), date=TEXT,
)  # fmt: skip

BURST_PER_MINUTE: Final = 20
"""Denials of one principal within a minute that count as a burst."""
PROBED_TENANTS: Final = 3
"""Tenants that deny one principal on one day for this to count as probing."""
BASELINE_DAYS: Final = 14
BASELINE_DAYS_MIN: Final = 5
DEVIATIONS: Final = 6.0
_VOLUME_MIN: Final = 100
_EVIDENCE_MAX: Final = 20
_MAD_TO_SIGMA: Final = 1.4826


def anomalies(
    rows: DataFrame, usage: DataFrame, places: DataFrame, quarantine: DataFrame, from_date: str = ""
) -> DataFrame:
    """Return rows of ANOMALIES since ``from_date``.

    ``rows`` is bronze since that day as reduced by REPORTED. ``usage`` (usage_hourly) and ``places`` (places_daily) are whole tables.
    """
    found = [
        denial_bursts(rows),
        probing(rows),
        alerts(rows),
        unusual_volume(usage),
        new_places(places),
        audit_gaps(quarantine, rows),
    ]
    return exclude_probe_tenants(
        reduce(lambda one, other: one.unionByName(other), found).where(f.col("date") >= from_date)
    )


def denial_bursts(rows: DataFrame) -> DataFrame:
    """Find many denials of one principal within a minute."""
    denied = rows.where(f.col("outcome") == "denied")
    minute = f.date_trunc("minute", "ts")
    grouped = denied.groupBy("tenant", "principal", "date", minute.alias("minute")).agg(*_seen())
    burst = grouped.where(f.col("observed") >= BURST_PER_MINUTE)
    severity = f.when(f.col("observed") >= 10 * BURST_PER_MINUTE, "high").otherwise("medium")
    details = f.format_string("%d denials within a minute", f.col("observed"))
    return _shaped(burst, "denial_burst", severity, details, expected=f.lit(float(BURST_PER_MINUTE)))


def probing(rows: DataFrame) -> DataFrame:
    """Find principals that are denied in several tenants."""
    denied = rows.where((f.col("outcome") == "denied") & (f.col("principal") != "") & (f.col("tenant") != ""))
    grouped = denied.groupBy("principal", "date").agg(
        *_seen(f.count_distinct("tenant")),
        f.sort_array(f.collect_set("tenant")).alias("tenants"),
    )
    found = grouped.where(f.col("observed") >= PROBED_TENANTS).withColumn("tenant", f.lit(""))
    details = f.concat(f.lit("denied in "), f.concat_ws(", ", f.slice("tenants", 1, _EVIDENCE_MAX)))
    return _shaped(found, "cross_tenant_probing", f.lit("high"), details, expected=f.lit(1.0))


def alerts(rows: DataFrame) -> DataFrame:
    """Find signals that the server itself raised."""
    raised = rows.where(f.col("op") == "alert")
    grouped = raised.groupBy("tenant", "principal", "date", "outcome", "details").agg(*_seen())
    return _shaped(grouped, f.concat(f.lit("alert:"), f.col("outcome")), f.lit("medium"), f.col("details"))


def unusual_volume(usage: DataFrame) -> DataFrame:
    """Find days whose messages are many median deviations away from the median of the days before."""
    days = usage.where(f.col("tenant") != "").groupBy("tenant", "date").agg(
        f.sum("messages_in").cast("double").alias("observed")
    )  # fmt: skip
    day = f.datediff(f.col("date").cast("date"), f.lit("1970-01-01").cast("date"))
    trailing = Window.partitionBy("tenant").orderBy("day").rangeBetween(-BASELINE_DAYS, -1)
    days = days.withColumn("day", day).withColumn("past", f.sort_array(f.collect_list("observed").over(trailing)))
    days = days.where(f.size("past") >= BASELINE_DAYS_MIN).withColumn("expected", _median("past"))
    days = days.withColumn(
        "off", f.sort_array(f.transform("past", lambda one: f.abs(one - f.col("expected"))))
    ).withColumn(
        "allowed",
        f.greatest(DEVIATIONS * _MAD_TO_SIGMA * _median("off"), f.col("expected") / 2, f.lit(float(_VOLUME_MIN))),
    )
    away = f.abs(f.col("observed") - f.col("expected"))
    found = days.where(away > f.col("allowed")).withColumn("principal", f.lit(""))
    at = f.col("date").cast("timestamp")
    found = found.withColumn("first_at", at).withColumn("last_at", at).withColumn(
        "evidence", f.array(f.concat_ws("/", f.lit("usage_hourly"), f.concat(f.lit("date="), f.col("date")), f.col("tenant")))
    )  # fmt: skip
    severity = f.when(away > 3 * f.col("allowed"), "high").otherwise("low")
    details = f.format_string("%.0f messages, where %.0f are usual", f.col("observed"), f.col("expected"))
    return _shaped(found, "unusual_volume", severity, details, expected=f.col("expected"))


def new_places(places: DataFrame) -> DataFrame:
    """Find principals used from a network from which they were not used on earlier days."""
    first = Window.partitionBy("tenant", "principal", "network")
    known = Window.partitionBy("tenant", "principal")
    fresh = places.withColumn("first_here", f.min("date").over(first)).withColumn(
        "first_ever", f.min("date").over(known)
    )
    found = fresh.where((f.col("date") == f.col("first_here")) & (f.col("date") > f.col("first_ever")))
    found = found.withColumn("last_at", f.col("first_at")).withColumn("observed", f.col("calls"))
    found = found.withColumn("evidence", f.array("evidence"))
    return _shaped(found, "new_place", f.lit("low"), f.concat(f.lit("first use from "), f.col("network")))


def audit_gaps(quarantine: DataFrame, rows: DataFrame) -> DataFrame:
    """Find records that are missing or not trustworthy. They are reported on the newest day."""
    newest = rows.agg(f.max("date").alias("date"), f.max("ts").alias("first_at")).where(f.col("date").isNotNull())
    gaps = quarantine.crossJoin(f.broadcast(newest)).withColumn("last_at", f.col("first_at"))
    place = f.format_string("%s:%d-%d %s", f.col("shard"), f.col("first_seq"), f.col("last_seq"), f.col("file"))
    gaps = gaps.select("*", place.alias("place"), f.col("count").alias("observed"), f.array(place).alias("evidence"))
    gaps = gaps.withColumn("tenant", f.lit("")).withColumn("principal", f.lit(""))
    details = f.concat(f.col("reason"), f.lit(": "), f.col("place"))
    return _shaped(gaps, "audit_gap", f.lit("high"), details)


def _median(column: str) -> Column:
    """Return the median of a sorted array."""
    size = f.size(column)
    low, high = f.floor((size - 1) / 2).cast("int"), f.floor(size / 2).cast("int")
    return (f.get(column, low) + f.get(column, high)) / 2


def _seen(observed: Column | None = None) -> list[Column]:
    rows = f.array_sort(f.collect_list(f.struct("ts", "seq", "n", offset().alias("offset"))))
    return [
        f.min("ts").alias("first_at"),
        f.max("ts").alias("last_at"),
        (f.sum("count") if observed is None else observed).alias("observed"),
        f.transform(f.slice(rows, 1, _EVIDENCE_MAX), lambda one: one["offset"]).alias("evidence"),
    ]


def _shaped(
    found: DataFrame, kind: str | Column, severity: Column, details: Column, expected: Column | None = None
) -> DataFrame:
    return found.select(
        (f.lit(kind) if isinstance(kind, str) else kind).alias("kind"), severity.alias("severity"), "tenant",
        f.lit("").alias("queue"), "principal", "first_at", "last_at", f.col("observed").cast("double").alias("observed"),
        (expected if expected is not None else f.lit(0.0)).cast("double").alias("expected"), details.alias("details"),
        "evidence", "date",
    ).select(*ANOMALIES.names)  # fmt: skip


def _reported(rows: pa.Table) -> list[pa.Table]:
    ops, outcomes, us = Vocabulary(rows["op"]), Vocabulary(rows["outcome"]), numbers(rows["ts"])
    wanted = ops.marked(ops.ranks[0], ("alert",)) | outcomes.marked(outcomes.ranks[0], ("denied",))
    if len(us):
        wanted[us.argmax()] = True
    return few_rows(rows, wanted, REPORTED.columns)


REPORTED: Final = Reduction(
    ("tenant", "principal", "op", "outcome", "details", "count", "ts", "shard", "seq", "n"), _reported
)
"""Denials and alerts, and the newest row."""
