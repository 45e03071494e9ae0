"""Silver ``places_daily``: the networks from which each principal called, by day."""

from decimal import Decimal
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.schemas import PLACES_DAILY

_DAY_MS: Final = 86_400_000
_ROWS: Final = Decimal(10**10)  # more than a record can have
_RECORD_ROWS: Final = Decimal(10**29)  # more than a shard can have records, times _ROWS


def offset(row: str = "") -> Column:
    """Return a row's place in the journal as people cite it: shard:seq.n. ``row`` is a prefix such as ``first.``."""
    return f.format_string("%s:%d.%d", f.col(f"{row}shard"), f.col(f"{row}seq"), f.col(f"{row}n"))


def places_daily(rows: DataFrame) -> DataFrame:
    """Return the networks (/24, /48) that each principal called from with success."""
    used = rows.where((f.col("remote") != "") & (f.col("principal") != "system") & (f.col("outcome") == "ok"))
    by_address = used.groupBy("tenant", "principal", "remote", "shard", "date").agg(
        f.sum("count").alias("calls"), f.min(_packed()).alias("packed")
    )
    host = f.regexp_replace("remote", r":[0-9]+$", "")
    v4 = f.regexp_extract(host, r"^([0-9]+\.[0-9]+\.[0-9]+)\.[0-9]+$", 1)
    v6 = f.regexp_extract("remote", r"^\[?((?:[0-9a-fA-F]+:){3})", 1)
    network = f.when(v4 != "", f.concat(v4, f.lit(".0/24"))).when(v6 != "", f.concat(v6, f.lit(":/48"))).otherwise(host)
    grouped = by_address.groupBy("tenant", "principal", network.alias("network"), "date").agg(
        f.sum("calls").alias("calls"), f.min(_unpacked()).alias("first")
    )
    return grouped.withColumns({"first_at": f.col("first.ts"), "evidence": offset("first.")}).select(
        *PLACES_DAILY.names
    )


def _packed() -> Column:
    """Return time of day, record and row as one number: Spark aggregates fixed-width values without sorting."""
    day_ms, wide = f.unix_millis("ts") % _DAY_MS, "decimal(19,0)"
    return (
        day_ms.cast("decimal(8,0)") * f.lit(_RECORD_ROWS)
        + f.col("seq").cast(wide) * f.lit(_ROWS)
        + f.col("n").cast("decimal(10,0)")
    ).cast("decimal(38,0)")


def _unpacked() -> Column:
    packed, rest = f.col("packed"), f.col("packed") % f.lit(_RECORD_ROWS)
    day_ms = f.floor(packed / f.lit(_RECORD_ROWS)).cast("bigint")
    seq = ((rest - rest % f.lit(_ROWS)) / f.lit(_ROWS)).cast("bigint")
    ts = f.timestamp_millis(f.unix_millis(f.col("date").cast("timestamp")) + day_ms)
    n = (rest % f.lit(_ROWS)).cast("int")
    return f.struct(ts.alias("ts"), "shard", seq.alias("seq"), n.alias("n"))
