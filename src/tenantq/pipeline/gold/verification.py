"""What the verification of the journal says, as evidence: it stands under every compliance table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tenantq.pipeline.schemas import COMPLIANCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def verification(dates: DataFrame, segments: DataFrame, quarantine: DataFrame, control: str, title: str) -> DataFrame:
    """Return rows of COMPLIANCE on each of ``dates``: how much of the journal was verified, and what was not well."""
    signed = f.when(f.col("signed"), "with signatures").otherwise("without signatures: no public key was given")
    good = segments.where(f.col("reason") == "").groupBy(
        f.concat(f.lit("segments verified against manifest, hash chain and records, "), signed).alias("evidence")
    )
    passed = good.agg(f.count("*").alias("count")).withColumn("status", f.lit("pass"))
    bad = quarantine.groupBy(f.concat(f.lit("quarantined: "), f.col("reason")).alias("evidence"))
    failed = bad.agg(f.sum("count").alias("count")).withColumn("status", f.lit("fail"))
    both = passed.unionByName(failed)
    return evidence_rows(both.withColumn("tenant", f.lit("")).crossJoin(f.broadcast(dates)), control, title)


def evidence_rows(found: DataFrame, control: str, title: str, status: Column | None = None) -> DataFrame:
    """Shape evidence as rows of COMPLIANCE."""
    rows = found.withColumn("control", f.lit(control)).withColumn("title", f.lit(title))
    if status is not None:
        rows = rows.withColumn("status", status)
    return rows.select(*COMPLIANCE.names)
