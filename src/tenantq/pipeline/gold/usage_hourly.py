"""Gold ``usage_hourly``: operations, messages, bytes, byte-hours stored and peaks, by tenant, queue and hour."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.types import DecimalType

from tenantq.pipeline.gold.exclude_probe_tenants import exclude_probe_tenants
from tenantq.pipeline.schemas import BYTE_MS, LONG, TEXT, table_columns
from tenantq.pipeline.silver.queue_resets import with_resets

USAGE_HOURLY: Final = table_columns(
    tenant=TEXT, queue=TEXT, operations=LONG, messages_in=LONG, messages_out=LONG, bytes_in=LONG,
    bytes_out=LONG, byte_hours=DecimalType(38, 6), byte_ms=BYTE_MS, messages_stored=LONG, bytes_stored=LONG,
    peak_backlog=LONG, peak_in_flight=LONG, refused=LONG, throttled=LONG, denied=LONG, hour=TEXT, date=TEXT,
)  # fmt: skip

_COUNTS: Final = (
    "operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "refused", "throttled", "denied",
)  # fmt: skip
_LEVELS: Final = ("messages", "bytes", "in_flight")
_TOPS: Final = ("backlog_top", "in_flight_top")
_HOUR: Final = "interval 1 hour"


def usage_hourly(hours: DataFrame, resets: DataFrame, from_date: str = "") -> DataFrame:
    """Return rows of USAGE_HOURLY since ``from_date``, from all ``hours`` (queue_hours).

    Hours without operations have a row while messages are stored. The last hour counts as complete; later rows
    compute it again.
    """
    key = ("tenant", "queue", "shard", "epoch")
    at = f.to_timestamp(f.concat_ws(" ", "date", "hour"), "yyyy-MM-dd HH")
    hours = hours.withColumn("at", at)
    newest = hours.agg(f.max("at").alias("newest"))
    before = Window.partitionBy(*key).orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    following = Window.partitionBy(*key).orderBy("at")
    for name in _LEVELS:
        carried = f.coalesce(f.sum(f"{name}_net").over(before), f.lit(0).cast("bigint"))
        hours = hours.withColumn(f"{name}_before", carried)
    hours = hours.withColumn("next_at", f.lead("at").over(following))
    end = f.get("resets", f.col("epoch"))["ts"]
    hours = with_resets(hours, resets, "queue").withColumn("epoch_end", end).drop("resets")
    rows = _usage(_with_silent(hours, newest))
    if from_date:
        rows = rows.where(f.date_format("at", "yyyy-MM-dd") >= from_date)
    return _by_queue(exclude_probe_tenants(rows))


def _with_silent(hours: DataFrame, newest: DataFrame) -> DataFrame:
    """Add the hours in between, in which messages were only stored: hours that begin with these levels and change nothing."""
    left = {name: f.col(f"{name}_before") + f.col(f"{name}_net") for name in _LEVELS}
    stored = (left["messages"] != 0) | (left["bytes"] != 0)
    last = f.least(
        f.coalesce(f.col("next_at") - f.expr(_HOUR), f.col("newest")), f.date_trunc("hour", f.col("epoch_end"))
    )
    last = f.when(stored & (last > f.col("at")), last).otherwise(f.col("at"))
    spread = f.explode(f.sequence(f.col("at"), last, f.expr(_HOUR)))
    silent = f.col("at") > f.col("own")
    found = hours.crossJoin(f.broadcast(newest)).withColumns({"own": f.col("at"), "at": spread})
    none = {name: f.lit(0).cast("bigint") for name in (*_COUNTS, *(f"{name}_net" for name in _LEVELS), *_TOPS)}
    then = {**none, **{f"{name}_before": one for name, one in left.items()}, "byte_ms": f.lit(0).cast(BYTE_MS)}
    return found.withColumns({name: f.when(silent, one).otherwise(f.col(name)) for name, one in then.items()})


def _usage(hours: DataFrame) -> DataFrame:
    """Return the levels at the end of each hour, and their peaks."""
    over = f.col("epoch_end").isNotNull() & (f.col("epoch_end") < f.col("at") + f.expr(_HOUR))

    def at_end(level: str) -> Column:
        return f.when(over, f.lit(0).cast("bigint")).otherwise(f.col(f"{level}_before") + f.col(f"{level}_net"))

    backlog, in_flight = f.col("messages_before") - f.col("in_flight_before"), f.col("in_flight_before")
    return hours.select(
        "tenant", "queue", "shard", "at", *_COUNTS,
        (f.col("byte_ms") + _held(f.col("bytes_before"))).cast(BYTE_MS).alias("byte_ms"),
        at_end("messages").alias("messages_stored"), at_end("bytes").alias("bytes_stored"),
        f.greatest(backlog, backlog + f.col("backlog_top"), f.lit(0)).alias("peak_backlog"),
        f.greatest(in_flight, in_flight + f.col("in_flight_top"), f.lit(0)).alias("peak_in_flight"),
    )  # fmt: skip


def _held(size: Column) -> Column:
    """Return the byte-milliseconds of what was stored from the start of the hour to its end, or to the reset of the queue."""
    end = f.least(f.col("at") + f.expr(_HOUR), f.col("epoch_end"))
    return size.cast(BYTE_MS) * (f.unix_millis(end) - f.unix_millis("at")).cast("decimal(18,0)")


def _by_queue(rows: DataFrame) -> DataFrame:
    """Combine the epochs and shards of a queue's hour."""
    sums = (*_COUNTS, "byte_ms", "messages_stored", "bytes_stored")
    peaks = ("peak_backlog", "peak_in_flight")
    per_shard = rows.groupBy("tenant", "queue", "shard", "at").agg(
        *[f.sum(name).alias(name) for name in sums], *[f.max(name).alias(name) for name in peaks]
    )
    whole = per_shard.groupBy("tenant", "queue", "at").agg(*[f.sum(name).alias(name) for name in (*sums, *peaks)])
    return whole.select(
        "tenant", "queue", *_COUNTS[:5],
        (f.col("byte_ms").cast("decimal(28,0)") / f.lit(3_600_000).cast("decimal(7,0)")).cast("decimal(38,6)").alias("byte_hours"),
        f.col("byte_ms").cast(BYTE_MS).alias("byte_ms"), "messages_stored", "bytes_stored",
        *peaks, "refused", "throttled", "denied",
        f.date_format("at", "HH").alias("hour"), f.date_format("at", "yyyy-MM-dd").alias("date"),
    ).select(*USAGE_HOURLY.names)  # fmt: skip
