"""Silver ``message_lives``: one row per message, from its add to its end, over queues and days.

A row keeps what is needed to merge late events into it, with the same result as one pass over everything. Its partition is
the day in which its id was created, which never changes.

On one shard, events are in the order of its journal. If a tenant moved between shards, a message has records on two, whose
numbers cannot be compared. Then the wall clock decides.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import LAST, MESSAGE_LIVES
from tenantq.pipeline.silver.queue_resets import with_resets

OPEN: Final = ("waiting", "in_flight", "dead")
"""Outcomes of messages that are still in a queue."""

STATES: Final = {
    "add": "waiting", "poll": "in_flight", "nack": "waiting", "release": "waiting", "lease_expired": "waiting",
    "ack": "acked", "remove": "removed", "expire": "expired", "dead_letter": "dead", "redrive": "waiting",
}  # fmt: skip
_SETTLES: Final = ("ack", "nack", "release", "lease_expired")
DONE: Final = ("ok", "expired", "dead")
_TARGET: Final = r"^to ([^:]*)"
LAST_DAY: Final = 2_932_896  # of the year 9999
DAY_MS: Final = 86_400_000
_OF_BOTH: Final = ("date", "tenant", "message_id", "shard", "queue", "bytes", "priority")
_OF_EVENTS: Final = ("seq", "n", "ts", "op", "wait_ms", "process_ms", "target")
_OF_LIVES: Final = ("added_at", "dead_letters", "redrives", "deliveries", "settlements", "last")


def life_date() -> Column:
    """Return the day in which a message's id was created: its first 48 bits are milliseconds."""
    digits = f.concat(f.substring("message_id", 1, 8), f.substring("message_id", 10, 4))
    valid = (f.length(digits) == 12) & f.unhex(digits).isNotNull()
    ms = f.when(valid, f.conv(digits, 16, 10).cast("bigint"))
    day = f.least(f.floor(ms / DAY_MS), f.lit(LAST_DAY)).cast("int")
    return f.coalesce(f.date_from_unix_date(day).cast("string"), f.lit("1970-01-01"))


def tells_of_life() -> Column:
    """Select the journal rows that change a message."""
    return (f.col("message_id") != "") & f.col("outcome").isin(*DONE) & f.col("op").isin(*STATES)


def life_events(rows: DataFrame) -> DataFrame:
    """Return the journal rows that change a message, with the ``date`` of its life."""
    moved = f.col("op").isin("dead_letter", "redrive")
    return rows.where(tells_of_life()).select(
        life_date().alias("date"), *_OF_BOTH[1:], *_OF_EVENTS[:-1],
        f.when(moved, f.regexp_extract("details", _TARGET, 1)).alias("target"),
    )  # fmt: skip


def message_lives(events: DataFrame, known: DataFrame | None, resets: DataFrame) -> DataFrame:
    """Merge ``events`` (see life_events) into the ``known`` lives, if any; return rows of MESSAGE_LIVES.

    If both have a column ``piece``, the result has it too, and is partitioned and sorted as the table is.
    """
    place = ("date", *(["piece"] if "piece" in events.columns else []))
    parts = events
    if known is not None:
        both = [*place, *_OF_BOTH[1:]]
        events, known = events.select(*both, *_OF_EVENTS), known.select(*both, *_OF_LIVES)
        parts = events.unionByName(known, allowMissingColumns=True)
    merged = _merged(parts, place, with_known=known is not None)
    ends = {"_queue": f.col("last.queue"), "_shard": f.col("last.shard")}
    placed = with_resets(merged.withColumns(ends), resets, "_queue", "_shard")
    later = f.filter(
        "resets", lambda one: f.struct(one["seq"], one["n"]) > f.struct(f.col("last.seq"), f.col("last.place"))
    )
    cut = f.when(f.col("resets").isNotNull() & f.col("last.state").isin(*OPEN), f.get(later, f.lit(0)))
    state = f.when(cut.isNotNull(), f.when(cut["op"] == "purge", "purged").otherwise("dropped")).otherwise(
        f.col("last.state")
    )
    lives = placed.select(
        "tenant", "message_id", "shard", "queue", "bytes", "priority", "added_at",
        f.get("deliveries", f.lit(0))["wait_ms"].alias("first_wait_ms"),
        _total("deliveries", "wait_ms").alias("wait_ms"),
        _total("settlements", "process_ms").alias("process_ms"),
        (f.size("deliveries") - _count("release")).cast("bigint").alias("attempts"),
        _count("nack").alias("nacks"),
        _count("lease_expired").alias("lease_expiries"),
        _count("release").alias("releases"),
        "dead_letters", "redrives",
        state.alias("outcome"),
        f.when(cut.isNotNull(), cut["ts"]).when(~f.col("last.state").isin(*OPEN), f.col("last.at")).alias("ended_at"),
        (f.size("deliveries") > f.size("settlements")).alias("leased_at_end"),
        "deliveries", "settlements", "last", *place,
    )  # fmt: skip
    return lives.select(*MESSAGE_LIVES.names, *place[1:])


def _merged(parts: DataFrame, place: tuple[str, ...], *, with_known: bool) -> DataFrame:
    """Merge events and known lives into one row per message.

    Rows are sorted by the keys they are grouped by, which is also the order they are written in: one shuffle and one sort
    serve both. Without pieces, ids come first, because most of them differ within the prefix that the sort compares.
    """
    op, at = f.col("op"), f.col("ts").alias("at")
    state = f.lit(None).cast("string")
    for name, value in STATES.items():
        state = f.when(op == name, value).otherwise(state)
    # The end of a lease refers to an earlier record, so it comes first in its own record, regardless of its number there.
    order = f.when(op.isin("nack", "release", "lease_expired"), f.lit(-1)).otherwise(f.col("n"))
    last = f.struct(
        "seq", order.alias("place"), state.alias("state"), f.coalesce("target", "queue").alias("queue"), at, "shard"
    )
    delivery = f.when(op == "poll", f.struct("seq", at, "queue", "wait_ms"))
    settlement = f.when(op.isin(*_SETTLES), f.struct("seq", at, "queue", "op", "process_ms"))
    deliveries, settlements = f.collect_list(delivery), f.collect_list(settlement)
    added_at, queue = f.when(op == "add", f.col("ts")), f.when(op == "add", f.col("queue"))
    dead, back = (op == "dead_letter").cast("bigint"), (op == "redrive").cast("bigint")
    if with_known:  # a part is an event or a known life
        known = op.isNull()
        # Lives of older lakes do not have the shard of their last event. It is the shard of the life.
        last_shard = f.coalesce("last.shard", "shard").alias("shard")
        last = f.when(known, f.struct(*(f"last.{name}" for name in LAST.names[:-1]), last_shard)).otherwise(last)
        deliveries = f.concat(f.flatten(f.collect_list("deliveries")), deliveries)
        settlements = f.concat(f.flatten(f.collect_list("settlements")), settlements)
        added_at, queue = f.coalesce("added_at", added_at), f.when(known, f.col("queue")).otherwise(queue)
        dead, back = f.coalesce("dead_letters", dead), f.coalesce("redrives", back)
    in_pieces = len(place) > 1
    keys = (*place, "tenant", "message_id") if in_pieces else ("message_id", "tenant")
    spread = parts.repartition(*place) if in_pieces else parts.repartition("message_id")
    merged = spread.sortWithinPartitions(*keys).groupBy(*keys).agg(
        f.min("shard").alias("shard"),
        f.max(f.greatest(f.col("shard"), last["shard"])).alias("_highest"),
        f.max(queue).alias("queue"),
        f.max("bytes").alias("bytes"),
        f.max("priority").alias("priority"),
        f.min(added_at).alias("added_at"),
        f.sum(dead).alias("dead_letters"),
        f.sum(back).alias("redrives"),
        deliveries.alias("deliveries"),
        settlements.alias("settlements"),
        f.max(last).alias("last"),
        f.min(last["shard"]).alias("_first_shard"),
        f.max(last["shard"]).alias("_last_shard"),
        f.max(f.struct(last["at"].alias("at"), last.alias("last"))).alias("_latest"),
    )  # fmt: skip
    merged = merged.withColumns(
        {
            "deliveries": _in_order("deliveries"),
            "settlements": _in_order("settlements"),
            "last": f.when(f.col("_first_shard") == f.col("_last_shard"), f.col("last")).otherwise(
                f.col("_latest.last")
            ),
        }
    )
    return merged if in_pieces else merged.withColumn("date", life_date())


def _in_order(column: str) -> Column:
    """Sort deliveries or settlements. Most lives have one of them, and nearly all are on one shard."""
    by_time = f.transform(
        f.array_sort(f.transform(column, lambda one: f.struct(one["at"].alias("at"), one.alias("one")))),
        lambda timed: timed["one"],
    )
    by_record = f.when(f.col("shard") == f.col("_highest"), f.array_sort(column)).otherwise(by_time)
    return f.when(f.size(column) > 1, by_record).otherwise(f.col(column))


def _total(column: str, field: str) -> Column:
    """Return the sum of a field. Most lives have one delivery, which needs no loop."""
    walk = f.aggregate(column, f.lit(0).cast("bigint"), lambda total, one: total + one[field])
    return f.when(f.size(column) == 1, f.get(column, f.lit(0))[field]).otherwise(walk)


def _count(op: str) -> Column:
    settled = f.col("settlements")
    alone = f.when(f.get(settled, f.lit(0))["op"] == op, 1).otherwise(0)
    walk = f.size(f.filter(settled, lambda one: one["op"] == op))
    return f.when(f.size(settled) == 1, alone).otherwise(walk).cast("bigint")
