"""Silver ``message_lives``: one row per message, from its add to its end, over queues and days.

A life is kept so that more events can be merged into it: whoever brings a late one merges it with the row that is there,
and gets what one pass over everything would give. Its partition is the day in which its id was given out, which never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from tenantq.pipeline.schemas import MESSAGE_LIVES
from tenantq.pipeline.silver_queue_resets import with_resets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OPEN: Final = ("waiting", "in_flight", "dead")
"""Outcomes of messages that are still in a queue."""

_STATES: Final = {
    "add": "waiting", "poll": "in_flight", "nack": "waiting", "release": "waiting", "lease_expired": "waiting",
    "ack": "acked", "remove": "removed", "expire": "expired", "dead_letter": "dead", "redrive": "waiting",
}  # fmt: skip
_SETTLES: Final = ("ack", "nack", "release", "lease_expired")
_DONE: Final = {"ok", "expired", "dead"}
_TARGET: Final = r"^to ([^:]*)"
_EVENT_COLUMNS: Final = (
    "tenant", "message_id", "shard", "queue", "bytes", "priority", "added_at", "dead_letters", "redrives", "deliveries",
    "settlements", "last",
)  # fmt: skip


def life_date() -> Column:
    """Return the day in which a message's id was given out: the first 48 bits of it are milliseconds."""
    digits = f.concat(f.substring("message_id", 1, 8), f.substring("message_id", 10, 4))
    ms = f.when(digits.rlike("^[0-9a-f]{12}$"), f.conv(digits, 16, 10).cast("bigint"))
    return f.coalesce(
        f.date_format(f.timestamp_millis(f.least(ms, f.lit(253_402_300_799_999))), "yyyy-MM-dd"), f.lit("1970-01-01")
    )


def life_events(rows: DataFrame) -> DataFrame:
    """Return what each row of the journal says about its message, in the shape of a life."""
    op = f.col("op")
    state = f.create_map(*[f.lit(part) for pair in _STATES.items() for part in pair])[op]
    # What ends a lease concerns one of an earlier record, so it comes first in its own, whatever its number there.
    place = f.when(op.isin("nack", "release", "lease_expired"), f.lit(-1)).otherwise(f.col("n"))
    moved = op.isin("dead_letter", "redrive")
    queue = f.when(moved, f.regexp_extract("details", _TARGET, 1)).otherwise(f.col("queue"))
    delivery = f.struct("seq", f.col("ts").alias("at"), "queue", "wait_ms")
    settlement = f.struct("seq", f.col("ts").alias("at"), "queue", "op", "process_ms")
    added = op == "add"
    return (
        rows.where((f.col("message_id") != "") & f.col("outcome").isin(*_DONE) & op.isin(*_STATES))
        .select(
            "tenant",
            "message_id",
            "shard",
            f.when(added, f.col("queue")).alias("queue"),
            "bytes",
            "priority",
            f.when(added, f.col("ts")).alias("added_at"),
            (op == "dead_letter").cast("bigint").alias("dead_letters"),
            (op == "redrive").cast("bigint").alias("redrives"),
            f.when(op == "poll", f.array(delivery)).alias("deliveries"),
            f.when(op.isin(*_SETTLES), f.array(settlement)).alias("settlements"),
            f.struct("seq", place.alias("place"), state.alias("state"), queue.alias("queue"), f.col("ts").alias("at")).alias("last"),
        )
    )  # fmt: skip


def message_lives(events: DataFrame, known: DataFrame, resets: DataFrame) -> DataFrame:
    """Merge ``events`` (see life_events) into the lives that are ``known``; return rows of MESSAGE_LIVES."""
    parts = events.select(*_EVENT_COLUMNS).unionByName(known.select(*_EVENT_COLUMNS))
    merged = parts.groupBy("tenant", "message_id").agg(
        f.min("shard").alias("shard"),
        f.max("queue").alias("queue"),
        f.max("bytes").alias("bytes"),
        f.max("priority").alias("priority"),
        f.min("added_at").alias("added_at"),
        f.sum("dead_letters").alias("dead_letters"),
        f.sum("redrives").alias("redrives"),
        f.array_sort(f.flatten(f.collect_list("deliveries"))).alias("deliveries"),
        f.array_sort(f.flatten(f.collect_list("settlements"))).alias("settlements"),
        f.max("last").alias("last"),
    )
    placed = with_resets(merged.withColumn("_queue", f.col("last.queue")), resets, "_queue")
    later = f.filter(
        "resets", lambda one: f.struct(one["seq"], one["n"]) > f.struct(f.col("last.seq"), f.col("last.place"))
    )
    cut = f.when(f.col("last.state").isin(*OPEN), f.get(later, f.lit(0)))
    state = f.when(cut.isNotNull(), f.when(cut["op"] == "purge", "purged").otherwise("dropped")).otherwise(
        f.col("last.state")
    )
    waits = f.transform("deliveries", lambda one: one["wait_ms"])
    times = f.transform("settlements", lambda one: one["process_ms"])
    lives = placed.select(
        "tenant", "message_id", "shard", "queue", "bytes", "priority", "added_at",
        f.get(waits, f.lit(0)).alias("first_wait_ms"),
        _total(waits).alias("wait_ms"),
        _total(times).alias("process_ms"),
        (f.size("deliveries") - _count("release")).cast("bigint").alias("attempts"),
        _count("nack").alias("nacks"),
        _count("lease_expired").alias("lease_expiries"),
        _count("release").alias("releases"),
        "dead_letters", "redrives",
        state.alias("outcome"),
        f.when(cut.isNotNull(), cut["ts"]).when(~f.col("last.state").isin(*OPEN), f.col("last.at")).alias("ended_at"),
        (f.size("deliveries") > f.size("settlements")).alias("leased_at_end"),
        "deliveries", "settlements", "last",
        life_date().alias("date"),
    )  # fmt: skip
    return lives.select(*MESSAGE_LIVES.names)


def _total(column: Column) -> Column:
    return f.aggregate(column, f.lit(0).cast("bigint"), lambda total, one: total + one)


def _count(op: str) -> Column:
    return f.size(f.filter("settlements", lambda one: one["op"] == op)).cast("bigint")
