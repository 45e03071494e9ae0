"""Placement on Spark: the shard of every tenant before and after. The jump hash is computed for whole columns."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StructField, StructType

from tenantq.domain.placement import MULTIPLIER, Topology, tenant_key
from tenantq.pipeline.silver.tenant_changes import newest_setting

NOWHERE = -1
"""The shard index of a tenant that no shard may hold."""


def jump_hash_many(keys: np.ndarray[Any, np.dtype[np.uint64]], buckets: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return ``jump_hash`` of every key; NOWHERE if there is no bucket."""
    found = np.full(len(keys), NOWHERE, dtype=np.int64)
    if buckets < 1:
        return found
    active, following = np.arange(len(keys)), np.zeros(len(keys), dtype=np.int64)
    keys = keys.copy()
    while active.size:
        found[active] = following[active]
        keys[active] = keys[active] * np.uint64(MULTIPLIER) + np.uint64(1)
        steps = float(1 << 31) / ((keys[active] >> np.uint64(33)) + np.uint64(1)).astype(np.float64)
        following[active] = ((found[active] + 1) * steps).astype(np.int64)
        active = active[following[active] < buckets]
    return found


def placed(tenants: DataFrame, before: Topology, after: Topology) -> DataFrame:
    """Add the shard indexes ``before`` and ``after`` to rows with tenant and regions.

    ``regions`` are the names that the tenant allows, separated by commas; empty means all.
    """
    schema = StructType([*tenants.schema.fields, StructField("before", IntegerType()), StructField("after", IntegerType())])  # fmt: skip

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        eligible: dict[tuple[str, int], np.ndarray[Any, np.dtype[np.int64]]] = {}
        for batch in batches:
            keys = np.array([tenant_key(name) for name in batch.column("tenant").to_pylist()], dtype=np.uint64)
            regions = np.array(batch.column("regions").to_pylist(), dtype=object)
            columns = []
            for number, topology in enumerate((before, after)):
                home = np.full(len(keys), NOWHERE, dtype=np.int64)
                for allowed in set(regions):
                    known = eligible.get((allowed, number))
                    if known is None:
                        wanted = allowed.split(",") if allowed else ()
                        known = eligible[allowed, number] = np.array(topology.eligible(wanted), dtype=np.int64)
                    mine = regions == allowed
                    chosen = jump_hash_many(keys[mine], len(known))
                    home[mine] = known[chosen] if len(known) else NOWHERE
                columns.append(pa.array(home.astype(np.int32)))
            names = [*batch.schema.names, "before", "after"]
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], names=names)

    return tenants.mapInArrow(place, schema)


def allowed_regions(changes: DataFrame) -> DataFrame:
    """Return the regions that each tenant allows, from the newest of ``changes`` (tenant_changes) that names them."""
    last = newest_setting(changes, f.regexp_extract("details", r'"regions":(null|\[[^\]]*\])', 1))
    names = f.sort_array(f.array_distinct(f.from_json("given", "array<string>")))
    return last.select("tenant", f.coalesce(f.array_join(names, ","), f.lit("")).alias("regions"))
