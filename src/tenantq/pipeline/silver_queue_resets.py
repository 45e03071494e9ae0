"""Silver ``queue_resets``: the moments from which on a queue holds nothing: purged, dropped, or gone with its tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tenantq.pipeline.schemas import RESETS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def queue_resets(rows: DataFrame) -> DataFrame:
    """Return a row of RESETS for each; a tenant that was deleted has no queue in its row."""
    ended = f.col("op").isin("purge", "drop_queue", "delete_tenant") & (f.col("outcome") == "ok")
    return rows.where(ended).select(*RESETS.names)


def with_resets(rows: DataFrame, resets: DataFrame, queue: str) -> DataFrame:
    """Add a column ``resets``: those of the row's queue and its tenant, in order. There are few, so they are broadcast."""
    place = f.struct("seq", "n", "ts", "op").alias("place")
    of_queue = resets.where(f.col("queue") != "").groupBy("tenant", f.col("queue").alias(queue))
    of_tenant = resets.where(f.col("queue") == "").groupBy("tenant")
    return (
        rows.join(f.broadcast(of_queue.agg(f.collect_list(place).alias("_of_queue"))), ["tenant", queue], "left")
        .join(f.broadcast(of_tenant.agg(f.collect_list(place).alias("_of_tenant"))), "tenant", "left")
        .withColumn("resets", f.array_sort(f.concat(_some("_of_queue"), _some("_of_tenant"))))
        .drop("_of_queue", "_of_tenant")
    )


def _some(column: str) -> Column:
    return f.coalesce(f.col(column), f.from_json(f.lit("[]"), "array<struct<seq:bigint,n:int,ts:timestamp,op:string>>"))
