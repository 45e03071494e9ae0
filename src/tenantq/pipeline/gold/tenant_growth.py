"""Gold ``tenant_growth``: the trend of each tenant's usage, and when it will reach a quota."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import DOUBLE, LONG, TEXT, table_columns
from tenantq.pipeline.silver.tenant_changes import newest_setting

TENANT_GROWTH: Final = table_columns(
    tenant=TEXT, metric=TEXT, days=LONG, mean=DOUBLE, trend_per_day=DOUBLE, last_value=DOUBLE, quota=LONG,
    quota_hit_on=TEXT, date=TEXT,
)  # fmt: skip

TREND_DAYS: Final = 28
HORIZON_DAYS: Final = 3_650
METRICS: Final = {"messages_per_day": "messages_in", "backlog": "messages_stored", "stored_bytes": "bytes_stored"}
"""Quotas, and the usage column that counts against each."""


def tenant_growth(usage: DataFrame, changes: DataFrame, from_date: str = "") -> DataFrame:
    """Return rows of TENANT_GROWTH since ``from_date``: for each day a line through the last 28 days that have data.

    ``usage`` is usage_hourly. The quotas are in ``changes`` (tenant_changes).
    """
    days = _days(usage)
    number = f.datediff(f.col("date").cast("date"), f.lit("1970-01-01").cast("date"))
    window = Window.partitionBy("tenant", "metric").orderBy("day").rangeBetween(-(TREND_DAYS - 1), 0)
    # Sums over a sorted array give the same floats however the rows were spread over tasks.
    points = f.array_sort(f.collect_list(f.struct("day", "value")).over(window))
    lines = days.withColumn("day", number).withColumn("points", points).where(f.col("date") >= from_date)
    count = f.size("points").cast("double")
    x, y = f.transform("points", lambda one: one["day"] - f.col("day")), f.transform("points", lambda one: one["value"])
    lines = (
        lines.withColumn("mean", _sum(y) / count)
        .withColumn("mean_x", _sum(x) / count)
        .withColumn("sxx", _sum(f.transform(x, lambda one: (one - f.col("mean_x")) * (one - f.col("mean_x")))))
        .withColumn("sxy", _sum(f.transform("points", lambda one: (one["day"] - f.col("day") - f.col("mean_x")) * (one["value"] - f.col("mean")))))
        .withColumn("trend_per_day", f.when(f.col("sxx") > 0, f.col("sxy") / f.col("sxx")).otherwise(f.lit(0.0)))
    )  # fmt: skip
    lines = lines.join(f.broadcast(quotas(changes)), ["tenant", "metric"], "left")
    now = f.col("mean") - f.col("trend_per_day") * f.col("mean_x")
    ahead = f.ceil((f.col("quota") - now) / f.when(f.col("trend_per_day") > 0, f.col("trend_per_day")))
    reached = f.col("value") >= f.col("quota")
    hit = f.when(reached, f.col("date")).when(
        (f.col("quota") > now) & (ahead <= HORIZON_DAYS),
        f.date_format(
            f.date_add(f.col("date").cast("date"), f.least(ahead, f.lit(HORIZON_DAYS)).cast("int")), "yyyy-MM-dd"
        ),
    )
    return lines.select(
        "tenant", "metric", f.size("points").cast("bigint").alias("days"), "mean", "trend_per_day",
        f.col("value").alias("last_value"), "quota", hit.alias("quota_hit_on"), "date",
    ).select(*TENANT_GROWTH.names)  # fmt: skip


def _days(usage: DataFrame) -> DataFrame:
    """Return a value per tenant, metric and day: messages added, and the most stored at the end of an hour."""
    hours = usage.where(f.col("tenant") != "").groupBy("tenant", "date", "hour").agg(
        *[f.sum(column).alias(column) for column in METRICS.values()]
    )  # fmt: skip
    days = hours.groupBy("tenant", "date").agg(
        f.sum("messages_in").cast("double").alias("messages_per_day"),
        f.max("messages_stored").cast("double").alias("backlog"),
        f.max("bytes_stored").cast("double").alias("stored_bytes"),
    )
    return days.unpivot(["tenant", "date"], list(METRICS), "metric", "value")


def quotas(changes: DataFrame) -> DataFrame:
    """Return the quota of each tenant and metric, from the newest change that names it."""
    metrics = f.explode(f.array(*[f.lit(metric) for metric in METRICS]))
    pattern = f.concat(f.lit('"'), f.col("metric"), f.lit('":(null|[0-9]+)'))
    given = f.call_function("regexp_extract", f.col("details"), pattern, f.lit(1))
    last = newest_setting(changes.withColumn("metric", metrics), given, "metric")
    return last.select(
        "tenant", "metric", f.when(f.col("given").rlike("^[0-9]+$"), f.col("given").cast("bigint")).alias("quota")
    )


def _sum(column: Column) -> Column:
    return f.aggregate(column, f.lit(0.0), lambda total, one: total + one)
