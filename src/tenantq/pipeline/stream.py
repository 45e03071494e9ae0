"""The pipeline on Structured Streaming: the same tables, one micro-batch per set of new manifests.

What was processed is recorded twice: by Spark in its checkpoint, and by the lake in the commit of the tables. A batch that
Spark repeats after a crash therefore changes nothing.

The watermark is the newest time in the journal, less the usual lateness. The lake can merge rows of any age, so segments
behind the watermark are processed too. They are counted as late.
"""

import hashlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tenantq.errors import Invalid
from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.manifest import MANIFESTS
from tenantq.pipeline.journal_source import journal_path, new_files
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.run import process
from tenantq.pipeline.run_options import RunOptions, RunReport

LATENESS_S: Final = 3_600
"""How far a segment may be behind the newest one without being late."""
_POLL_S: Final = 1


class Stopping(Exception):
    """The stream is stopping. The next stream gets this batch again."""


class PipelineStream:
    """A running streaming query."""

    query: StreamingQuery

    def __init__(self, newest_ms: int) -> None:
        self.newest_ms = newest_ms  # the newest time of any segment
        self.batch = threading.Lock()  # held while tables change
        self.stopping = threading.Event()

    def wait(self) -> None:
        """Wait until everything is processed, or until the current batch ends after ``stop``. Raise the query's error."""
        while not self.stopping.is_set():
            try:
                if self.query.awaitTermination(_POLL_S):
                    return
            except StreamingQueryException:
                if not self.stopping.is_set():  # otherwise a batch refused to begin because of the stop
                    raise
        with self.batch:
            pass  # the current batch is done; one that begins now refuses
        self.query.stop()

    def stop(self) -> None:
        """Request the end. Signal handlers may call this."""
        self.stopping.set()


def stream(
    spark: SparkSession,
    journal: str,
    lake: Lake,
    options: RunOptions,
    *,
    every_s: float | None = None,
    files_per_batch: int = 1_000,
    lateness_s: int = LATENESS_S,
    now: Callable[[], int] | None = None,
    on_batch: Callable[[RunReport], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> PipelineStream:
    """Start a stream that processes what is new and ends, or that checks every ``every_s`` seconds until stopped.

    ``now`` returns the wall clock in milliseconds for each micro-batch. Without it, the time in ``options`` counts.
    """
    check_local(lake)
    root = journal_path(journal)
    with lake.locked():  # completes what a killed run left, and fails now if another run holds the lock
        new_files(DirectoryTarget(Path(root)), root, lake, options)
    place = Path(root) / MANIFESTS
    if not place.is_dir():
        raise Invalid(f"journal {journal}: has no {MANIFESTS}/ yet. Start the stream after the first export.")
    running = PipelineStream(lake.newest_ms("bronze"))

    def batch(manifests: DataFrame, _: int) -> None:
        rows = manifests.select("path", f.unix_millis("newest")).collect()
        with running.batch:
            with lake.locked(wait=True):  # an archive or erasure may be in progress
                if running.stopping.is_set():
                    raise Stopping
                files = new_files(DirectoryTarget(Path(root)), root, lake, options)
                # Refused segments are verified again, because they may have been repaired.
                given = {_relative(row[0]) for row in rows}
                given |= {row["manifest"] for row in lake.rows("segments") if row["reason"]}
                files.manifests = [name for name in files.manifests if name in given]
                asked = options if now is None else msgspec.structs.replace(options, now_ms=now())
                report = process(manifests.sparkSession, files, lake, asked, progress)
            ends = [row[1] for row in rows if row[1] is not None]
            report.late = sum(end < running.newest_ms - lateness_s * 1_000 for end in ends)
            running.newest_ms = max([running.newest_ms, *ends])
            watermark = datetime.fromtimestamp(max(running.newest_ms / 1_000 - lateness_s, 0), UTC)
            report.watermark = watermark.isoformat(timespec="seconds").replace("+00:00", "Z")
            on_batch(report)

    newest = f.timestamp_millis(f.get_json_object("value", "$.max_ts").try_cast("bigint"))
    manifests = (
        spark.readStream.format("text")
        .schema("value string")
        .option("wholetext", value=True)
        .option("recursiveFileLookup", value=True)
        .option("pathGlobFilter", "[0-9]*.json")
        .option("maxFilesPerTrigger", files_per_batch)
        .load(str(place))
        .select(f.col("_metadata.file_path").alias("path"), newest.alias("newest"))
        .withWatermark("newest", f"{lateness_s} seconds")
    )
    checkpoint = lake.path / "_checkpoint" / hashlib.sha256(root.encode()).hexdigest()[:16]
    writer = manifests.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    trigger = (
        writer.trigger(availableNow=True) if every_s is None else writer.trigger(processingTime=f"{every_s} seconds")
    )
    running.query = trigger.start()
    return running


def check_local(lake: Lake) -> None:
    """Raise Invalid if a stream cannot keep its checkpoint in a lake."""
    if not lake.tables.is_local:
        raise Invalid(
            f"lake {lake.name}: stream needs a local or mounted directory. Use tenantq pipeline run for a URL."
        )


def _relative(path: str) -> str:
    """Return a manifest's name in its journal."""
    *_, shard, file = unquote(path).split("/")
    return f"{MANIFESTS}/{shard}/{file}"
