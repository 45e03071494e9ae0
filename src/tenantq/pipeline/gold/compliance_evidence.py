"""Evidence for controls, as rows of the compliance tables: which ops occurred, and what verifying the journal found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.gold.exclude_probe_tenants import exclude_probe_tenants
from tenantq.pipeline.schemas import COMPLIANCE

Controls = Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]]  # control -> subject, ops, outcomes


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


def compliance(ops: DataFrame, controls: Controls, *more: DataFrame) -> DataFrame:
    """Return the evidence of all ``controls`` from ``ops`` (ops_daily), and ``more`` evidence, about customers."""
    found = [op_evidence(ops, control, *rest) for control, rest in controls.items()]
    return exclude_probe_tenants(reduce(DataFrame.unionByName, [*found, *more]))


def evidence_rows(found: DataFrame, control: str, title: str, status: Column | None = None) -> DataFrame:
    """Shape evidence as rows of COMPLIANCE."""
    rows = found.withColumn("control", f.lit(control)).withColumn("title", f.lit(title))
    if status is not None:
        rows = rows.withColumn("status", status)
    return rows.select(*COMPLIANCE.names)


def op_evidence(
    ops: DataFrame, control: str, title: str, names: tuple[str, ...], outcomes: tuple[str, ...]
) -> DataFrame:
    """Return the evidence for one control: how often each op occurred."""
    wanted = f.col("outcome").isin(*outcomes)
    if names != ("*",):
        wanted &= f.col("op").isin(*names)
    grouped = ops.where(wanted).groupBy("date", "tenant", f.concat_ws(" ", "op", "outcome").alias("evidence"))
    return evidence_rows(grouped.agg(f.sum("calls").alias("count")), control, title, f.lit("pass"))
