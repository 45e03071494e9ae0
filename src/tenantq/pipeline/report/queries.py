"""The queries of reports, on Spark.

Every section is grouped by its subject, a tenant or the platform, so a tenant's data are rows of that tenant by construction.
The driver holds one subject at a time. Lists are bounded, and what is left out is counted.
"""

from collections.abc import Callable, Iterator
from functools import cache, reduce
from itertools import groupby
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.report.data import Period, ReportData, ReportRow

Sections = list[tuple[str, DataFrame, tuple[str, ...]]]  # name, rows, columns that order them

PLATFORM: Final = ""
"""The subject of the platform's own data. No tenant has this name."""
LEADERS_MAX: Final = 20
ANOMALIES_MAX: Final = 40
NEIGHBOURS: Final = 10
"""Tenants that used most, and as many that waited most."""
_SUMS: Final = (
    "operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "refused", "throttled", "denied",
)  # fmt: skip
_USAGE_LEVELS: Final = ("bytes_stored", "peak_backlog")
_SERVICE_SUMS: Final = ("deliveries", "acked", "slow", "dead", "expired")
_SERVICE_WORST: Final = ("wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "process_p99_ms", "oldest_age_ms", "target")
_VERIFICATION: Final = "PI1.4"
_TIME: Final = "yyyy-MM-dd HH:mm:ss"


def report_data(spark: SparkSession, lake: Lake, period: Period, tenant: str | None = None) -> Iterator[ReportData]:
    """Yield the data of each tenant, in no order, and of the platform; or of one tenant only."""

    @cache
    def platform(name: str) -> DataFrame:
        return lake.view(spark, name, period.holds).withColumn("subject", f.lit(PLATFORM))

    @cache
    def tenants(name: str) -> DataFrame:
        wanted = f.col("tenant") != "" if tenant is None else f.col("tenant") == tenant
        return lake.view(spark, name, period.holds).where(wanted).withColumn("subject", f.col("tenant"))

    def billed(table: Callable[[str], DataFrame]) -> DataFrame:
        return _billed(table("invoice_lines"), table("invoice_corrections"), sorted(lake.state().approvals))

    sections: Sections = [
        *_common(tenants, "queue", period),
        ("invoice", _invoice(billed(tenants)), ("period", "item")),
        ("growth", tenants("tenant_growth"), ("metric", "date")),
    ]
    if tenant is None:
        sections += [
            *_common(platform, "tenant", period),
            ("neighbours", _neighbours(platform("usage_hourly"), platform("slo_daily")), ("place",)),
            ("invoice", _invoice_sums(billed(platform)), ("period", "item")),
            ("bills", _bills(billed(platform)), ("period", "currency", "place")),
            ("growth", _quotas_ahead(platform("tenant_growth")), ("place",)),
        ]
    yield from _by_subject(sections)


def verification(spark: SparkSession, lake: Lake, period: Period) -> list[ReportRow]:
    """Return the newest evidence in the period about the journal as a whole. It names no tenant."""
    rows = lake.view(spark, "compliance_soc2", period.holds)
    rows = rows.where((f.col("control") == _VERIFICATION) & _is_of_journal())
    found = [row.asDict() for row in rows.orderBy("date", "evidence").collect()]
    return [one for one in found if one["date"] == found[-1]["date"]]


def _common(table: Callable[[str], DataFrame], item: str, period: Period) -> Sections:
    """Return the sections that reports of tenants and of the platform have in common."""
    usage, service, odd = table("usage_hourly"), table("slo_daily"), table("anomalies")
    return [
        ("usage", _usage_days(usage), ("date",)),
        *([("usage_hours", _usage_hours(usage), ("date", "hour"))] if period.is_short else []),
        ("leaders", _leaders(usage, item), ("place",)),
        ("service_days", _grouped(service, ("date",), _SERVICE_SUMS, _SERVICE_WORST), ("date",)),
        ("service_queues", _service_queues(service), ("place",)),
        ("anomalies", _anomalies(odd), ("place",)),
        ("seen", odd.groupBy("subject", "severity").agg(f.count("*").alias("count")), ("severity",)),
        ("evidence", _evidence(table), ("framework", "control", "title", "evidence", "status")),
    ]


def _by_subject(sections: Sections) -> Iterator[ReportData]:
    """Collect the sections of each subject. One shuffle brings all rows of a subject together."""
    parts = [
        rows.select(
            "subject",
            f.lit(section).alias("section"),
            f.concat_ws("\0", *[_sortable(rows, name) for name in order]).alias("place_in_section"),
            f.to_json(
                f.struct(*[name for name in rows.columns if name not in {"subject", "place"}]),
                {"ignoreNullFields": "false"},
            ).alias("row"),
        )
        for section, rows, order in sections
    ]
    whole = reduce(lambda one, other: one.unionByName(other), parts)
    ordered = whole.repartition("subject").sortWithinPartitions("subject", "section", "place_in_section", "row")
    for subject, rows in groupby(ordered.toLocalIterator(), key=lambda row: str(row["subject"])):
        data = ReportData(subject)
        for row in rows:
            data.add(row["section"], row["row"])
        yield data


def _sortable(rows: DataFrame, name: str) -> Column:
    """Return a column as text that sorts numbers in their order."""
    return f.format_string("%09d", f.col(name)) if dict(rows.dtypes)[name] in {"int", "bigint"} else f.col(name)


# ---- sections ----


def _grouped(rows: DataFrame, keys: tuple[str, ...], sums: tuple[str, ...], most: tuple[str, ...] = ()) -> DataFrame:
    """Return sums and maxima by subject and keys."""
    columns = [*[f.sum(name).alias(name) for name in sums], *[f.max(name).alias(name) for name in most]]
    return rows.groupBy("subject", *keys).agg(*columns)


def _usage_hours(usage: DataFrame) -> DataFrame:
    hours = _grouped(usage, ("date", "hour"), (*_SUMS, *_USAGE_LEVELS, "byte_hours"))
    return hours.withColumn("byte_hours", f.col("byte_hours").cast("decimal(38,6)"))


def _usage_days(usage: DataFrame) -> DataFrame:
    days = _grouped(_usage_hours(usage), ("date",), (*_SUMS, "byte_hours"), _USAGE_LEVELS)
    return days.withColumn("byte_hours", f.col("byte_hours").cast("string"))


def _neighbours(usage: DataFrame, slo: DataFrame) -> DataFrame:
    """Return the tenants that used most and those that waited most, each with its use and its waits."""
    used = _grouped(usage, ("tenant",), ("operations", "throttled"), ("peak_backlog",))
    waited = _grouped(slo, ("tenant",), ("deliveries", "slow"), ("wait_p95_ms",))
    both = (
        used.join(waited, ["subject", "tenant"], "left").where(f.col("tenant") != "").fillna(0, ["deliveries", "slow"])
    )
    ranked = both.withColumns(
        {
            "place": _rank(f.desc("operations"), "tenant"),
            "patience": _rank(f.desc("slow"), f.desc_nulls_last("wait_p95_ms"), "tenant"),
        }
    )
    return ranked.where((f.col("place") <= NEIGHBOURS) | (f.col("patience") <= NEIGHBOURS)).drop("patience")


def _leaders(usage: DataFrame, item: str) -> DataFrame:
    """Return the queues or tenants with most operations; the last row sums up the rest."""
    peaks = ("peak_backlog", "peak_in_flight")
    hours = _grouped(usage.withColumn("name", f.col(item)), ("name", "date", "hour"), (*_SUMS, *peaks))
    whole = _grouped(hours, ("name",), _SUMS, peaks)
    return _folded(whole.withColumn("place", _rank(f.desc("operations"), "name")), ("name",), _SUMS, peaks)


def _service_queues(slo: DataFrame) -> DataFrame:
    """Return the queues with the worst service; the last row sums up the rest."""
    names = ("tenant", "queue")
    whole = _grouped(slo, names, _SERVICE_SUMS, _SERVICE_WORST)
    bad = f.col("slow") + f.col("dead") + f.col("expired")
    total = f.greatest(f.col("deliveries") + f.col("dead") + f.col("expired"), f.lit(1))
    ranked = whole.withColumn("place", _rank(f.desc(bad / total), f.desc("deliveries"), *names))
    return _folded(ranked, names, _SERVICE_SUMS, _SERVICE_WORST)


def _billed(lines: DataFrame, corrections: DataFrame, approved: list[str]) -> DataFrame:
    """Return invoice lines, and approved corrections as lines of kind ``correction``, as exports have them."""
    is_approved = (f.col("status") == "approved") | f.col("line").isin(approved)
    added = corrections.where(is_approved).withColumns(
        {
            "kind": f.lit("correction"),
            "unit": f.lit(None).cast(lines.schema["unit"].dataType),
            "details": f.concat(f.lit("corrects "), "corrects"),
        }
    )
    return lines.unionByName(added.select(*lines.columns))


def _invoice(lines: DataFrame) -> DataFrame:
    return lines.withColumns({name: f.col(name).cast("string") for name in ("quantity", "unit", "amount")})


def _invoice_sums(lines: DataFrame) -> DataFrame:
    """Return the lines of all tenants added up by item; credits are one line."""
    item = f.when(f.col("kind") == "credit", f.lit("Credits")).otherwise(f.col("item")).alias("item")
    summed = lines.groupBy("subject", "period", item, "kind", "metric", "unit", "currency").agg(
        f.sum("quantity").cast("decimal(38,10)").alias("quantity"),
        f.sum("amount").cast("decimal(38,2)").alias("amount"),
        f.concat_ws(" ", f.count("*").cast("string"), f.when(f.count("*") == 1, "line").otherwise("lines")).alias(
            "details"
        ),
    )
    return _invoice(summed)


def _bills(lines: DataFrame) -> DataFrame:
    """Return the tenants that owe most in each month; the last row of a month sums up the rest."""
    keys = ("period", "currency")
    owed = _grouped(lines, (*keys, "tenant"), ("amount",))
    window = Window.partitionBy("subject", *keys).orderBy(f.desc("amount"), "tenant")
    folded = _folded(owed.withColumn("place", f.row_number().over(window)), ("tenant",), ("amount",), keys=keys)
    return folded.withColumn("amount", f.col("amount").cast("decimal(38,2)").cast("string"))


def _anomalies(odd: DataFrame) -> DataFrame:
    severity = f.when(f.col("severity") == "high", 0).when(f.col("severity") == "medium", 1).otherwise(2)
    place = _rank(severity, f.desc("date"), "kind", "tenant", "queue", "principal", "first_at", "details")
    worst = odd.withColumn("place", place).where(f.col("place") <= ANOMALIES_MAX)
    return worst.withColumns({name: f.date_format(name, _TIME) for name in ("first_at", "last_at")})


def _quotas_ahead(growth: DataFrame) -> DataFrame:
    """Return the quotas that tenants will reach first, by the newest day of each tenant."""
    newest = Window.partitionBy("tenant", "metric").orderBy(f.desc("date"))
    last = growth.withColumn("age", f.row_number().over(newest)).where("age = 1 and quota_hit_on is not null")
    return last.withColumn("place", _rank("quota_hit_on", "tenant", "metric")).where(f.col("place") <= LEADERS_MAX)


def _evidence(table: Callable[[str], DataFrame]) -> DataFrame:
    """Return evidence by control, without that about the journal as a whole (see ``verification``)."""
    whole = (
        table("compliance_soc2").withColumn("framework", f.lit("SOC 2"))
        .unionByName(table("compliance_gdpr_art30").withColumn("framework", f.lit("GDPR Art. 30")))
    )  # fmt: skip
    return whole.where(~_is_of_journal()).groupBy(
        "subject", "framework", "control", "title", "evidence", "status"
    ).agg(f.sum("count").alias("count"), f.min("date").alias("first"), f.max("date").alias("last"))  # fmt: skip


def _is_of_journal() -> Column:
    """Whether evidence is what verifying the journal found. Results of self-checks are not."""
    return (f.col("tenant") == "") & f.col("evidence").rlike("^(segments verified|quarantined: )")


def _rank(*order: Column | str) -> Column:
    return f.row_number().over(Window.partitionBy("subject").orderBy(*order))


def _folded(
    ranked: DataFrame, names: tuple[str, ...], sums: tuple[str, ...], most: tuple[str, ...] = (), keys: tuple[str, ...] = ()
) -> DataFrame:  # fmt: skip
    """Combine the rows beyond the bound into one without a name, which says in ``others`` how many they are."""
    alone = f.col("place") <= LEADERS_MAX
    folded = ranked.withColumns(
        {
            **{name: f.when(alone, f.col(name)).otherwise(f.lit("")) for name in names},
            "others": f.when(alone, f.lit(0)).otherwise(f.lit(1)),
            "place": f.least("place", f.lit(LEADERS_MAX + 1)),
        }
    )
    return _grouped(folded, (*keys, "place", *names), (*sums, "others"), most)
