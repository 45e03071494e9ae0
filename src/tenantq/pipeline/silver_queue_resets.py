"""Silver ``queue_resets``: the moments from which on a queue holds nothing: purged, dropped, or gone with its tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tenantq.pipeline.schemas import RESETS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def queue_resets(rows: DataFrame) -> DataFrame:
    """Return a row of RESETS for each; a tenant that was deleted has no queue in its row."""
    ended = f.col("op").isin("purge", "drop_queue", "delete_tenant") & (f.col("outcome") == "ok")
    return rows.where(ended).select(*RESETS.names)


def with_resets(rows: DataFrame, resets: DataFrame, queue: str, shard: str = "shard") -> DataFrame:
    """Add a column ``resets``: those of the row's queue and its tenant on the row's shard, in order; null where there are none.

    A tenant may have been on another shard before, whose records have numbers of their own. There are few resets, so they are put in
    order first and then broadcast: rows are many.
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
