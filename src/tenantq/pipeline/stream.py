"""The pipeline on Structured Streaming: the same layers, a micro-batch for each lot of new manifests.

What was processed is written down twice: by Spark in its checkpoint, and in the lake itself, in the commit that holds
the tables. So a batch that is given again after a crash changes nothing. Lives and levels are merged in the lake, which holds
any lateness; no watermark has to forget anything.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tenantq.journal.manifest import MANIFESTS
from tenantq.pipeline.run import Options, RunReport, new_manifests, process

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tenantq.pipeline.lake import Lake


def stream(
    spark: SparkSession,
    journal: str,
    lake: Lake,
    options: Options,
    *,
    every_s: float | None = None,
    files_per_batch: int = 1_000,
    told: Callable[[RunReport], None] = lambda _: None,
) -> StreamingQuery:
    """Start a query: over what is there now and then end, or with ``every_s`` for ever, looking that often."""
    with lake.locked():  # finishes what a killed run left, and says at once where another is at work
        new_manifests(spark, journal, lake, options)

    def batch(names: DataFrame, _: int) -> None:
        session = names.sparkSession
        given = {_relative(row[0]) for row in names.select("path").collect()}
        with lake.locked():
            wanted, strays = new_manifests(session, journal, lake, options)
            told(process(session, journal, lake, [name for name in wanted if name in given], strays, options))

    root = Path(journal.removeprefix("file://")).absolute()
    manifests = (
        spark.readStream.format("text")
        .schema("value string")
        .option("wholetext", value=True)
        .option("recursiveFileLookup", value=True)
        .option("pathGlobFilter", "[0-9]*.json")
        .option("maxFilesPerTrigger", files_per_batch)
        .load(str(root / MANIFESTS))
        .select(f.col("_metadata.file_path").alias("path"))
    )
    checkpoint = lake.path / "_checkpoint" / hashlib.sha256(str(root).encode()).hexdigest()[:16]
    writer = manifests.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


def _relative(path: str) -> str:
    """Return a manifest's name in its journal."""
    *_, shard, file = path.split("/")
    return f"{MANIFESTS}/{shard}/{file}"
