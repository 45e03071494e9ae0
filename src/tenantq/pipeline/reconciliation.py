"""Reconciliation: what the lake says a queue has taken, handed out and kept, against the queue's own counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import functions as f

from tenantq.cluster.layout import shard_dirs
from tenantq.engine.catalog import Catalog
from tenantq.engine.queue_state import TOTALS
from tenantq.errors import Invalid
from tenantq.pipeline.lake.archive import need_warm
from tenantq.store.rocks import RocksStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from tenantq.pipeline.lake.lake import Lake

FIGURES: Final = (*TOTALS, "messages", "bytes")
"""What is compared: everything the queue counts, and what it holds now."""
_TARGET: Final = r"^to ([^:]*)"
_PURGED: Final = r"^([0-9]+) messages"


class Drift(msgspec.Struct, frozen=True):
    """A figure that differs."""

    tenant: str
    queue: str
    figure: str
    store: int
    lake: int


class Reconciliation(msgspec.Struct):
    """What was compared and what differs."""

    queues: int
    figures: int
    drifts: list[Drift]
    store_seq: int  # the store's last record, over all shards the highest
    lake_seq: int


def reconcile(spark: SparkSession, lake: Lake, data_dirs: Sequence[Path]) -> Reconciliation:
    """Compare the stores, which no server may have open, with the lake. Raise StoreLocked, StoreFormat or NotFound.

    Tenants that were erased from the lake are left out.
    """
    lake.settle()
    need_warm(lake, "bronze")
    erased = {one.tenant for one in lake.state().erased}
    stored: dict[tuple[str, str], dict[str, int]] = {}
    store_seq = 0
    for data_dir in (shard for given in data_dirs for shard in shard_dirs(given)):
        counters, seq = read_counters(data_dir)
        store_seq = max(store_seq, seq)
        for place, figures in counters.items():
            if place[0] in erased:
                continue
            known = stored.setdefault(place, dict.fromkeys(FIGURES, 0))
            for name, value in figures.items():
                known[name] += value
    rows = lake.need(spark, "bronze")
    counted = {
        (row["tenant"], row["queue"]): {name: row[name] for name in FIGURES} for row in journal_counters(rows).collect() if row["tenant"] not in erased
    }  # fmt: skip
    lake_seq = rows.agg(f.max("seq")).collect()[0][0] or 0
    nothing = dict.fromkeys(FIGURES, 0)
    drifts = [
        Drift(*place, name, stored.get(place, nothing)[name], counted.get(place, nothing)[name])
        for place in sorted({*stored, *counted})
        for name in FIGURES
        if stored.get(place, nothing)[name] != counted.get(place, nothing)[name]
    ]
    return Reconciliation(len(stored), len(stored) * len(FIGURES), drifts, store_seq, lake_seq)


def read_counters(data_dir: Path) -> tuple[dict[tuple[str, str], dict[str, int]], int]:
    """Return the counters of every queue in a store, and its last synced record."""
    if not data_dir.is_dir():
        raise Invalid(f"data directory {data_dir}: is not there")
    store = RocksStore(data_dir, read_only=True)
    try:
        catalog = Catalog(store)
        catalog.load()
        found = {
            (queue.tenant.name, queue.name): {
                **dict(zip(TOTALS, queue.totals, strict=True)), "messages": queue.messages, "bytes": queue.bytes
            }
            for queue in catalog.queues()
        }  # fmt: skip
        beat = store.last_beat()
    finally:
        store.close()
    return found, beat.seq if beat is not None else 0


def journal_counters(rows: DataFrame) -> DataFrame:
    """Return FIGURES for every queue that exists at the end of ``rows`` (bronze), counted since it was made.

    A queue of the same name may have been there before; its counters went with it.
    """
    place = f.struct("seq", "n")
    ok = f.col("outcome") == "ok"
    key = ["shard", "tenant", "queue"]
    latest = f.max(place)
    made = rows.where((f.col("op") == "create_queue") & ok).groupBy(*key).agg(latest.alias("made"))
    dropped = rows.where((f.col("op") == "drop_queue") & ok).groupBy(*key).agg(latest.alias("dropped"))
    deletes = rows.where((f.col("op") == "delete_tenant") & ok)
    deleted = deletes.groupBy("shard", "tenant").agg(latest.alias("deleted"))
    alive = made.join(dropped, key, "left").join(deleted, ["shard", "tenant"], "left")
    gone = (f.col("dropped") > f.col("made")) | (f.col("deleted") > f.col("made"))
    alive = alive.where(~f.coalesce(gone, f.lit(False))).select(*key, "made")
    effects = _effects(rows).join(f.broadcast(alive), key).where(place >= f.col("made"))
    return effects.groupBy("tenant", "queue").agg(*[f.sum(name).alias(name) for name in FIGURES])


def _effects(rows: DataFrame) -> DataFrame:
    """Return what each row adds to the counters of its queue; one that moves a message also to those of the other."""
    op, outcome, size = f.col("op"), f.col("outcome"), f.col("bytes")
    ok = outcome == "ok"
    purged = f.regexp_extract("details", _PURGED, 1)
    purged_count = f.when((op == "purge") & ok & (purged != ""), purged.cast("bigint"))
    dead, expired = (op == "dead_letter") & (outcome == "dead"), (op == "expire") & (outcome == "expired")
    gone = (op.isin("ack", "remove", "redrive") & ok) | dead | expired
    added = (op == "add") & ok
    own = rows.select(
        "shard", "seq", "n", "tenant", "queue",
        _one(added).alias("added"), f.when(added, size).otherwise(0).alias("added_bytes"),
        _one((op == "poll") & ok).alias("delivered"), _one((op == "ack") & ok).alias("acked"),
        _one((op == "nack") & ok).alias("nacked"), _one(op == "lease_expired").alias("lease_expired"),
        _one(dead).alias("dead"), _one(expired).alias("expired"),
        f.coalesce(purged_count, _one(op.isin("remove", "redrive") & ok)).alias("removed"),
        _one(op == "heal").alias("healed"),
        f.when(added, 1).when(gone, -1).otherwise(f.coalesce(-purged_count, f.lit(0))).cast("bigint").alias("messages"),
        f.when(added, size).when(gone | purged_count.isNotNull(), -size).otherwise(0).cast("bigint").alias("bytes"),
    )  # fmt: skip
    moved = rows.where(dead | ((op == "redrive") & ok))
    zero: Any = {name: f.lit(0).cast("bigint").alias(name) for name in TOTALS}
    into = moved.select(
        "shard", "seq", "n", "tenant", f.regexp_extract("details", _TARGET, 1).alias("queue"), *zero.values(),
        f.lit(1).cast("bigint").alias("messages"), "bytes",
    )  # fmt: skip
    return own.unionByName(into)


def _one(condition: Column) -> Column:
    return f.when(condition, 1).otherwise(0).cast("bigint")
