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
_MINUTE_MS: Final = 60_000


def queue_hours(rows: DataFrame, lives: DataFrame, resets: DataFrame) -> DataFrame:
    """Return rows of QUEUE_HOURS for the hours that ``rows`` (bronze) hold wholly.

    ``lives`` tells which removed messages were leased: the journal's row of a remove does not.
    """
    counted = _counted(rows)
    changes = counted.unionByName(_moved_in(rows), allowMissingColumns=True).unionByName(
        _leases_removed(rows, lives), allowMissingColumns=True
    )
    for name in (*_COUNTS, *_CHANGES):
        changes = changes.withColumn(name, f.coalesce(f.col(name), f.lit(0).cast("bigint")))
    placed = with_resets(changes, resets, "queue")
    here = f.struct(f.col("seq"), f.col("n"))
    passed = f.filter("resets", lambda one: f.struct(one["seq"], one["n"]) < here)
    coming = f.get(f.filter("resets", lambda one: f.struct(one["seq"], one["n"]) >= here), f.lit(0))
    hour_end = f.date_trunc("hour", "ts") + f.expr("interval 1 hour")
    end = f.least(hour_end, coming["ts"])  # least skips nulls: no reset is coming
    left_ms = (f.unix_millis(end) - f.unix_millis("ts")).cast(BYTE_MS)
    placed = placed.withColumn("epoch", f.size(passed)).withColumn("byte_ms", (f.col("stored") * left_ms).cast(BYTE_MS))
    return _hours(placed)


def _hours(placed: DataFrame) -> DataFrame:
    """Add up rounds, then minutes, then hours, with the highest level each reached above its start.

    A round is one moment: what it adds and delivers at once never stood in line. Minutes spread one giant queue over tasks.
    """
    key = ("tenant", "queue", "shard", "epoch", "date", "hour")
    sums = [f.sum(name).alias(name) for name in (*_COUNTS, *_CHANGES)]
    minute = f.floor(f.unix_millis("ts") / _MINUTE_MS)
    rounds = placed.groupBy(*key, minute.alias("minute"), "ts", "seq").agg(*sums, f.sum("byte_ms").alias("byte_ms"))
    in_minute = Window.partitionBy(*key, "minute").orderBy("ts", "seq")
    rounds = rounds.withColumn("backlog_top", f.sum(_backlog()).over(in_minute)).withColumn(
        "in_flight_top", f.sum("in_flight").over(in_minute)
    )
    tops = [f.max(name).alias(name) for name in ("backlog_top", "in_flight_top")]
    minutes = rounds.groupBy(*key, "minute").agg(*sums, f.sum("byte_ms").alias("byte_ms"), *tops)
    before = Window.partitionBy(*key).orderBy("minute").rowsBetween(Window.unboundedPreceding, -1)
    zero = f.lit(0).cast("bigint")
    minutes = minutes.withColumn(
        "backlog_top", f.col("backlog_top") + f.coalesce(f.sum(_backlog()).over(before), zero)
    ).withColumn("in_flight_top", f.col("in_flight_top") + f.coalesce(f.sum("in_flight").over(before), zero))
    hours = minutes.groupBy(*key).agg(*sums, f.sum("byte_ms").cast(BYTE_MS).alias("byte_ms"), *tops)
    renamed = hours.withColumnsRenamed(
        {"messages": "messages_net", "stored": "bytes_net", "in_flight": "in_flight_net"}
    )
    return renamed.select(*QUEUE_HOURS.names)


def _backlog() -> Column:
    return f.col("messages") - f.col("in_flight")


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
        "shard", "seq", "n", "ts", "tenant", "queue", "date", "hour",
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
        "shard", "seq", "n", "ts", "tenant", "date", "hour",
        f.regexp_extract("details", _TARGET, 1).alias("queue"),
        f.lit(1).cast("bigint").alias("messages"),
        f.col("bytes").alias("stored"),
    )  # fmt: skip


def _leases_removed(rows: DataFrame, lives: DataFrame) -> DataFrame:
    """Return the leases that ended because their message was removed."""
    leased = lives.where((f.col("outcome") == "removed") & f.col("leased_at_end")).select("tenant", "message_id")
    removes = rows.where((f.col("op") == "remove") & (f.col("outcome") == "ok"))
    return removes.join(leased, ["tenant", "message_id"], "left_semi").select(
        "shard", "seq", "n", "ts", "tenant", "queue", "date", "hour", f.lit(-1).cast("bigint").alias("in_flight")
    )
