"""Silver ``tenant_changes``: the rows by which tenants were created, configured, put under a legal hold, and deleted."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import TENANT_CHANGES

PLACED: Final = "hold_tenant"
LIFTED: Final = "release_hold"
HOLD_OPS: Final = (PLACED, LIFTED)
_OPS: Final = ("create_tenant", "configure_tenant", "delete_tenant", *HOLD_OPS)


def tenant_changes(rows: DataFrame) -> DataFrame:
    """Return rows of TENANT_CHANGES."""
    return rows.where(f.col("op").isin(*_OPS) & (f.col("outcome") == "ok")).select(*TENANT_CHANGES.names)


def held_tenants(changes: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the tenants whose newest row of HOLD_OPS placed a legal hold."""
    ordered = sorted(changes, key=lambda row: (row["ts"], row["shard"], row["seq"], row["n"]))
    newest = {row["tenant"]: row["op"] for row in ordered if row["op"] in HOLD_OPS}
    return {tenant for tenant, op in newest.items() if op == PLACED}


def newest_setting(changes: DataFrame, given: Column, *keys: str) -> DataFrame:
    """Return per tenant, and ``keys``, the text ``given`` of the newest change that has one.

    Creating or deleting a tenant resets it to an empty text.
    """
    named = (given != "") | f.col("op").isin("create_tenant", "delete_tenant")
    newest = f.max_by(given, f.struct("ts", "shard", "seq", "n")).alias("given")
    return changes.where(named).groupBy("tenant", *keys).agg(newest)
