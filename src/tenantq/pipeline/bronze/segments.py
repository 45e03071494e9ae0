"""Bronze ``segments``: one row per journal segment, with the result of its verification."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from pyspark import SparkContext
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from tenantq.journal.export_target import open_target
from tenantq.journal.record import GENESIS
from tenantq.journal.signing import PublicKey
from tenantq.pipeline.bronze.rows import RowRules
from tenantq.pipeline.bronze.segment_check import Verdict, verdict
from tenantq.pipeline.schemas import BOOLEAN, LONG, TEXT, table_columns

SEGMENTS: Final = table_columns(
    manifest=TEXT, file=TEXT, shard=TEXT, first_seq=LONG, last_seq=LONG, previous_link=TEXT, last_link=TEXT,
    sha256=TEXT, rows=LONG, reason=TEXT, details=TEXT, signed=BOOLEAN,
)  # fmt: skip
"""A segment, with the result of its verification. An empty reason means that it passed."""

_FILES_PER_TASK: Final = 8


def verify(
    context: SparkContext, manifests: Sequence[str], journal: str, public_key: Path | None, rules: RowRules
) -> list[Verdict]:
    """Return the verdict on the segment of each manifest name. Spark workers read the files."""

    def check(names: Iterable[str]) -> Iterator[bytes]:
        return (msgspec.json.encode(found) for found in verdicts(names, journal, public_key, rules))

    tasks = max(1, len(manifests) // _FILES_PER_TASK)
    found = context.parallelize(manifests, tasks).mapPartitions(check).collect()
    return [msgspec.json.decode(one, type=Verdict) for one in found]


def verdicts(manifests: Iterable[str], journal: str, public_key: Path | None, rules: RowRules) -> Iterator[Verdict]:
    """Yield the verdict on the segment of each manifest name, verified in this process."""
    target = open_target(journal)
    key = PublicKey.load(public_key) if public_key is not None else None
    gc.disable()  # records hold no cycles; collecting would take a fifth of the time
    try:
        for name in manifests:
            yield verdict(target, name, key, rules)
    finally:
        gc.enable()


def segments(verified: DataFrame, known: DataFrame | None) -> DataFrame:
    """Return the ``known`` rows, if any, replaced by those ``verified`` in this run where both have a manifest."""
    if known is None:
        return verified
    return known.join(f.broadcast(verified.select("manifest")), "manifest", "left_anti").unionByName(verified)


def chain_breaks(segments: DataFrame) -> DataFrame:
    """Return rows of QUARANTINE where segments of a shard do not follow each other. Overlaps are not a break."""
    good = segments.where(f.col("reason") == "")
    before = Window.partitionBy("shard").orderBy("first_seq", "last_seq").rowsBetween(Window.unboundedPreceding, -1)
    end = f.max(f.struct("last_seq", "last_link")).over(before)
    linked = good.withColumn("end", end).select(
        "*",
        f.coalesce(f.col("end.last_seq"), f.lit(0)).alias("before"),
        f.coalesce(f.col("end.last_link"), f.lit(GENESIS.hex())).alias("link"),
    )
    gap = f.col("first_seq") > f.col("before") + 1
    unlinked = (f.col("first_seq") == f.col("before") + 1) & (f.col("previous_link") != f.col("link"))
    return linked.where(gap | unlinked).select(
        f.when(gap, "missing_records").otherwise("broken_chain").alias("reason"),
        "file",
        "shard",
        f.when(gap, f.col("before") + 1).otherwise(f.col("first_seq")).alias("first_seq"),
        f.when(gap, f.col("first_seq") - 1).otherwise(f.col("last_seq")).alias("last_seq"),
        f.when(gap, f.col("first_seq") - f.col("before") - 1).otherwise(f.lit(0)).alias("count"),
        f.when(gap, "no segment holds these records")
        .otherwise("the segment does not follow the one before it")
        .alias("details"),
    )
