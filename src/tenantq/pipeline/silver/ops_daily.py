"""Silver ``ops_daily``: the number of operations by tenant, operation, outcome and day."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import OPS_DAILY


def ops_daily(rows: DataFrame) -> DataFrame:
    """Return calls by tenant, op and outcome."""
    grouped = rows.groupBy("tenant", "op", "outcome", "date").agg(
        f.sum("count").alias("calls"), f.count("*").alias("rows"), f.countDistinct("principal").alias("principals")
    )
    return grouped.select(*OPS_DAILY.names)
