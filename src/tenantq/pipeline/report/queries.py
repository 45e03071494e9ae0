"""From the lake's tables to the facts of reports, on Spark.

Every section is grouped by its subject: the tenant, or nothing for the platform. So a tenant's facts are rows of that
tenant by construction. The driver holds one subject at a time; lists are cut to a bound, and what is cut off is counted.
"""

from __future__ import annotations

from functools import cache, reduce
from itertools import groupby
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from tenantq.pipeline.report.sections import Facts, Period, Verified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column, DataFrame, SparkSession

    from tenantq.pipeline.lake.lake import Lake

    Sections = list[tuple[str, DataFrame, tuple[str, ...]]]  # name, rows, columns that order them

PLATFORM: Final = ""
"""The subject of the platform's own facts: no tenant has this name."""
LEADERS_MAX: Final = 20
ANOMALIES_MAX: Final = 40
_SUMS: Final = (
    "operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "refused", "throttled", "denied",
)  # fmt: skip
_VERIFICATION: Final = "PI1.4"
_MOMENT: Final = "yyyy-MM-dd HH:mm:ss"


def gathered(spark: SparkSession, lake: Lake, period: Period, tenant: str | None = None) -> Iterator[Facts]:
    """Yield the facts of each tenant, in no order, and those of the platform; or of one tenant alone."""

    @cache
    def table(name: str, *, of_tenants: bool) -> DataFrame:
        rows = lake.view(spark, name, period.bills if name == "invoice_lines" else period.holds)
        if not of_tenants:
            return rows.withColumn("subject", f.lit(PLATFORM))
        rows = rows.where(f.col("tenant") != "") if tenant is None else rows.where(f.col("tenant") == tenant)
        return rows.withColumn("subject", f.col("tenant"))

    def own(name: str) -> DataFrame:
        return table(name, of_tenants=True)

    def whole(name: str) -> DataFrame:
        return table(name, of_tenants=False)

    sections: Sections = [
        *_shared(own, "queue"),
        ("invoice", _invoice(own("invoice_lines")), ("period", "item")),
        ("growth", _growth(own("tenant_growth")), ("metric", "date")),
    ]
    if tenant is None:
        sections += [
            *_shared(whole, "tenant"),
            ("invoice", _invoice_sums(whole("invoice_lines")), ("period", "item")),
            ("bills", _bills(whole("invoice_lines")), ("period", "currency", "place")),
            ("growth", _quotas_ahead(whole("tenant_growth")), ("place",)),
        ]
    yield from _by_subject(sections)


def verification(spark: SparkSession, lake: Lake, period: Period) -> list[Verified]:
    """Return what the newest evidence in the period says of the journal as a whole. It names no tenant."""
    rows = lake.view(spark, "compliance_soc2", period.holds)
    rows = rows.where((f.col("control") == _VERIFICATION) & (f.col("tenant") == ""))
    found = [
        Verified(row["evidence"], row["count"], row["status"], row["date"])
        for row in rows.orderBy("date", "evidence").collect()
    ]
    return [one for one in found if one.date == found[-1].date]


def _shared(table: Callable[[str], DataFrame], item: str) -> Sections:
    """Return the sections that tenants and the platform have alike: rows, and the columns that order them."""
    usage, service, odd = table("usage_hourly"), table("slo_daily"), table("anomalies")
    return [
        ("usage", _usage_days(usage), ("date",)),
        ("leaders", _leaders(usage, item), ("place",)),
        ("service_days", _service(service, "date"), ("date",)),
        ("service_queues", _service_queues(service), ("place",)),
        ("anomalies", _anomalies(odd), ("place",)),
        ("seen", odd.groupBy("subject", "severity").agg(f.count("*").alias("count")), ("severity",)),
        ("evidence", _evidence(table), ("framework", "control", "title", "evidence", "status")),
    ]


def _by_subject(sections: Sections) -> Iterator[Facts]:
    """Put the sections of each subject together; one shuffle brings all rows of a subject side by side."""
    parts = [
        rows.select(
            "subject",
            f.lit(section).alias("section"),
            f.concat_ws("\0", *[_sortable(rows, name) for name in order]).alias("place_in_section"),
            f.to_json(f.struct(*[name for name in rows.columns if name not in {"subject", "place"}])).alias("row"),
        )
        for section, rows, order in sections
    ]
    whole = reduce(lambda one, other: one.unionByName(other), parts)
    ordered = whole.repartition("subject").sortWithinPartitions("subject", "section", "place_in_section", "row")
    for subject, rows in groupby(ordered.toLocalIterator(), key=lambda row: str(row["subject"])):
        facts = Facts(subject)
        for row in rows:
            facts.take(row["section"], row["row"])
        yield facts


def _sortable(rows: DataFrame, name: str) -> Column:
    """Return a column as text in which numbers stand in their order."""
    return f.format_string("%09d", f.col(name)) if dict(rows.dtypes)[name] in {"int", "bigint"} else f.col(name)


# ---- sections ----


def _usage_days(usage: DataFrame) -> DataFrame:
    levels = ("bytes_stored", "peak_backlog")
    hours = usage.groupBy("subject", "date", "hour").agg(*[f.sum(name).alias(name) for name in (*_SUMS, *levels)], f.sum("byte_hours").alias("byte_hours"))  # fmt: skip
    return hours.groupBy("subject", "date").agg(
        *[f.sum(name).alias(name) for name in _SUMS],
        *[f.max(name).alias(name) for name in levels],
        f.sum("byte_hours").cast("string").alias("byte_hours"),
    )


def _leaders(usage: DataFrame, item: str) -> DataFrame:
    """Return those that did most; the last row has the rest of them together."""
    peaks = ("peak_backlog", "peak_in_flight")
    hours = usage.groupBy("subject", item, "date", "hour").agg(*[f.sum(name).alias(name) for name in (*_SUMS, *peaks)])
    whole = hours.groupBy("subject", f.col(item).alias("name")).agg(
        *[f.sum(name).alias(name) for name in _SUMS], *[f.max(name).alias(name) for name in peaks]
    )
    ranked = whole.withColumn("place", _rank(f.desc("operations"), "name"))
    return _folded(ranked, ("name",), sums=_SUMS, most=peaks)


def _service(slo: DataFrame, *keys: str) -> DataFrame:
    counts = ("deliveries", "acked", "slow", "dead", "expired")
    worst = ("wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "process_p99_ms", "oldest_age_ms", "target")
    grouped = slo.groupBy("subject", *keys).agg(
        *[f.sum(name).alias(name) for name in counts], *[f.max(name).alias(name) for name in worst]
    )
    for name in ("date", "tenant", "queue"):
        if name not in keys:
            grouped = grouped.withColumn(name, f.lit(""))
    return grouped


def _service_queues(slo: DataFrame) -> DataFrame:
    """Return the queues that were served worst; the last row has the rest of them together."""
    whole = _service(slo, "tenant", "queue")
    bad = f.col("slow") + f.col("dead") + f.col("expired")
    total = f.greatest(f.col("deliveries") + f.col("dead") + f.col("expired"), f.lit(1))
    ranked = whole.withColumn("place", _rank(f.desc(bad / total), f.desc("deliveries"), "tenant", "queue"))
    return _folded(
        ranked, ("tenant", "queue", "date"), sums=("deliveries", "acked", "slow", "dead", "expired"),
        most=("wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "process_p99_ms", "oldest_age_ms", "target"),
    )  # fmt: skip


def _invoice(lines: DataFrame) -> DataFrame:
    return lines.select(
        "subject", "period", "item", "kind", "metric", f.col("quantity").cast("string"), f.col("unit").cast("string"),
        f.col("amount").cast("string"), "currency", "details",
    )  # fmt: skip


def _invoice_sums(lines: DataFrame) -> DataFrame:
    """Return the lines of all tenants added up by item; credits are one line."""
    item = f.when(f.col("kind") == "credit", f.lit("Credits")).otherwise(f.col("item")).alias("item")
    summed = lines.groupBy("subject", "period", item, "kind", "metric", "unit", "currency").agg(
        f.sum("quantity").cast("decimal(38,10)").alias("quantity"),
        f.sum("amount").cast("decimal(38,2)").alias("amount"),
        f.concat(f.count("*").cast("string"), f.lit(" lines")).alias("details"),
    )
    return _invoice(summed)


def _bills(lines: DataFrame) -> DataFrame:
    """Return the tenants that owe most in each month; the last row of a month has the rest of them together."""
    owed = lines.groupBy("subject", "period", "currency", "tenant").agg(f.sum("amount").alias("amount"))
    window = Window.partitionBy("subject", "period", "currency").orderBy(f.desc("amount"), "tenant")
    ranked = owed.withColumn("place", f.row_number().over(window))
    place = f.least("place", f.lit(LEADERS_MAX + 1)).alias("place")
    folded = ranked.groupBy("subject", "period", "currency", place).agg(
        f.sum("amount").cast("decimal(38,2)").cast("string").alias("amount"), f.min("tenant").alias("tenant"),
        f.count("*").alias("others"),
    )  # fmt: skip
    return _named(folded, ("tenant",))


def _anomalies(odd: DataFrame) -> DataFrame:
    severity = f.when(f.col("severity") == "high", 0).when(f.col("severity") == "medium", 1).otherwise(2)
    place = _rank(severity, f.desc("date"), "kind", "tenant", "queue", "principal", "first_at", "details")
    return odd.withColumn("place", place).where(f.col("place") <= ANOMALIES_MAX).select(
        "subject", "place", "date", "kind", "severity", "tenant", "queue", "principal",
        f.date_format("first_at", _MOMENT).alias("first_at"), f.date_format("last_at", _MOMENT).alias("last_at"),
        "observed", "expected", "details", "evidence",
    )  # fmt: skip


def _growth(growth: DataFrame) -> DataFrame:
    return growth.select(
        "subject", "date", "tenant", "metric", "last_value", "mean", "trend_per_day", "days", "quota", "quota_hit_on"
    )


def _quotas_ahead(growth: DataFrame) -> DataFrame:
    """Return, of every tenant's last day, the quotas that will be reached first."""
    newest = Window.partitionBy("tenant", "metric").orderBy(f.desc("date"))
    last = growth.withColumn("age", f.row_number().over(newest)).where("age = 1 and quota_hit_on is not null")
    ranked = last.withColumn("place", _rank("quota_hit_on", "tenant", "metric"))
    wanted = _growth(ranked).columns
    return ranked.where(f.col("place") <= LEADERS_MAX).select(*wanted, "place")


def _evidence(table: Callable[[str], DataFrame]) -> DataFrame:
    """Return evidence by control; what verifies the journal as a whole is told apart (see ``verification``)."""
    whole = (
        table("compliance_soc2").withColumn("framework", f.lit("SOC 2"))
        .unionByName(table("compliance_gdpr_art30").withColumn("framework", f.lit("GDPR Art. 30")))
    )  # fmt: skip
    of_journal = (f.col("tenant") == "") & f.col("evidence").rlike("^(segments verified|quarantined: )")
    return whole.where(~of_journal).groupBy(
        "subject", "framework", "control", "title", "evidence", "status"
    ).agg(f.sum("count").alias("count"), f.min("date").alias("first"), f.max("date").alias("last"))  # fmt: skip


# ---- rank and fold ----


def _rank(*order: Column | str) -> Column:
    return f.row_number().over(Window.partitionBy("subject").orderBy(*order))


def _folded(ranked: DataFrame, names: tuple[str, ...], sums: tuple[str, ...], most: tuple[str, ...]) -> DataFrame:
    """Put everything beyond the bound together in one row, which says how many it stands for."""
    place = f.least("place", f.lit(LEADERS_MAX + 1)).alias("place")
    folded = ranked.groupBy("subject", place).agg(
        *[f.min(name).alias(name) for name in names],
        *[f.sum(name).alias(name) for name in sums],
        *[f.max(name).alias(name) for name in most],
        f.count("*").alias("others"),
    )
    return _named(folded, names)


def _named(folded: DataFrame, names: tuple[str, ...]) -> DataFrame:
    """Name what stands for itself; what stands for many has no name and a number."""
    alone = f.col("place") <= LEADERS_MAX
    for name in names:
        folded = folded.withColumn(name, f.when(alone, f.col(name)).otherwise(f.lit("")))
    return folded.withColumn("others", f.when(alone, f.lit(0)).otherwise(f.col("others")))
