"""Legal holds, as the journal tells them: while one stands, nothing of the tenant may be erased or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACED: Final = "hold_tenant"
LIFTED: Final = "release_hold"


def held_tenants(rows: DataFrame) -> set[str]:
    """Return the tenants of ``rows`` (tenant_changes) whose last word about a hold is that one was placed."""
    about = rows.where(f.col("op").isin(PLACED, LIFTED))
    last = about.groupBy("tenant").agg(f.max_by("op", f.struct("ts", "shard", "seq", "n")).alias("op"))
    return {row["tenant"] for row in last.where(f.col("op") == PLACED).collect()}
