"""Silver ``queue_hours``: the operations of a queue in an hour, and how they changed the queue's levels.

Levels (messages stored, bytes, leases) are sums of changes since the last reset of the queue. Each reset begins an ``epoch``.
An hour has its own changes and their peak above its start. Hours can therefore be computed independently, and
``usage_hourly`` adds them up.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from tenantq.domain.access import VIEWS
from tenantq.pipeline.schemas import BYTE_MS, QUEUE_HOURS
from tenantq.pipeline.silver.queue_resets import with_resets

_TARGET: Final = r"^to ([^:]*)"
_PURGED: Final = r"^([0-9]+) messages"
_MOVES: Final = ("dead_letter", "redrive")
_CALL: Final = "redrive call"
_MOVED_IN: Final = "moved in"
_LEASE_REMOVED: Final = "lease removed"
"""Effects of rows in addition to their own op. Names of ops have no spaces."""
_COUNTS: Final = (
    "operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "acked", "nacked", "lease_expired", "dead",
    "expired", "removed", "healed", "refused", "throttled", "denied",
)  # fmt: skip
_LEVELS: Final = ("backlog", "in_flight")
_HOUR_MS: Final = 3_600_000
_SLICE_MS: Final = 300_000
_LIMB: Final = 4_096
"""Byte-milliseconds are added up in two integers with this base: an hour of petabytes or a billion rows fits into each."""
_KEY: Final = ("tenant", "queue", "shard", "epoch", "hour_number")


def queue_hours(rows: DataFrame, lives: DataFrame, resets: DataFrame) -> DataFrame:
    """Return rows of QUEUE_HOURS. ``rows`` (bronze) must have whole hours.

    ``lives`` says which removed messages were leased; the journal row of a remove does not.
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
    """Return the changes of each queue, with their epoch and the milliseconds until the epoch or the hour ends."""
    changes = queue_changes(rows).unionByName(_leases_removed(rows, lives), allowMissingColumns=True)
    placed = with_resets(changes, resets, "queue")
    here = f.struct(f.col("seq"), f.col("n"))
    passed = f.filter("resets", lambda one: f.struct(one["seq"], one["n"]) < here)
    coming = f.get(f.filter("resets", lambda one: f.struct(one["seq"], one["n"]) >= here), f.lit(0))
    emptied = f.col("resets").isNotNull()
    ms = f.unix_millis("ts")
    end_ms = f.least(  # skips nulls, which mean that no reset follows
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
    """Add up what can be added in any order.

    What a row counts for depends on its op and outcome, so rows are added up by these first, which leaves few rows.
    """
    size, left_ms = f.col("bytes"), f.col("left_ms")
    low, high = size.bitwiseAND(f.lit(_LIMB - 1)), f.shiftright("bytes", _LIMB.bit_length() - 1)
    done = changes.groupBy(*_KEY, "op", "outcome", "asked").agg(
        f.count("*").alias("rows"), f.sum("count").alias("calls"), f.sum("bytes").alias("bytes"), f.sum("purged").alias("purged"),
        f.sum(high * left_ms).alias("high"), f.sum(low * left_ms).alias("low"),
    )  # fmt: skip
    wide, sign = "decimal(30,0)", message_change()
    byte_ms = sign * (f.col("high").cast(wide) * _LIMB + f.col("low").cast(wide))
    counts = change_counts()
    none = f.lit(0).cast("bigint")
    return done.groupBy(*_KEY).agg(
        *[f.coalesce(f.sum(counts[name]), none).alias(name) for name in _COUNTS],
        f.coalesce(f.sum(sign * f.col("rows")), none).alias("messages"),
        f.coalesce(f.sum(_in_flight() * f.col("rows")), none).alias("in_flight"),
        f.coalesce(f.sum(sign * f.col("bytes")), none).alias("stored"),
        f.coalesce(f.sum(byte_ms), f.lit(0)).cast(BYTE_MS).alias("byte_ms"),
    )  # fmt: skip


def slices(changes: DataFrame) -> DataFrame:
    """Return how each slice of an hour changed the queue's levels, and their peak above its start.

    A round is one point in time: what it adds and delivers at once never waited. Slices spread a large queue over tasks.
    """
    key = ("slice", *_KEY)
    moved = changes.withColumns({"messages": message_change(), "in_flight": _in_flight()})
    rounds = (
        moved.where((f.col("messages") != 0) | (f.col("in_flight") != 0))
        .groupBy(f.floor(f.col("ms") / _SLICE_MS).alias("slice"), *_KEY, "ms", "seq")
        .agg(f.sum(f.col("messages") - f.col("in_flight")).alias("backlog"), f.sum("in_flight").alias("in_flight"))
    )
    so_far = Window.partitionBy(*key).orderBy("ms", "seq").rowsBetween(Window.unboundedPreceding, 0)
    tops = {f"{name}_top": f.sum(name).over(so_far) for name in _LEVELS}
    sums = [f.sum(name).alias(name) for name in _LEVELS]
    return rounds.withColumns(tops).groupBy(*key).agg(*sums, *_highest())


def _tops(pieces: DataFrame) -> DataFrame:
    """Return the peak of the levels above the start of each hour."""
    before = Window.partitionBy(*_KEY).orderBy("slice").rowsBetween(Window.unboundedPreceding, -1)
    for name in _LEVELS:
        start = f.coalesce(f.sum(name).over(before), f.lit(0).cast("bigint"))
        pieces = pieces.withColumn(f"{name}_top", f.col(f"{name}_top") + start)
    return pieces.groupBy(*_KEY).agg(*_highest())


def _highest() -> list[Column]:
    """Return the highest rise of each level, at least 0: if it only fell, the start was the peak."""
    return [f.greatest(f.max(f"{name}_top"), f.lit(0)).alias(f"{name}_top") for name in _LEVELS]


def message_change() -> Column:
    """Return by how many messages a row changes its queue: 1, -1 or 0."""
    op, outcome = f.col("op"), f.col("outcome")
    gone = (
        (op.isin("ack", "remove", "redrive") & (outcome == "ok"))
        | ((op == "expire") & (outcome == "expired"))
        | ((op == "dead_letter") & (outcome == "dead"))
    )
    come = ((op == "add") & (outcome == "ok")) | (op == _MOVED_IN)
    return f.when(come, f.lit(1)).when(gone, f.lit(-1)).otherwise(f.lit(0)).cast("bigint")


def _in_flight() -> Column:
    """Return by how many leases a row changes its queue."""
    op, ok = f.col("op"), f.col("outcome") == "ok"
    settled = (op.isin("ack", "nack", "release") & ok) | op.isin("lease_expired", _LEASE_REMOVED)
    return f.when((op == "poll") & ok, f.lit(1)).when(settled, f.lit(-1)).otherwise(f.lit(0)).cast("bigint")


def change_counts() -> dict[str, Column]:
    """Return the columns that rows of one op and outcome count for, from their ``rows``, ``calls``, ``bytes`` and ``purged``."""
    op, outcome = f.col("op"), f.col("outcome")
    rows, calls, size = f.col("rows"), f.col("calls"), f.col("bytes")
    ok = outcome == "ok"
    return {
        "operations": f.when(ok & f.col("asked") & ~op.isin(*VIEWS), calls),
        "messages_in": f.when((op == "add") & ok, rows),
        "messages_out": f.when((op == "poll") & ok, rows),
        "bytes_in": f.when((op == "add") & ok, size),
        "bytes_out": f.when((op == "poll") & ok, size),
        "acked": f.when((op == "ack") & ok, rows),
        "nacked": f.when((op == "nack") & ok, rows),
        "lease_expired": f.when(op == "lease_expired", rows),
        "dead": f.when((op == "dead_letter") & (outcome == "dead"), rows),
        "expired": f.when((op == "expire") & (outcome == "expired"), rows),
        "removed": f.when(op.isin("remove", "redrive") & ok, rows).when((op == "purge") & ok, f.col("purged")),
        "healed": f.when(op == "heal", rows),
        "refused": f.when(outcome == "refused", calls),
        "throttled": f.when(outcome == "throttled", calls),
        "denied": f.when(outcome == "denied", calls),
    }


def queue_changes(rows: DataFrame) -> DataFrame:
    """Return the effects of ``rows`` (bronze) on queues, one row each: on their own queue, and on the target of a move."""
    return _own(rows).unionByName(_moved_in(rows), allowMissingColumns=True)


def _own(rows: DataFrame) -> DataFrame:
    """Return the effect of each row on its own queue, and whether a caller asked for it.

    The call that starts a redrive has a row without a message; only the rows of its messages remove them.
    """
    purged = f.regexp_extract("details", _PURGED, 1)
    return rows.select(
        "shard", "seq", "n", "ts", "tenant", "queue",
        f.when((f.col("op") == "redrive") & (f.col("message_id") == ""), f.lit(_CALL)).otherwise(f.col("op")).alias("op"),
        "outcome", "bytes", "count",
        f.coalesce(f.col("principal") != "system", f.lit(False)).alias("asked"),
        f.when((f.col("op") == "purge") & (purged != ""), purged.cast("bigint")).alias("purged"),
    )  # fmt: skip


def _moved_in(rows: DataFrame) -> DataFrame:
    """Return what dead letters and redriven messages add to their target queue."""
    moved = rows.where(f.col("op").isin(*_MOVES) & f.col("outcome").isin("ok", "dead") & (f.col("message_id") != ""))
    return moved.select(
        "shard", "seq", "n", "ts", "tenant",
        f.regexp_extract("details", _TARGET, 1).alias("queue"),
        f.lit(_MOVED_IN).alias("op"),
        "bytes",
    )  # fmt: skip


def _leases_removed(rows: DataFrame, lives: DataFrame) -> DataFrame:
    """Return the leases that ended because their message was removed."""
    leased = lives.where((f.col("outcome") == "removed") & f.col("leased_at_end")).select("tenant", "message_id")
    removes = rows.where((f.col("op") == "remove") & (f.col("outcome") == "ok"))
    return removes.join(leased, ["tenant", "message_id"], "left_semi").select(
        "shard", "seq", "n", "ts", "tenant", "queue", f.lit(_LEASE_REMOVED).alias("op")
    )
