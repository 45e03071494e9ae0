"""Bronze: the journal's rows as they were written, each once. Segments are verified first, then rows are checked."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as f

from tenantq.journal.export_target import open_target
from tenantq.journal.record import GENESIS
from tenantq.journal.signing import PublicKey
from tenantq.pipeline.schemas import BRONZE, KNOWN_OPS, VERDICTS
from tenantq.pipeline.verify_segment import as_batch, verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from tenantq.pipeline.lake_state import Erasure

FUTURE_MS = 86_400_000
"""A row may be this much ahead of the pipeline's clock: clocks of machines differ."""

_VERDICT_SCHEMA = pa.schema(
    [
        pa.field(
            column.name, {"bigint": pa.int64(), "boolean": pa.bool_()}.get(column.dataType.simpleString(), pa.string())
        )
        for column in VERDICTS
    ]
)
_NOT_NEGATIVE = ("seq", "n", "bytes", "priority", "attempt", "wait_ms", "process_ms", "count")


def verified(manifests: DataFrame, journal: str, public_key: Path | None) -> DataFrame:
    """Return a row of VERDICTS for each manifest's name (column ``manifest``). The files are read by the workers."""

    def verify(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = open_target(journal)
        key = PublicKey.load(public_key) if public_key is not None else None
        gc.disable()  # it would only walk over records, which hold no cycles: a fifth of the time
        try:
            for batch in batches:
                for name in batch.column("manifest").to_pylist():
                    yield as_batch([verdict(target, name, key)], _VERDICT_SCHEMA)
        finally:
            gc.enable()

    return manifests.select("manifest").mapInArrow(verify, VERDICTS)


def chained(verdicts: DataFrame) -> DataFrame:
    """Return the places where a shard's segments do not follow each other, as rows of QUARANTINE. Overlaps are no gap."""
    good = verdicts.where(f.col("reason") == "")
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


def fault(now_ms: int, gone: Collection[str] = ()) -> Column:
    """Return why a row cannot be processed, or an empty text. ``gone`` are days that retention has deleted."""
    negative = f.lit(False)
    for name in _NOT_NEGATIVE:
        negative |= f.col(name) < 0
    missing = f.lit(False)
    for name in ("shard", "seq", "n", "ts", "tenant", "queue", "op", "outcome"):
        missing |= f.col(name).isNull()
    known = f.col("op").isin(sorted(KNOWN_OPS))
    return (
        f.when(missing, "missing_value")
        .when(~known, "unknown_op")
        .when(negative, "negative_value")
        .when(f.unix_millis("ts") > now_ms + FUTURE_MS, "future_timestamp")
        .when(f.date_format("ts", "yyyy-MM-dd").isin(*gone) if gone else f.lit(False), "past_retention")
        .otherwise("")
    )


def bronze(
    rows: DataFrame,
    now_ms: int | None,
    *,
    unique: bool = False,
    gone: Collection[str] = (),
    erased: Collection[Erasure] = (),
) -> DataFrame:
    """Return the rows that can be processed, each (shard, seq, n) once, with the date and hour they belong to.

    ``unique``: they are known to be there once, since their segments do not overlap; that saves a shuffle. ``erased``
    tenants do not come back: their rows up to the erasure are left out. Without ``now_ms``, all are known to be processable.
    """
    good = rows if now_ms is None else rows.where(fault(now_ms, gone) == "")
    for one in erased:
        good = good.where((f.col("tenant") != one.tenant) | (f.unix_millis("ts") > one.until_ms))
    if not unique:
        good = good.dropDuplicates(["shard", "seq", "n"])
    return good.select(
        *[column for column in BRONZE.names if column not in {"date", "hour"}],
        f.date_format("ts", "yyyy-MM-dd").alias("date"),
        f.date_format("ts", "HH").alias("hour"),
    )


def rejected(rows: DataFrame, now_ms: int, file: Column, gone: Collection[str] = ()) -> DataFrame:
    """Return what ``bronze`` leaves out as rows of QUARANTINE: one per file and reason, with its count."""
    bad = rows.select("*", file.alias("file"), fault(now_ms, gone).alias("reason")).where(f.col("reason") != "")
    return bad.groupBy("reason", "file", "shard").agg(
        f.min("seq").alias("first_seq"),
        f.max("seq").alias("last_seq"),
        f.count("*").alias("count"),
        f.concat_ws(", ", f.sort_array(f.collect_set(f.substring("op", 1, 40)))).alias("details"),
    ).select("reason", "file", "shard", "first_seq", "last_seq", "count", "details")  # fmt: skip
