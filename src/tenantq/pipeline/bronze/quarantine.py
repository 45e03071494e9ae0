"""Bronze ``quarantine``: segments, records and rows that were not processed, each with the reason."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.bronze.rows import RowRules, row_fault
from tenantq.pipeline.bronze.segments import chain_breaks
from tenantq.pipeline.schemas import LONG, TEXT, table_columns

QUARANTINE: Final = table_columns(
    reason=TEXT, file=TEXT, shard=TEXT, first_seq=LONG, last_seq=LONG, count=LONG, details=TEXT
)


_ROW_REASONS: Final = ("missing_value", "unknown_op", "negative_value", "future_timestamp")


def quarantine(segments: DataFrame, orphans: DataFrame, faults: DataFrame, known: DataFrame | None) -> DataFrame:
    """Return rows of QUARANTINE about all segments and rows.

    ``orphans`` are segments without a manifest, ``faults`` the row faults found in this run. Row faults of earlier runs are
    kept from the ``known`` rows, if any. Everything else follows from the verified ``segments``.
    """
    refused = segments.where(f.col("reason") != "").select(
        "reason", "file", "shard", "first_seq", "last_seq", f.col("rows").alias("count"), "details"
    )
    found = refused.unionByName(chain_breaks(segments)).unionByName(orphans).unionByName(faults)
    if known is not None:
        found = found.unionByName(known.where(f.col("reason").isin(*_ROW_REASONS)))
    return found.dropDuplicates(["reason", "shard", "first_seq", "file", "details"])


def row_faults(rows: DataFrame, rules: RowRules) -> DataFrame:
    """Return the rows that ``bronze`` leaves out, as rows of QUARANTINE: one per ``file`` and reason, with a count."""
    bad = rows.withColumn("reason", row_fault(rules)).where(f.col("reason") != "")
    grouped = bad.groupBy("reason", "file", "shard").agg(
        f.min("seq").alias("first_seq"),
        f.max("seq").alias("last_seq"),
        f.count("*").alias("count"),
        f.concat_ws(", ", f.sort_array(f.collect_set(f.substring("op", 1, 40)))).alias("details"),
    )
    return grouped.select(*QUARANTINE.names)
