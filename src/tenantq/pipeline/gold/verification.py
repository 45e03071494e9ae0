"""The result of verifying the journal, as evidence in every compliance table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import COMPLIANCE

if TYPE_CHECKING:
    from collections.abc import Sequence


def verification(
    ops: DataFrame, segments: DataFrame, quarantine: DataFrame, control: str, title: str, dates: Sequence[str] = ()
) -> DataFrame:
    """Return rows of COMPLIANCE for the days of ``ops``: how many segments passed verification, and what was quarantined.

    ``dates`` are all days of the lake; without them, those of ``ops``. Segments of other days count for the newest one.
    """
    known = sorted(dates) or sorted(row[0] for row in ops.select("date").distinct().collect())
    day = f.regexp_extract("file", r"^date=([0-9]{4}-[0-9]{2}-[0-9]{2})/", 1)
    day = f.when(day.isin(*known), day).otherwise(f.lit(known[-1] if known else ""))
    signed = f.when(f.col("signed"), "with signatures").otherwise("without signatures: no public key was given")
    good = segments.where(f.col("reason") == "").groupBy(
        day.alias("date"),
        f.concat(f.lit("segments verified against manifest, hash chain and records, "), signed).alias("evidence"),
    )
    passed = good.agg(f.count("*").alias("count")).withColumn("status", f.lit("pass"))
    bad = quarantine.groupBy(day.alias("date"), f.concat(f.lit("quarantined: "), f.col("reason")).alias("evidence"))
    failed = bad.agg(f.sum("count").alias("count")).withColumn("status", f.lit("fail"))
    both = passed.unionByName(failed).join(f.broadcast(ops.select("date").distinct()), "date", "left_semi")
    return evidence_rows(both.withColumn("tenant", f.lit("")), control, title)


def evidence_rows(found: DataFrame, control: str, title: str, status: Column | None = None) -> DataFrame:
    """Shape evidence as rows of COMPLIANCE."""
    rows = found.withColumn("control", f.lit(control)).withColumn("title", f.lit(title))
    if status is not None:
        rows = rows.withColumn("status", status)
    return rows.select(*COMPLIANCE.names)
