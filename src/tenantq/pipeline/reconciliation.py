"""Reconciliation: compares what the lake says about each queue with the queue's own counters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tenantq.cluster.layout import shard_dirs
from tenantq.engine.catalog import Catalog
from tenantq.engine.queue_state import TOTALS
from tenantq.errors import Invalid
from tenantq.pipeline.lake.archive import need_warm
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.silver.queue_hours import change_counts, message_change, queue_changes
from tenantq.store.rocks import RocksStore

FIGURES: Final = (*TOTALS, "messages", "bytes")
"""What is compared: everything the queue counts, and what it holds now."""
_COLUMNS: Final = {"messages_in": "added", "bytes_in": "added_bytes", "messages_out": "delivered"}
"""Columns of queue_hours that the queue counts under another name."""


class Drift(msgspec.Struct, frozen=True):
    """A figure that differs."""

    tenant: str
    queue: str
    figure: str
    store: int
    lake: int


class Reconciliation(msgspec.Struct):
    """The result: what was compared, and what differs."""

    queues: int
    figures: int
    drifts: list[Drift]
    store_seq: int  # the highest record number of all shards
    lake_seq: int


def reconcile(spark: SparkSession, lake: Lake, data_dirs: Sequence[Path]) -> Reconciliation:
    """Compare the stores, which no server may have open, with the lake. Raise StoreLocked, StoreFormat or NotFound.

    Tenants that were erased from the lake do not count.
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
        raise Invalid(f"data directory {data_dir}: does not exist")
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
    """Return FIGURES for every queue that exists at the end of ``rows`` (bronze), counted since its creation.

    Earlier queues of the same name do not count: their counters ended with them.
    """
    place = f.struct("seq", "n")
    ok = f.col("outcome") == "ok"
    key = ["shard", "tenant", "queue"]

    def newest(op: str, name: str, *keys: str) -> DataFrame:
        return rows.where((f.col("op") == op) & ok).groupBy(*keys).agg(f.max(place).alias(name))

    made, dropped = newest("create_queue", "made", *key), newest("drop_queue", "dropped", *key)
    deleted = newest("delete_tenant", "deleted", "shard", "tenant")
    alive = made.join(dropped, key, "left").join(deleted, ["shard", "tenant"], "left")
    gone = (f.col("dropped") > f.col("made")) | (f.col("deleted") > f.col("made"))
    alive = alive.where(~f.coalesce(gone, f.lit(False))).select(*key, "made")
    changes = queue_changes(rows).join(f.broadcast(alive), key).where(place >= f.col("made"))
    grouped = changes.groupBy("tenant", "queue", "op", "outcome").agg(
        f.count("*").alias("rows"), f.sum("count").alias("calls"), f.sum("bytes").alias("bytes"), f.sum("purged").alias("purged")
    )  # fmt: skip
    figures = {_COLUMNS.get(name, name): column for name, column in change_counts().items()}
    # A purge is one row for many messages: it has their count, and their bytes together.
    purged = f.when((f.col("op") == "purge") & ok, f.coalesce("purged", f.lit(0)))
    figures["messages"] = message_change() * f.col("rows") - f.coalesce(purged, f.lit(0))
    figures["bytes"] = f.when(purged > 0, -f.col("bytes")).otherwise(message_change() * f.col("bytes"))
    sums = [f.coalesce(f.sum(figures[name]), f.lit(0)).cast("bigint").alias(name) for name in FIGURES]
    return grouped.groupBy("tenant", "queue").agg(*sums)
