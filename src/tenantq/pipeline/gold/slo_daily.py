"""Gold ``slo_daily``: waiting and processing times, failures, and the error budget, by queue and day."""

from collections.abc import Collection

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.exchange import FileRows
from tenantq.pipeline.gold.exclude_probe_tenants import exclude_probe_tenants
from tenantq.pipeline.gold.service_times import service_times
from tenantq.pipeline.schemas import SLO_DAILY


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
