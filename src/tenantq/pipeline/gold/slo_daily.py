"""Gold ``slo_daily``: waiting and processing times, failures, and the error budget, by queue and day."""

from collections.abc import Collection
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.gold.exclude_probe_tenants import exclude_probe_tenants
from tenantq.pipeline.schemas import SLO_DAILY

_DAY_MS: Final = 86_400_000


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """The service level objective: the share of messages that must be delivered within a time and not lost."""

    target: float = 0.999
    wait_ms: int = 60_000


def slo_daily(
    rows: DataFrame, lives: DataFrame, days: Collection[str], as_of_ms: int, objective: Objective | None = None
) -> DataFrame:
    """Return rows of SLO_DAILY for ``days``, those of ``rows`` (bronze). Percentiles are exact and interpolated.

    The age of the oldest message, from ``lives``, is that at the end of the day, or at ``as_of_ms``, the journal's newest time.
    """
    promised = objective or Objective()
    kind, value, calls = f.col("kind"), f.col("value"), f.col("calls")
    wait = f.when(kind == "wait", value)
    process = f.when(kind.isin("acked", "failed"), value)

    def counted(condition: Column) -> Column:
        return f.sum(f.when(condition, calls).otherwise(0))

    grouped = values(rows).groupBy("tenant", "queue", "date").agg(
        counted(kind == "wait").alias("deliveries"), _percentiles(wait).alias("waits"), f.max(wait).alias("wait_max_ms"),
        counted(kind.isin("acked", "failed")).alias("settled"), _percentiles(process).alias("times"),
        f.max(process).alias("process_max_ms"),
        counted(kind == "acked").alias("acked"),
        counted(kind == "dead").alias("dead"),
        counted(kind == "expired").alias("expired"),
        counted((kind == "wait") & (value > promised.wait_ms)).alias("slow"),
    )  # fmt: skip
    joined = grouped.join(_oldest(lives, as_of_ms), ["tenant", "queue", "date"], "full_outer")
    ended = f.col("acked") + f.col("dead") + f.col("expired")
    bad = f.col("slow") + f.col("dead") + f.col("expired")
    total = f.col("deliveries") + f.col("dead") + f.col("expired")
    used = f.when(total > 0, bad / total).otherwise(f.lit(0.0))
    budget = 1.0 - promised.target
    left = 1.0 - used / budget if budget > 0 else f.when(used > 0, 0.0).otherwise(1.0)
    counts = ("deliveries", "settled", "acked", "dead", "expired", "slow", "oldest_age_ms")
    filled = exclude_probe_tenants(joined.fillna(0, list(counts)))
    return filled.where(f.col("date").isin(*days)).select(
        "tenant", "queue", "deliveries",
        *[f.get("waits", f.lit(i)).alias(f"wait_p{p}_ms") for i, p in enumerate((50, 95, 99))], "wait_max_ms", "settled",
        *[f.get("times", f.lit(i)).alias(f"process_p{p}_ms") for i, p in enumerate((50, 95, 99))], "process_max_ms",
        "oldest_age_ms", "acked", "dead", "expired",
        f.when(ended > 0, f.col("acked") / ended).alias("success_rate"),
        f.when(ended > 0, f.col("dead") / ended).alias("dead_letter_rate"),
        "slow", f.lit(promised.target).alias("target"), f.lit(budget).alias("error_budget"),
        left.alias("error_budget_left"), "date",
    ).select(*SLO_DAILY.names)  # fmt: skip


def values(rows: DataFrame) -> DataFrame:
    """Return how often each time occurred in a queue and day: far fewer rows, and a large queue is spread over all tasks."""
    op, outcome = f.col("op"), f.col("outcome")
    ok = outcome == "ok"
    kind = (
        f.when((op == "poll") & ok, "wait")
        .when((op == "ack") & ok, "acked")
        .when(((op == "nack") & ok) | (op == "lease_expired"), "failed")
        .when((op == "dead_letter") & (outcome == "dead"), "dead")
        .when((op == "expire") & (outcome == "expired"), "expired")
        .otherwise("")
    )
    days = rows.where(
        (f.col("queue") != "") & op.isin("poll", "ack", "nack", "lease_expired", "dead_letter", "expire")
    ).select("tenant", "queue", "date", kind.alias("kind"), "wait_ms", "process_ms")
    value = (
        f.when(f.col("kind") == "wait", f.col("wait_ms"))
        .when(f.col("kind").isin("acked", "failed"), f.col("process_ms"))
        .otherwise(0)
    )
    return days.groupBy(value.alias("value"), "tenant", "queue", "date", "kind").agg(f.count("*").alias("calls"))


def _percentiles(column: Column) -> Column:
    return f.percentile(column, [0.5, 0.95, 0.99], f.col("calls"))


def _oldest(lives: DataFrame, as_of_ms: int) -> DataFrame:
    """Return the age of the oldest message in each queue at the end of each day."""
    left_at = f.when(f.col("outcome") == "dead", f.col("last.at")).otherwise(f.col("ended_at"))
    first_day = f.floor(f.unix_millis("added_at") / _DAY_MS)
    last_day = f.coalesce(f.floor(f.unix_millis(left_at) / _DAY_MS) - 1, f.lit(as_of_ms // _DAY_MS))
    held = lives.where(f.col("queue").isNotNull() & (last_day >= first_day))
    days = held.select("tenant", "queue", "added_at", f.explode(f.sequence(first_day, last_day)).alias("day"))
    end_ms = f.least((f.col("day") + 1) * _DAY_MS, f.lit(as_of_ms))
    age = f.max(f.greatest(end_ms - f.unix_millis("added_at"), f.lit(0))).alias("oldest_age_ms")
    date = f.date_from_unix_date(f.col("day").cast("int")).cast("string").alias("date")
    return days.groupBy("tenant", "queue", "day").agg(age).select("tenant", "queue", date, "oldest_age_ms")
