"""Silver ``queue_hours``: what happened in a queue in an hour, and how it moved the queue's levels.

Levels (messages stored, bytes, leases) are sums of changes since the queue was last emptied; each time it is emptied
begins an ``epoch``. An hour knows its own changes and how high they rose above its start, so that hours can be computed apart,
late ones anew, and ``usage_hourly`` only has to add them up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import BYTE_MS, QUEUE_HOURS
from tenantq.pipeline.silver_queue_resets import with_resets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TARGET: Final = r"^to ([^:]*)"
_PURGED: Final = r"^([0-9]+) messages"
_MOVES: Final = ("dead_letter", "redrive")
_COUNTS: Final = (
    "operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "acked", "nacked", "lease_expired", "dead",
    "expired", "removed", "healed", "refused", "throttled", "denied",
)  # fmt: skip
_CHANGES: Final = ("messages", "in_flight", "stored")
_LEVELS: Final = ("backlog", "in_flight")
_HOUR_MS: Final = 3_600_000
_SLICE_MS: Final = 300_000
_LIMB: Final = 4_096
"""Byte-milliseconds are added up in two whole numbers, by so many: an hour of petabytes or of a billion rows fits into each."""
_KEY: Final = ("tenant", "queue", "shard", "epoch", "hour_number")


def queue_hours(rows: DataFrame, lives: DataFrame, resets: DataFrame) -> DataFrame:
    """Return rows of QUEUE_HOURS for the hours that ``rows`` (bronze) hold wholly.

    ``lives`` tells which removed messages were leased: the journal's row of a remove does not.
    """
    changes = changes_placed(rows, lives, resets)
    hours = (
        _sums(changes).join(_tops(slices(changes)), list(_KEY), "left").fillna(0, [f"{name}_top" for name in _LEVELS])
    )
    begin = f.timestamp_seconds(f.col("hour_number") * (_HOUR_MS // 1_000))
    hours = hours.withColumnsRenamed(
        {"messages": "messages_net", "stored": "bytes_net", "in_flight": "in_flight_net"}
    ).withColumns({"date": f.date_format(begin, "yyyy-MM-dd"), "hour": f.date_format(begin, "HH")})
    return hours.select(*QUEUE_HOURS.names)


def changes_placed(rows: DataFrame, lives: DataFrame, resets: DataFrame) -> DataFrame:
    """Return what each row counts for and changes, in which epoch of its queue, and the milliseconds until that or the hour ends."""
    changes = _counted(rows).unionByName(_moved_in(rows), allowMissingColumns=True).unionByName(
        _leases_removed(rows, lives), allowMissingColumns=True
    )  # fmt: skip
    placed = with_resets(changes, resets, "queue")
    here = f.struct(f.col("seq"), f.col("n"))
    passed = f.filter("resets", lambda one: f.struct(one["seq"], one["n"]) < here)
    coming = f.get(f.filter("resets", lambda one: f.struct(one["seq"], one["n"]) >= here), f.lit(0))
    emptied = f.col("resets").isNotNull()
    ms = f.unix_millis("ts")
    end_ms = f.least(  # it skips nulls: no reset is coming
        ms - f.pmod(ms, f.lit(_HOUR_MS)) + _HOUR_MS, f.when(emptied, f.unix_millis(coming["ts"]))
    )
    return placed.withColumns(
        {
            "ms": ms,
            "hour_number": f.floor(ms / _HOUR_MS),
            "epoch": f.when(emptied, f.size(passed)).otherwise(f.lit(0)),
            "left_ms": end_ms - ms,
        }
    )


def _sums(changes: DataFrame) -> DataFrame:
    """Add up everything that can be added in any order: each task does most of it alone."""
    stored, left_ms = f.col("stored"), f.col("left_ms")
    low, high = stored.bitwiseAND(f.lit(_LIMB - 1)), f.shiftright("stored", _LIMB.bit_length() - 1)
    sums = changes.groupBy(*_KEY).agg(
        *[f.coalesce(f.sum(name), f.lit(0).cast("bigint")).alias(name) for name in (*_COUNTS, *_CHANGES)],
        f.sum(high * left_ms).alias("_high"),
        f.sum(low * left_ms).alias("_low"),
    )
    wide = "decimal(30,0)"
    return sums.withColumn(
        "byte_ms",
        (f.coalesce(f.col("_high").cast(wide), f.lit(0)) * _LIMB + f.coalesce(f.col("_low").cast(wide), f.lit(0))).cast(BYTE_MS),
    ).drop("_high", "_low")  # fmt: skip


def slices(changes: DataFrame) -> DataFrame:
    """Return how each slice of an hour moved its queue's levels, and how high they rose above its start.

    A round is one moment: what it adds and delivers at once never stood in line. Slices spread one giant queue over tasks.
    """
    key = ("slice", *_KEY)
    zero = f.lit(0).cast("bigint")
    in_flight = f.coalesce(f.col("in_flight"), zero)
    backlog = f.coalesce(f.col("messages"), zero) - in_flight
    rounds = (
        changes.where((f.col("messages") != 0) | (f.col("in_flight") != 0))
        .groupBy(f.floor(f.col("ms") / _SLICE_MS).alias("slice"), *_KEY, "ms", "seq")
        .agg(f.sum(backlog).alias("backlog"), f.sum(in_flight).alias("in_flight"))
    )
    so_far = Window.partitionBy(*key).orderBy("ms", "seq").rowsBetween(Window.unboundedPreceding, 0)
    tops = {f"{name}_top": f.sum(name).over(so_far) for name in _LEVELS}
    sums = [f.sum(name).alias(name) for name in _LEVELS]
    return rounds.withColumns(tops).groupBy(*key).agg(*sums, *_highest())


def _tops(pieces: DataFrame) -> DataFrame:
    """Return the highest level that each hour reached above its start."""
    before = Window.partitionBy(*_KEY).orderBy("slice").rowsBetween(Window.unboundedPreceding, -1)
    for name in _LEVELS:
        start = f.coalesce(f.sum(name).over(before), f.lit(0).cast("bigint"))
        pieces = pieces.withColumn(f"{name}_top", f.col(f"{name}_top") + start)
    return pieces.groupBy(*_KEY).agg(*_highest())


def _highest() -> list[Column]:
    """Return the highest of the levels' rises; where they only fell, the start was highest."""
    return [f.greatest(f.max(f"{name}_top"), f.lit(0)).alias(f"{name}_top") for name in _LEVELS]


def _counted(rows: DataFrame) -> DataFrame:
    """Return each row with what it counts for and how it changes the levels of its own queue."""
    op, outcome, size, calls = f.col("op"), f.col("outcome"), f.col("bytes"), f.col("count")
    ok = outcome == "ok"
    one, none = f.lit(1).cast("bigint"), f.lit(0).cast("bigint")

    def when(condition: Column, value: Column = one) -> Column:
        return f.when(condition, value).otherwise(none)

    gone = (
        (op.isin("ack", "remove", "redrive") & ok)
        | ((op == "expire") & (outcome == "expired"))
        | ((op == "dead_letter") & (outcome == "dead"))
    )
    purged = f.regexp_extract("details", _PURGED, 1)
    purged_count = f.when(purged != "", purged.cast("bigint")).otherwise(none)
    settled = (op.isin("ack", "nack", "release") & ok) | (op == "lease_expired")
    return rows.select(
        "shard", "seq", "n", "ts", "tenant", "queue",
        when(ok & (f.col("principal") != "system"), calls).alias("operations"),
        when((op == "add") & ok).alias("messages_in"),
        when((op == "poll") & ok).alias("messages_out"),
        when((op == "add") & ok, size).alias("bytes_in"),
        when((op == "poll") & ok, size).alias("bytes_out"),
        when((op == "ack") & ok).alias("acked"),
        when((op == "nack") & ok).alias("nacked"),
        when(op == "lease_expired").alias("lease_expired"),
        when((op == "dead_letter") & (outcome == "dead")).alias("dead"),
        when((op == "expire") & (outcome == "expired")).alias("expired"),
        f.when(op.isin("remove", "redrive") & ok, one).when((op == "purge") & ok, purged_count).otherwise(none).alias("removed"),
        when(op == "heal").alias("healed"),
        when(outcome == "refused", calls).alias("refused"),
        when(outcome == "throttled", calls).alias("throttled"),
        when(outcome == "denied", calls).alias("denied"),
        f.when((op == "add") & ok, one).when(gone, -one).otherwise(none).alias("messages"),
        f.when((op == "add") & ok, size).when(gone, -size).otherwise(none).alias("stored"),
        f.when((op == "poll") & ok, one).when(settled, -one).otherwise(none).alias("in_flight"),
    )  # fmt: skip


def _moved_in(rows: DataFrame) -> DataFrame:
    """Return what dead letters and redriven messages add to the queue that they went to."""
    moved = rows.where(f.col("op").isin(*_MOVES) & f.col("outcome").isin("ok", "dead") & (f.col("message_id") != ""))
    return moved.select(
        "shard", "seq", "n", "ts", "tenant",
        f.regexp_extract("details", _TARGET, 1).alias("queue"),
        f.lit(1).cast("bigint").alias("messages"),
        f.col("bytes").alias("stored"),
    )  # fmt: skip


def _leases_removed(rows: DataFrame, lives: DataFrame) -> DataFrame:
    """Return the leases that ended because their message was removed."""
    leased = lives.where((f.col("outcome") == "removed") & f.col("leased_at_end")).select("tenant", "message_id")
    removes = rows.where((f.col("op") == "remove") & (f.col("outcome") == "ok"))
    return removes.join(leased, ["tenant", "message_id"], "left_semi").select(
        "shard", "seq", "n", "ts", "tenant", "queue", f.lit(-1).cast("bigint").alias("in_flight")
    )
