"""Usage of every tenant, from the journal: messages, bytes and how long they waited.

The journal has a row for every change, so the server gets no requests. The same code runs on a cluster.

    pip install 'tenantq[spark]'
    python spark_usage.py tenantq-data/journal
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from tenantq.pipeline.connector import register


def usage(journal: DataFrame) -> DataFrame:
    """Return a row per tenant and queue."""
    return (
        journal.where(F.col("outcome") == "ok")
        .groupBy("tenant", "queue")
        .agg(
            F.count_if(F.col("op") == "add").alias("added"),
            F.count_if(F.col("op") == "ack").alias("finished"),
            F.coalesce(F.sum(F.when(F.col("op") == "add", F.col("bytes"))), F.lit(0)).alias("bytes"),
            F.percentile_approx(F.when(F.col("op") == "poll", F.col("wait_ms")), 0.95).alias("wait_p95_ms"),
        )
        .where("added > 0")
        .orderBy(F.desc("bytes"))
    )


if __name__ == "__main__":
    spark = SparkSession.builder.appName("tenantq usage").getOrCreate()
    register(spark)
    usage(spark.read.format("tenantq").option("journal", sys.argv[1]).load()).show(truncate=False)
    spark.stop()
