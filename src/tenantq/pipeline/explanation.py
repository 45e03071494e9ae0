"""Explanation of an invoice line: the journal rows it was computed from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tenantq.errors import Invalid, NotFound
from tenantq.pipeline.lake.archive import need_warm
from tenantq.pipeline.silver.places_daily import offset

if TYPE_CHECKING:
    from tenantq.pipeline.lake.lake import Lake


class Explanation(msgspec.Struct):
    """A line, and the journal offsets it was computed from."""

    line: dict[str, Any]
    spans: list[dict[str, Any]]  # by hour, queue and shard: first and last record, rows, quantity
    rows: int
    quantity: str  # in the journal's own unit: calls, messages, bytes


def explain(spark: SparkSession, lake: Lake, line: str) -> Explanation:
    """Return the explanation of ``line`` (period/tenant/item); raise NotFound if there is no such line."""
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
        raise Invalid(f"line {line!r}: is period/tenant/item, such as 2030-01/acme/Operations")
    period, tenant, _ = parts
    lake.settle()
    lines = lake.need(spark, "invoice_lines").where((f.col("period") == period) & (f.col("line") == line)).collect()
    if not lines:
        raise NotFound(f"there is no invoice line {line!r} in this lake", tenant=tenant)
    found = lines[0].asDict()
    need_warm(lake, "bronze", lambda date: date.startswith(period))
    counts, quantity = _metric(found["metric"])
    rows = lake.read(spark, "bronze").where((f.substring("date", 1, 7) == period) & (f.col("tenant") == tenant))
    return found, rows.where(counts).withColumn("quantity", quantity)


def _metric(metric: str) -> tuple[Column, Column]:
    """Return which rows count for a metric, and how much."""
    op, ok = f.col("op"), f.col("outcome") == "ok"
    one = f.lit(1).cast("bigint")
    if metric == "operations":
        return ok & (f.col("principal") != "system"), f.col("count")
    if metric in {"messages_in", "gb_in"}:
        return (op == "add") & ok, one if metric == "messages_in" else f.col("bytes")
    if metric in {"messages_out", "gb_out"}:
        return (op == "poll") & ok, one if metric == "messages_out" else f.col("bytes")
    if metric == "gb_hours":  # every change of what was stored; older messages have their rows in earlier months
        stored = op.isin("add", "ack", "remove", "redrive", "purge", "drop_queue", "delete_tenant") & ok
        moved = (op == "expire") | ((op == "dead_letter") & (f.col("outcome") == "dead"))
        return stored | moved, f.when(op == "add", f.col("bytes")).otherwise(-f.col("bytes"))
    return f.lit(False), one  # a minimum or a credit comes from the price book alone
