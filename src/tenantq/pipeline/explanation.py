"""Explanation of an invoice line: the journal rows it was computed from."""

from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tenantq.errors import Invalid, NotFound
from tenantq.pipeline.lake.archive import need_warm
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.silver.places_daily import offset
from tenantq.pipeline.silver.queue_changes import change_counts, message_change
from tenantq.pipeline.silver.queue_resets import is_reset


class Explanation(msgspec.Struct):
    """A line, and the journal offsets it was computed from."""

    line: dict[str, Any]
    spans: list[dict[str, Any]]  # by hour, queue and shard: first and last record, rows, quantity
    rows: int
    quantity: str  # in the journal's own unit: calls, messages, bytes


def explain(spark: SparkSession, lake: Lake, line: str) -> Explanation:
    """Return the explanation of ``line`` (period/tenant/item). Raises NotFound if the line does not exist."""
    found, rows = behind(spark, lake, line)
    grouped = rows.groupBy("date", "hour", "queue", "shard").agg(
        f.min("seq").alias("first_seq"), f.max("seq").alias("last_seq"), f.count("*").alias("rows"),
        f.sum("quantity").alias("quantity"),
    )  # fmt: skip
    spans = [row.asDict() for row in grouped.orderBy("date", "hour", "queue", "shard").collect()]
    return Explanation(found, spans, sum(one["rows"] for one in spans), str(sum(one["quantity"] for one in spans)))


def offsets(spark: SparkSession, lake: Lake, line: str) -> list[str]:
    """Return the offset, shard:seq.n, of every row behind a line."""
    rows = behind(spark, lake, line)[1]
    return [row[0] for row in rows.orderBy("shard", "seq", "n").select(offset()).collect()]


def behind(spark: SparkSession, lake: Lake, line: str) -> tuple[dict[str, Any], DataFrame]:
    """Return the line and the bronze rows it was computed from, each with its quantity."""
    parts = line.split("/", 2)  # the name of an item may contain one
    if len(parts) != 3:
        raise Invalid(f"line {line!r}: must be period/tenant/item, such as 2030-01/acme/Operations")
    period, tenant, _ = parts
    lake.settle()
    lines = lake.need(spark, "invoice_lines").where((f.col("period") == period) & (f.col("line") == line)).collect()
    if not lines:
        raise NotFound(f"line {line!r}: the lake has no such invoice line", tenant=tenant)
    found = lines[0].asDict()
    need_warm(lake, "bronze", lambda date: date.startswith(period))
    rows = lake.read(spark, "bronze").where((f.substring("date", 1, 7) == period) & (f.col("tenant") == tenant))
    counted = rows.withColumns(
        {"rows": f.lit(1), "calls": f.col("count"), "asked": f.col("principal") != "system", "purged": f.lit(None)}
    )
    return found, counted.withColumn("quantity", _quantity(found["metric"])).where(f.col("quantity").isNotNull())


def _quantity(metric: str) -> Column:
    """Return how much a journal row counts for a metric, by the rules of queue_hours; null if it does not count."""
    if metric == "gb_hours":  # every change of what was stored; older messages have their rows in earlier months
        emptied = f.when(is_reset(), -f.col("bytes"))
        return f.when(message_change() != 0, message_change() * f.col("bytes")).otherwise(emptied)
    column = {"gb_in": "bytes_in", "gb_out": "bytes_out"}.get(metric, metric)
    return change_counts().get(column, f.lit(None))  # a minimum or a credit comes from the price book alone
