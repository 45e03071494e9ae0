"""Gold ``slo_daily``: waiting and processing times, failures, and the error budget, by queue and day."""

from collections.abc import Collection
from typing import Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.arrow_shuffle import FileRows
from tenantq.pipeline.gold.exclude_probe_tenants import exclude_probe_tenants
from tenantq.pipeline.gold.service_times import service_times
from tenantq.pipeline.schemas import DOUBLE, LONG, TEXT, table_columns

SLO_DAILY: Final = table_columns(
    tenant=TEXT, queue=TEXT, deliveries=LONG, wait_p50_ms=DOUBLE, wait_p95_ms=DOUBLE, wait_p99_ms=DOUBLE,
    wait_max_ms=LONG, settled=LONG, process_p50_ms=DOUBLE, process_p95_ms=DOUBLE, process_p99_ms=DOUBLE,
    process_max_ms=LONG, oldest_age_ms=LONG, acked=LONG, dead=LONG, expired=LONG, success_rate=DOUBLE,
    dead_letter_rate=DOUBLE, slow=LONG, target=DOUBLE, error_budget=DOUBLE, error_budget_left=DOUBLE, date=TEXT,
)  # fmt: skip


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """The service level objective: the share of messages that must be delivered within a time and not lost."""

    target: float = 0.999
    wait_ms: int = 60_000


def slo_daily(
    rows: DataFrame | FileRows, lives: DataFrame | FileRows, days: Collection[str], as_of_ms: int,
    objective: Objective | None = None,
) -> DataFrame:  # fmt: skip
    """Return rows of SLO_DAILY for ``days``, those of ``rows`` (bronze). Percentiles are exact and interpolated.

    The age of the oldest message, from ``lives``, is that at the end of the day, or at ``as_of_ms``, the journal's newest time.
    """
    promised = objective or Objective()
    found = service_times(rows, lives, as_of_ms, promised.wait_ms)
    ended = f.col("acked") + f.col("dead") + f.col("expired")
    bad = f.col("slow") + f.col("dead") + f.col("expired")
    total = f.col("deliveries") + f.col("dead") + f.col("expired")
    used = f.when(total > 0, bad / total).otherwise(f.lit(0.0))
    budget = 1.0 - promised.target
    left = 1.0 - used / budget if budget > 0 else f.when(used > 0, 0.0).otherwise(1.0)
    return exclude_probe_tenants(found).where(f.col("date").isin(*days)).select(
        "tenant", "queue", "deliveries",
        *[f.get("waits", f.lit(i)).alias(f"wait_p{p}_ms") for i, p in enumerate((50, 95, 99))], "wait_max_ms", "settled",
        *[f.get("times", f.lit(i)).alias(f"process_p{p}_ms") for i, p in enumerate((50, 95, 99))], "process_max_ms",
        "oldest_age_ms", "acked", "dead", "expired",
        f.when(ended > 0, f.col("acked") / ended).alias("success_rate"),
        f.when(ended > 0, f.col("dead") / ended).alias("dead_letter_rate"),
        "slow", f.lit(promised.target).alias("target"), f.lit(budget).alias("error_budget"),
        left.alias("error_budget_left"), "date",
    ).select(*SLO_DAILY.names)  # fmt: skip
