"""Silver ``tenant_changes``: the rows by which tenants were created, configured, put under a legal hold, and deleted."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.arrow_columns import Vocabulary
from tenantq.pipeline.reduction import Reduction, few_rows
from tenantq.pipeline.schemas import INT, LONG, TEXT, TIME, table_columns

TENANT_CHANGES: Final = table_columns(
    shard=TEXT, seq=LONG, n=INT, ts=TIME, tenant=TEXT, op=TEXT, details=TEXT, date=TEXT
)


PLACED: Final = "hold_tenant"
LIFTED: Final = "release_hold"
HOLD_OPS: Final = (PLACED, LIFTED)
_OPS: Final = ("create_tenant", "configure_tenant", "delete_tenant", *HOLD_OPS)


def tenant_changes(rows: DataFrame) -> DataFrame:
    """Return rows of TENANT_CHANGES, from rows of bronze as reduced by TENANT_ROWS."""
    return rows.select(*TENANT_CHANGES.names)


def _reduced(rows: pa.Table) -> list[pa.Table]:
    ops, outcomes = Vocabulary(rows["op"]), Vocabulary(rows["outcome"])
    wanted = ops.marked(ops.ranks[0], _OPS) & outcomes.marked(outcomes.ranks[0], ("ok",))
    return few_rows(rows, wanted, TENANT_ROWS.columns)


TENANT_ROWS: Final = Reduction((*TENANT_CHANGES.names[:-1], "outcome"), _reduced)
"""The rows that change a tenant."""


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
