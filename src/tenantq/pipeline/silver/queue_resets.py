"""Silver ``queue_resets``: when queues became empty by a purge, a drop or the deletion of their tenant."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import QUEUE_RESETS

RESETS: Final = ("purge", "drop_queue", "delete_tenant")
"""Ops that empty a queue, or all queues of a tenant."""


def is_reset() -> Column:
    """Select the journal rows that empty a queue, or all queues of a tenant."""
    return f.col("op").isin(*RESETS) & (f.col("outcome") == "ok")


def queue_resets(rows: DataFrame) -> DataFrame:
    """Return a row of QUEUE_RESETS per reset. A deleted tenant's row has no queue."""
    return rows.where(is_reset()).select(*QUEUE_RESETS.names)


def with_resets(rows: DataFrame, resets: DataFrame, queue: str, shard: str = "shard") -> DataFrame:
    """Add a column ``resets``: the resets of the row's queue and tenant on the row's shard, in order, or null.

    Only resets of the same shard count, because record numbers of different shards cannot be compared. Resets are few, so
    they are sorted first and then broadcast to the rows.
    """
    resets = resets.withColumnRenamed("shard", shard)
    places = f.collect_list(f.struct("seq", "n", "ts", "op"))
    of_tenant = (
        resets.where(f.col("queue") == "").groupBy(shard, "tenant").agg(f.array_sort(places).alias("_of_tenant"))
    )
    of_queue = resets.where(f.col("queue") != "").groupBy(shard, "tenant", f.col("queue").alias(queue))
    both = of_queue.agg(places.alias("_own")).join(f.broadcast(of_tenant), [shard, "tenant"], "left")
    all_of = f.when(f.col("_of_tenant").isNull(), f.col("_own")).otherwise(f.concat("_own", "_of_tenant"))
    both = both.select(shard, "tenant", queue, f.array_sort(all_of).alias("_of_queue"))
    return (
        rows.join(f.broadcast(both), [shard, "tenant", queue], "left")
        .join(f.broadcast(of_tenant), [shard, "tenant"], "left")
        .withColumn("resets", f.coalesce("_of_queue", "_of_tenant"))
        .drop("_of_queue", "_of_tenant")
    )
