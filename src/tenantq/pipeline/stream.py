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
from typing import Final
from urllib.parse import unquote

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tenantq.errors import Conflict, Invalid, TenantqError
from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.manifest import MANIFESTS
from tenantq.journal.target_url import shown_url
from tenantq.pipeline.journal_source import local_journal, open_journal, reading
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.manifest_mirror import ManifestMirror
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

    def __init__(self, newest_ms: int, mirror: ManifestMirror | None) -> None:
        self.newest_ms = newest_ms  # the newest time of any segment
        self.batch = threading.Lock()  # held while tables change
        self.stopping = threading.Event()
        self.failure: TenantqError | None = None  # of the batch that ended the query
        self._mirror = mirror

    def wait(self) -> None:
        """Wait until everything is processed, or until the current batch ends after ``stop``. Raise the query's error."""
        try:
            while not self.stopping.is_set():
                if self._mirror is not None:
                    self._mirror.refresh()
                if self._has_ended():
                    return
        except BaseException:
            self.stopping.set()
            raise
        finally:
            with self.batch:
                pass  # the current batch is done; one that begins now refuses
            self.query.stop()
            if self._mirror is not None:
                self._mirror.close()

    def _has_ended(self) -> bool:
        try:
            return bool(self.query.awaitTermination(_POLL_S))
        except StreamingQueryException:
            if self.stopping.is_set():  # a batch refused to begin because of the stop
                return True
            if self.failure is not None:
                raise self.failure from None
            raise

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
    source = open_journal(journal)
    with lake.locked():  # completes what a killed run left, and fails now if another run holds the lock
        lake.rows("segments")
    if isinstance(source, DirectoryTarget) and lake.tables.is_local:
        mirror, watched = None, source.path / MANIFESTS
        checkpoint = lake.path / "_checkpoint" / hashlib.sha256(str(source.path).encode()).hexdigest()[:16]
    else:
        mirror = ManifestMirror(source, journal, lake, every_s)
        watched, checkpoint = mirror.manifests, mirror.root / "_checkpoint"
    with reading(journal):
        if not (watched.is_dir() if mirror is None else source.names(MANIFESTS)):
            raise Invalid(f"journal {shown_url(journal)}: has no {MANIFESTS}/ yet. Start the stream after the first export.")  # fmt: skip
    if mirror is not None:
        mirror.refresh()
    running = PipelineStream(lake.newest_ms("bronze"), mirror)
    batches = _MicroBatches(running, journal, lake, options, lateness_s, now, on_batch, progress)

    newest = f.timestamp_millis(f.get_json_object("value", "$.max_ts").try_cast("bigint"))
    manifests = (
        spark.readStream.format("text")
        .schema("value string")
        .option("wholetext", value=True)
        .option("recursiveFileLookup", value=True)
        .option("pathGlobFilter", "[0-9]*.json")
        .option("maxFilesPerTrigger", files_per_batch)
        .load(str(watched))
        .select(f.col("_metadata.file_path").alias("path"), newest.alias("newest"))
        .withWatermark("newest", f"{lateness_s} seconds")
    )
    writer = manifests.writeStream.foreachBatch(batches.process).option("checkpointLocation", str(checkpoint))
    trigger = (
        writer.trigger(availableNow=True) if every_s is None else writer.trigger(processingTime=f"{every_s} seconds")
    )
    running.query = trigger.start()
    return running


class _MicroBatches:
    """Processes the new manifests that Spark has found."""

    def __init__(
        self, running: PipelineStream, journal: str, lake: Lake, options: RunOptions, lateness_s: int,
        now: Callable[[], int] | None, on_batch: Callable[[RunReport], None], progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._running, self._journal, self._lake, self._options = running, journal, lake, options
        self._lateness_s, self._now, self._on_batch, self._progress = lateness_s, now, on_batch, progress

    def process(self, manifests: DataFrame, _: int) -> None:
        """Process a micro-batch of manifests."""
        running = self._running
        rows = manifests.select("path", f.unix_millis("newest")).collect()
        with running.batch:
            try:
                report = self._compute(manifests.sparkSession, {_relative(row[0]) for row in rows})
            except TenantqError as error:
                running.failure = error
                raise
            ends = [row[1] for row in rows if row[1] is not None]
            report.late = sum(end < running.newest_ms - self._lateness_s * 1_000 for end in ends)
            running.newest_ms = max([running.newest_ms, *ends])
            watermark = datetime.fromtimestamp(max(running.newest_ms / 1_000 - self._lateness_s, 0), UTC)
            report.watermark = watermark.isoformat(timespec="seconds").replace("+00:00", "Z")
            self._on_batch(report)

    def _compute(self, spark: SparkSession, names: set[str]) -> RunReport:
        """Process manifests. At a URL, start again if another process has changed the lake meanwhile."""
        lake, stopping = self._lake, self._running.stopping
        while True:
            with lake.locked(wait=True):  # an archive or erasure may be in progress
                if stopping.is_set():
                    raise Stopping
                # Refused segments are verified again, because they may have been repaired.
                given = names | {row["manifest"] for row in lake.rows("segments") if row["reason"]}
                asked = self._options
                if self._now is not None:
                    asked = msgspec.structs.replace(asked, now_ms=self._now())
                try:
                    with local_journal(self._journal, lake, asked, self._progress, given) as files:
                        return process(spark, files, lake, asked, self._progress)
                except Conflict:
                    if lake.tables.is_local:
                        raise
            while lake.tables.is_claimed() and not stopping.wait(_POLL_S):
                pass


def _relative(path: str) -> str:
    """Return a manifest's name in its journal."""
    *_, shard, file = unquote(path).split("/")
    return f"{MANIFESTS}/{shard}/{file}"
