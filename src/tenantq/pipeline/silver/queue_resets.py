"""Silver ``queue_resets``: when queues became empty by a purge, a drop or the deletion of their tenant."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.arrow_columns import Vocabulary, ordered
from tenantq.pipeline.schemas import INT, LONG, TEXT, TIME, table_columns

QUEUE_RESETS: Final = table_columns(shard=TEXT, tenant=TEXT, queue=TEXT, seq=LONG, n=INT, ts=TIME, op=TEXT)
"""When a queue became empty, or, without a queue, all queues of a tenant."""


RESETS: Final = ("purge", "drop_queue", "delete_tenant")
"""Ops that empty a queue, or all queues of a tenant."""


def is_reset() -> Column:
    """Select the journal rows that empty a queue, or all queues of a tenant."""
    return f.col("op").isin(*RESETS) & (f.col("outcome") == "ok")


def queue_resets(rows: DataFrame) -> DataFrame:
    """Return a row of QUEUE_RESETS per reset. A deleted tenant's row has no queue."""
    return rows.where(is_reset()).select(*QUEUE_RESETS.names)


def with_resets(rows: DataFrame, resets: DataFrame, queue: str, shard: str = "shard") -> DataFrame:
    """Add a column ``resets``: the resets of the row's queue and tenant on the row's shard, in order, or null.

    Only resets of the same shard count, because record numbers of different shards cannot be compared. Resets are few, so
    they are sorted first and then broadcast to the rows.
    """
    resets = resets.withColumnRenamed("shard", shard)
    places = f.collect_list(f.struct("seq", "n", "ts", "op"))
    of_tenant = (
        resets.where(f.col("queue") == "").groupBy(shard, "tenant").agg(f.array_sort(places).alias("_of_tenant"))
    )
    of_queue = resets.where(f.col("queue") != "").groupBy(shard, "tenant", f.col("queue").alias(queue))
    both = of_queue.agg(places.alias("_own")).join(f.broadcast(of_tenant), [shard, "tenant"], "left")
    all_of = f.when(f.col("_of_tenant").isNull(), f.col("_own")).otherwise(f.concat("_own", "_of_tenant"))
    both = both.select(shard, "tenant", queue, f.array_sort(all_of).alias("_of_queue"))
    return (
        rows.join(f.broadcast(both), [shard, "tenant", queue], "left")
        .join(f.broadcast(of_tenant), [shard, "tenant"], "left")
        .withColumn("resets", f.coalesce("_of_queue", "_of_tenant"))
        .drop("_of_queue", "_of_tenant")
    )


class AdjacentResets(msgspec.Struct, frozen=True):
    """The resets around rows of the journal."""

    passed: NDArray[Any]  # how many resets of its queue came before the row
    next_at: NDArray[Any]  # when the next one is, in microseconds; -1: none
    next_purges: NDArray[Any]  # whether it is a purge


Ranks = tuple[Vocabulary, NDArray[Any]]
"""A column of rows: its vocabulary, and the rank of each row."""
_Point = tuple[int, int, int, str]  # seq, n, microseconds, op


class ResetIndex:
    """All resets by queue. Only resets of the same shard count, as in ``with_resets``."""

    def __init__(self, resets: Iterable[tuple[str, str, str, int, int, int, str]]) -> None:
        self._of_queue: dict[tuple[str, str, str], list[_Point]] = {}
        for shard, tenant, queue, seq, n, us, op in resets:
            self._of_queue.setdefault((shard, tenant, queue), []).append((seq, n, us, op))
        self._tenants = {key[1] for key in self._of_queue}

    @classmethod
    def of(cls, resets: DataFrame) -> "ResetIndex":
        """Return the index of rows of QUEUE_RESETS, which are few."""
        names = ("shard", "tenant", "queue", "seq", "n", f.unix_micros("ts"), "op")
        return cls(tuple(row) for row in resets.select(*names).collect())

    def around(
        self, shard: Ranks, tenant: Ranks, queue: Ranks, seq: NDArray[Any], n: NDArray[Any], *, tie_passed: bool
    ) -> AdjacentResets:
        """Return the resets around rows. A reset at the very place of a row has passed, or is the next one."""
        count = len(seq)
        found = AdjacentResets(np.zeros(count, "i8"), np.full(count, -1), np.zeros(count, "?"))
        rows = np.flatnonzero(tenant[0].marked(tenant[1], self._tenants))
        if not len(rows):
            return found
        ranks = [one[1][rows] for one in (shard, tenant, queue)]
        key = (ranks[0] * (len(tenant[0].words) + 1) + ranks[1]) * (len(queue[0].words) + 1) + ranks[2]
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        words = (shard[0].words, tenant[0].words, queue[0].words)
        lists = [self._resets(*(some[rank[at]] for some, rank in zip(words, ranks, strict=True))) for at in first]
        flat = [one for some in lists for one in some]
        if not flat:
            return found
        starts = np.concatenate([[0], np.cumsum([len(some) for some in lists])])
        before = self._before(of, seq[rows], n[rows], lists, flat, tie_passed=tie_passed)
        found.passed[rows] = before - starts[of]
        coming = before < starts[of + 1]
        nexts = before[coming]
        found.next_at[rows[coming]] = np.array([one[2] for one in flat])[nexts]
        found.next_purges[rows[coming]] = np.array([one[3] == "purge" for one in flat])[nexts]
        return found

    def _resets(self, shard: str, tenant: str, queue: str) -> list[_Point]:
        """Return the resets of a queue and of its tenant, in order."""
        of_tenant = self._of_queue.get((shard, tenant, ""), [])
        return sorted([*(self._of_queue.get((shard, tenant, queue), []) if queue else []), *of_tenant])

    @staticmethod
    def _before(
        of: NDArray[Any], seq: NDArray[Any], n: NDArray[Any], lists: list[list[_Point]], flat: list[_Point], *,
        tie_passed: bool,
    ) -> NDArray[Any]:  # fmt: skip
        """Return how many of the resets, in the order of queues and records, come before each row."""
        of_reset = np.repeat(np.arange(len(lists)), [len(some) for some in lists])
        is_row = np.repeat([0, 1] if tie_passed else [1, 0], [len(flat), len(of)])
        keys = [
            np.concatenate([of_reset, of]), np.concatenate([[one[0] for one in flat], seq]),
            np.concatenate([[one[1] for one in flat], n]), is_row,
        ]  # fmt: skip
        order = ordered(keys)
        before = np.empty(len(order), "i8")
        before[order] = np.cumsum(order < len(flat))
        return before[len(flat) :]
