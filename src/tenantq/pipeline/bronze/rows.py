"""Bronze ``bronze``: the journal's rows as they were written, each once, by date and hour."""

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import BRONZE, KNOWN_OPS

FUTURE_MS = 86_400_000
"""How far a row may be ahead of the pipeline's clock, because clocks of machines differ."""
NOT_NEGATIVE = ("seq", "n", "bytes", "priority", "attempt", "wait_ms", "process_ms", "count")
_REQUIRED = ("shard", "seq", "n", "ts", "tenant", "queue", "op", "outcome")


class RowRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows enter bronze."""

    now_ms: int | None = None  # None: every row is known to be valid
    unique: bool = False  # segments do not overlap, so no row occurs twice; this saves a shuffle
    deleted_dates: tuple[str, ...] = ()  # days that retention has deleted
    erased: tuple[tuple[str, int], ...] = ()  # tenants, each with the time up to which its rows stay out


def row_fault(rules: RowRules) -> Column:
    """Return the reason why a row cannot be processed, or an empty string."""
    if rules.now_ms is None:
        return f.lit("")
    negative = f.lit(False)
    for name in NOT_NEGATIVE:
        negative |= f.col(name) < 0
    missing = f.lit(False)
    for name in _REQUIRED:
        missing |= f.col(name).isNull()
    deleted = f.date_format("ts", "yyyy-MM-dd").isin(*rules.deleted_dates) if rules.deleted_dates else f.lit(False)
    return (
        f.when(missing, "missing_value")
        .when(~f.col("op").isin(sorted(KNOWN_OPS)), "unknown_op")
        .when(negative, "negative_value")
        .when(f.unix_millis("ts") > rules.now_ms + FUTURE_MS, "future_timestamp")
        .when(deleted, "past_retention")
        .otherwise("")
    )


def bronze(rows: DataFrame, rules: RowRules) -> DataFrame:
    """Return the valid rows, each (shard, seq, n) once, with the date and hour they belong to."""
    valid = rows if rules.now_ms is None else rows.where(row_fault(rules) == "")
    for tenant, until_ms in rules.erased:
        valid = valid.where((f.col("tenant") != tenant) | (f.unix_millis("ts") > until_ms))
    if not rules.unique:
        valid = valid.dropDuplicates(["shard", "seq", "n"])
    return valid.select(
        *BRONZE.names[:-2],
        f.date_format("ts", "yyyy-MM-dd").alias("date"),
        f.date_format("ts", "HH").alias("hour"),
    )
