"""Silver tables of a day: what was done how often, from where, and what changed in tenants. Small, so gold reads them whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tenantq.pipeline.legal_holds import LIFTED, PLACED
from tenantq.pipeline.schemas import OPS_DAILY, PLACES_DAILY, TENANT_CHANGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def offset() -> Column:
    """Return where a row stands in the journal, as people cite it: shard:seq.n."""
    return f.format_string("%s:%d.%d", f.col("shard"), f.col("seq"), f.col("n"))


def ops_daily(rows: DataFrame) -> DataFrame:
    """Return calls by tenant, op and outcome."""
    grouped = rows.groupBy("tenant", "op", "outcome", "date").agg(
        f.sum("count").alias("calls"), f.count("*").alias("rows"), f.countDistinct("principal").alias("principals")
    )
    return grouped.select(*OPS_DAILY.names)


def places_daily(rows: DataFrame) -> DataFrame:
    """Return the networks (/24, /48) that each principal called from with success."""
    used = rows.where((f.col("remote") != "") & (f.col("principal") != "system") & (f.col("outcome") == "ok"))
    host = f.regexp_replace("remote", r":[0-9]+$", "")
    v4 = f.regexp_extract(host, r"^([0-9]+\.[0-9]+\.[0-9]+)\.[0-9]+$", 1)
    v6 = f.regexp_extract("remote", r"^\[?((?:[0-9a-fA-F]+:){3})", 1)
    network = f.when(v4 != "", f.concat(v4, f.lit(".0/24"))).when(v6 != "", f.concat(v6, f.lit(":/48"))).otherwise(host)
    grouped = used.groupBy("tenant", "principal", network.alias("network"), "date").agg(
        f.sum("count").alias("calls"),
        f.min(f.struct("ts", "shard", "seq", "n")).alias("first"),
    )
    place = f.format_string("%s:%d.%d", f.col("first.shard"), f.col("first.seq"), f.col("first.n"))
    return grouped.select(
        "tenant", "principal", "network", "calls", f.col("first.ts").alias("first_at"), place.alias("evidence"), "date"
    ).select(*PLACES_DAILY.names)


def tenant_changes(rows: DataFrame) -> DataFrame:
    """Return the rows by which tenants were made, changed, held and deleted."""
    ops = ("create_tenant", "configure_tenant", "delete_tenant", PLACED, LIFTED)
    changed = f.col("op").isin(*ops) & (f.col("outcome") == "ok")
    return rows.where(changed).select(*TENANT_CHANGES.names)
