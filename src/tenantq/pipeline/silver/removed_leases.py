"""Leases that ended because their message was removed. Only the life of the message says that it was leased."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tenantq.pipeline.arrow_columns import whole

RemovedLease = tuple[str, str, str, int, int, datetime]
"""Tenant, and the shard, queue, record, row and time of the remove."""
_LAST = ("shard", "queue", "seq", "place", "at")


def removed_leases(lives: pa.Table) -> pa.Table:
    """Return the lives whose lease ended because their message was removed."""
    return lives.filter(_is_removed_lease(lives))


def removed_leases_in(files: Iterable[Path]) -> set[RemovedLease]:
    """Return the leases in files of ``message_lives`` that ended because their message was removed, read without Spark."""
    found: set[RemovedLease] = set()
    for file in files:
        with pq.ParquetFile(file) as opened:
            wanted = _is_removed_lease(opened.read(["outcome", "leased_at_end"], use_threads=False))
            if pc.any(wanted).as_py():
                lives = opened.read(["tenant", "last"], use_threads=False).filter(wanted)
                last = [whole(lives["last"]).field(name).to_pylist() for name in _LAST]
                found.update(zip(lives["tenant"].to_pylist(), *last, strict=True))
    return found


def _is_removed_lease(lives: pa.Table) -> pa.Array:
    return pc.and_(pc.equal(whole(lives["outcome"]), "removed"), whole(lives["leased_at_end"]))
