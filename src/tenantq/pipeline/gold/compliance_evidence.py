"""Rows of the compliance tables: results of controls, what verifying the journal found, and records of activity.

Servers evaluate the controls and journal the results. Rows with the status ``recorded`` count operations and decide nothing.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.domain.compliance import CONTROLS
from tenantq.pipeline.arrow_columns import Vocabulary
from tenantq.pipeline.gold.exclude_probe_tenants import exclude_probe_tenants
from tenantq.pipeline.reduction import Reduction, few_rows
from tenantq.pipeline.schemas import LONG, TEXT, table_columns

COMPLIANCE: Final = table_columns(
    control=TEXT, title=TEXT, tenant=TEXT, evidence=TEXT, count=LONG, status=TEXT, date=TEXT
)


RECORDED: Final = "recorded"
_RESULT: Final = "status STRING, passed BIGINT, failed BIGINT, threshold STRING, text STRING"
Activities = Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]]  # control -> subject, ops, outcomes


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


def _evaluated(rows: pa.Table) -> list[pa.Table]:
    ops, outcomes = Vocabulary(rows["op"]), Vocabulary(rows["outcome"])
    wanted = ops.marked(ops.ranks[0], ("compliance",)) & outcomes.marked(outcomes.ranks[0], ("ok", "failed"))
    return few_rows(rows, wanted, EVALUATIONS.columns)


EVALUATIONS: Final = Reduction(("tenant", "shard", "ts", "seq", "n", "op", "outcome", "details"), _evaluated)
"""The rows of the journal in which servers recorded the results of controls."""


def control_results(rows: DataFrame, standard: Literal["soc2", "gdpr"]) -> DataFrame:
    """Return rows of COMPLIANCE from ``rows`` (see EVALUATIONS): the last result of each control on each day."""
    results = rows.select(
        "date", "tenant", "shard", f.struct("ts", "seq", "n").alias("place"),
        f.explode(f.from_json("details", f"MAP<STRING, STRUCT<{_RESULT}>>")).alias("name", "result"),
    )  # fmt: skip
    last = results.groupBy("date", "tenant", "shard", "name").agg(f.max_by("result", "place").alias("result"))
    by_control = last.groupBy("date", "tenant", "name").agg(
        f.sum("result.failed").alias("failed"),
        f.sum(f.col("result.passed") + f.col("result.failed")).alias("count"),
        f.max_by("result", f.struct("result.failed", "shard")).alias("worst"),
    )
    failed = f.concat_ws(" ", "failed", f.lit("of"), "count", f.lit("failed, such as"), "worst.text")
    status = f.when(f.col("failed") > 0, "fail").when(f.col("count") > 0, "pass").otherwise("not_applicable")
    said = f.when(f.col("failed") > 0, failed).otherwise(f.col("worst.threshold"))
    shown = by_control.withColumn("evidence", f.concat_ws(": ", "name", said)).withColumn("status", status)
    kinds = {name: (getattr(kind, standard), kind.title) for name, kind in CONTROLS.items() if getattr(kind, standard)}
    codes, titles = ({name: kind[place] for name, kind in kinds.items()} for place in (0, 1))
    return (
        shown.where(f.col("name").isin(*kinds))
        .withColumn("control", _looked_up(codes)).withColumn("title", _looked_up(titles))
        .select(*COMPLIANCE.names)
    )  # fmt: skip


def _looked_up(texts: Mapping[str, str]) -> Column:
    return f.create_map(*[f.lit(one) for pair in texts.items() for one in pair])[f.col("name")]


def compliance(ops: DataFrame, activities: Activities, *more: DataFrame) -> DataFrame:
    """Return records of ``activities`` from ``ops`` (ops_daily), and ``more`` rows, about customers."""
    found = [op_records(ops, control, *rest) for control, rest in activities.items()]
    return exclude_probe_tenants(reduce(DataFrame.unionByName, [*found, *more]))


def evidence_rows(found: DataFrame, control: str, title: str, status: Column | None = None) -> DataFrame:
    """Shape evidence as rows of COMPLIANCE."""
    rows = found.withColumn("control", f.lit(control)).withColumn("title", f.lit(title))
    if status is not None:
        rows = rows.withColumn("status", status)
    return rows.select(*COMPLIANCE.names)


def op_records(
    ops: DataFrame, control: str, title: str, names: tuple[str, ...], outcomes: tuple[str, ...]
) -> DataFrame:
    """Return how often each op occurred."""
    wanted = f.col("outcome").isin(*outcomes)
    if names != ("*",):
        wanted &= f.col("op").isin(*names)
    grouped = ops.where(wanted).groupBy("date", "tenant", f.concat_ws(" ", "op", "outcome").alias("evidence"))
    return evidence_rows(grouped.agg(f.sum("calls").alias("count")), control, title, f.lit(RECORDED))
