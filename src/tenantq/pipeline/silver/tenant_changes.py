"""Silver ``tenant_changes``: the rows by which tenants were created, configured, put under a legal hold, and deleted."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import TENANT_CHANGES

PLACED: Final = "hold_tenant"
LIFTED: Final = "release_hold"
_OPS: Final = ("create_tenant", "configure_tenant", "delete_tenant", PLACED, LIFTED)


def tenant_changes(rows: DataFrame) -> DataFrame:
    """Return rows of TENANT_CHANGES."""
    return rows.where(f.col("op").isin(*_OPS) & (f.col("outcome") == "ok")).select(*TENANT_CHANGES.names)


def held_tenants(changes: DataFrame) -> set[str]:
    """Return the tenants under a legal hold: while it lasts, none of their rows may be erased or deleted."""
    newest = f.max_by("op", f.struct("ts", "shard", "seq", "n")).alias("op")
    last = changes.where(f.col("op").isin(PLACED, LIFTED)).groupBy("tenant").agg(newest)
    return {row["tenant"] for row in last.where(f.col("op") == PLACED).collect()}


def newest_setting(changes: DataFrame, given: Column, *keys: str) -> DataFrame:
    """Return per tenant, and ``keys``, the text ``given`` of the newest change that has one.

    Creating or deleting a tenant resets it to an empty text.
    """
    named = (given != "") | f.col("op").isin("create_tenant", "delete_tenant")
    newest = f.max_by(given, f.struct("ts", "shard", "seq", "n")).alias("given")
    return changes.where(named).groupBy("tenant", *keys).agg(newest)
