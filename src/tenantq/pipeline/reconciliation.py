"""Reconciliation: compares what the lake says about each queue with the queue's own counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tenantq.engine.catalog import Catalog
from tenantq.engine.work_counters import TOTALS
from tenantq.errors import Invalid
from tenantq.pipeline.lake.archive import need_warm
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.silver.queue_changes import change_counts, message_change, queue_changes
from tenantq.store.interface import StoreReader
from tenantq.store.rocks import RocksStore
from tenantq.store.shard_directories import shard_dirs

FIGURES: Final = (*TOTALS, "messages", "bytes")
"""What is compared: everything the queue counts, and what it holds now."""
_COLUMNS: Final = {"messages_in": "added", "bytes_in": "added_bytes", "messages_out": "delivered"}
"""Columns of queue_hours that the queue counts under another name."""


RemoteShard = tuple[str, Path, Callable[[Path], StoreReader]]
"""Name, local directory and opener of a shard of a remote store."""
Stays = Mapping[str, Sequence[tuple[int, int]]]
"""By tenant that has moved: the shards that it lived on in order, each with its first record there."""


class ShardCounters(NamedTuple):
    """What a shard knows about its queues."""

    queues: dict[tuple[str, str], dict[str, int]]  # by tenant and queue: FIGURES
    seq: int  # the last synced record
    stays: Stays


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


def reconcile(
    spark: SparkSession, lake: Lake, data_dirs: Sequence[Path], remote: Sequence[RemoteShard] = ()
) -> Reconciliation:
    """Compare the stores, which no server may have open, with the lake: those in ``data_dirs``, or the shards of a remote one.

    Tenants that were erased from the lake do not count. Raises StoreLocked, StoreFormat or NotFound.
    """
    lake.settle()
    need_warm(lake, "bronze")
    erased = {one.tenant for one in lake.state().erased}
    stored: dict[tuple[str, str], dict[str, int]] = {}
    stays: dict[str, Sequence[tuple[int, int]]] = {}
    store_seq = 0
    embedded = (("0", path, _open_embedded) for given in data_dirs for path in shard_dirs(given))
    for shard in remote or embedded:
        found = read_counters(*shard)
        stays.update(found.stays)
        store_seq = max(store_seq, found.seq)
        for place, figures in found.queues.items():
            if place[0] in erased:
                continue
            known = stored.setdefault(place, dict.fromkeys(FIGURES, 0))
            for name, value in figures.items():
                known[name] += value
    rows = lake.need(spark, "bronze")
    counted = {
        (row["tenant"], row["queue"]): {name: row[name] for name in FIGURES} for row in journal_counters(rows, stays).collect() if row["tenant"] not in erased
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


def _open_embedded(data_dir: Path) -> StoreReader:
    if not data_dir.is_dir():
        raise Invalid(f"data directory {data_dir}: does not exist")
    return RocksStore(data_dir, read_only=True)


def read_counters(
    shard: str, data_dir: Path, open_store: Callable[[Path], StoreReader] = _open_embedded
) -> ShardCounters:
    """Return the counters of every queue in the store of a shard."""
    store = open_store(data_dir)
    try:
        catalog = Catalog(store)
        catalog.load()
        found = {
            (queue.tenant.name, queue.name): {
                **dict(zip(TOTALS, queue.work.totals, strict=True)), "messages": queue.messages, "bytes": queue.bytes
            }
            for queue in catalog.queues()
        }  # fmt: skip
        beat = store.last_beat()
        stays = {one.name: (*one.earlier, (int(shard), one.since)) for one in catalog.tenants.values() if one.earlier}
    finally:
        store.close()
    return ShardCounters(found, beat.seq if beat is not None else 0, stays)


def _with_stays(rows: DataFrame, stays: Stays) -> DataFrame:
    """Add ``home``, the shard of a row or "" if its tenant has moved, and ``stay``, which orders the shards of such a tenant."""
    table = [
        (tenant, str(shard), since, min((later for at, later in stayed[number + 1 :] if at == shard), default=1 << 62), number)
        for tenant, stayed in stays.items()
        for number, (shard, since) in enumerate(stayed)
    ]  # fmt: skip
    schema = "tenant string, shard string, first bigint, end bigint, stay int"
    placed = f.broadcast(rows.sparkSession.createDataFrame(table, schema)).alias("stayed")
    own = rows.alias("own")
    same = (f.col("own.tenant") == f.col("stayed.tenant")) & (f.col("own.shard") == f.col("stayed.shard"))
    within = (f.col("seq") >= f.col("first")) & (f.col("seq") < f.col("end"))
    home = f.when(f.col("stay").isNull(), f.col("own.shard")).otherwise(f.lit(""))
    joined = own.join(placed, same & within, "left")
    return joined.select("own.*", home.alias("home"), f.coalesce("stay", f.lit(0)).alias("stay"))


def journal_counters(rows: DataFrame, stays: Stays) -> DataFrame:
    """Return FIGURES for every queue that exists at the end of ``rows`` (bronze), counted since its creation on any shard.

    Earlier queues of the same name do not count: their counters ended with them.
    """
    place = f.struct("stay", "seq", "n")
    ok = f.col("outcome") == "ok"
    key = ["home", "tenant", "queue"]
    own = _with_stays(rows, stays)

    def newest(which: Column, name: str, *keys: str) -> DataFrame:
        return own.where(which & ok).groupBy(*keys).agg(f.max(place).alias(name))

    made = newest(f.col("op") == "create_queue", "made", *key)
    dropped = newest(f.col("op") == "drop_queue", "dropped", *key)
    left = (f.col("op") == "move_tenant") & f.col("details").startswith("is served by") & (f.col("home") != "")
    ended = newest((f.col("op") == "delete_tenant") | left, "ended", "home", "tenant")
    alive = made.join(dropped, key, "left").join(ended, ["home", "tenant"], "left")
    gone = (f.col("dropped") > f.col("made")) | (f.col("ended") > f.col("made"))
    alive = alive.where(~f.coalesce(gone, f.lit(False))).select(*key, "made")
    changes = _with_stays(queue_changes(rows), stays).join(f.broadcast(alive), key).where(place >= f.col("made"))
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
