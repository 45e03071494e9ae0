"""The pipeline on Structured Streaming: the same layers, a micro-batch for each lot of new manifests.

What was processed is written down twice: by Spark in its checkpoint, and in the lake itself, in the commit that holds
the tables. So a batch that is given again after a crash changes nothing.

The watermark tells how far the journal has come, less the lateness that is usual. Lives and levels are merged in the
lake, which holds any lateness, so nothing behind it is dropped: a segment that comes later is counted as late, and re-opens
what it touches.
"""

from __future__ import annotations

import hashlib
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from tenantq.errors import Invalid
from tenantq.journal.manifest import MANIFESTS
from tenantq.pipeline.new_segments import journal_path, new_manifests
from tenantq.pipeline.run import Options, RunReport, process

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tenantq.pipeline.lake import Lake

LATENESS_S: Final = 3_600
"""How far behind the newest segment another may be without being late."""
_POLL_S: Final = 1


class Stopping(Exception):
    """The stream is being stopped; the batch is given again by the next one."""


class Stream:
    """A query at work."""

    query: StreamingQuery

    def __init__(self, newest_ms: int) -> None:
        self.newest_ms = newest_ms  # the newest time that any segment had
        self.batch = threading.Lock()  # held while tables change
        self.stopping = threading.Event()

    def wait(self) -> None:
        """Wait for the end: all is processed, or ``stop`` was called and the batch at work is done. Raise what it failed with."""
        while not self.stopping.is_set():
            try:
                if self.query.awaitTermination(_POLL_S):
                    return
            except StreamingQueryException:
                if not self.stopping.is_set():  # else it is a batch that saw that it must not begin
                    raise
        with self.batch:
            pass  # the one at work is finished; one that begins now sees that it must not
        self.query.stop()

    def stop(self) -> None:
        """Ask for the end; may be called from a signal's handler."""
        self.stopping.set()


def stream(
    spark: SparkSession,
    journal: str,
    lake: Lake,
    options: Options,
    *,
    every_s: float | None = None,
    files_per_batch: int = 1_000,
    lateness_s: int = LATENESS_S,
    now: Callable[[], int] | None = None,
    told: Callable[[RunReport], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> Stream:
    """Start: over what is there now and then end, or with ``every_s`` for ever, looking that often.

    ``now`` tells the wall clock's milliseconds anew for each micro-batch; without it, it stays what ``options`` say.
    """
    root = journal_path(journal)
    with lake.locked():  # finishes what a killed run left, and says at once where another is at work
        new_manifests(spark, root, lake, options)
    place = Path(root) / MANIFESTS
    if not place.is_dir():
        raise Invalid(f"journal {journal}: has no {MANIFESTS}/ yet; begin the stream when the first segment is there")
    found = Stream(_newest_hour_ms(lake))

    def batch(manifests: DataFrame, _: int) -> None:
        session = manifests.sparkSession
        rows = manifests.select("path", f.unix_millis("newest")).collect()
        with found.batch:
            with lake.locked(wait=True):  # an archive or erasure in between is waited for
                if found.stopping.is_set():
                    raise Stopping
                given = {_relative(row[0]) for row in rows}
                wanted, strays = new_manifests(session, root, lake, options)
                refused = lake.read(session, "segments").where("reason != ''").select("manifest").collect()
                given |= {row[0] for row in refused}  # what was repaired is looked at again
                names = [name for name in wanted if name in given]
                asked = options if now is None else msgspec.structs.replace(options, now_ms=now())
                report = process(session, root, lake, names, strays, asked, progress)
            ends = [row[1] for row in rows if row[1] is not None]
            report.late = sum(end < found.newest_ms - lateness_s * 1_000 for end in ends)
            found.newest_ms = max([found.newest_ms, *ends])
            report.watermark = _moment(found.newest_ms - lateness_s * 1_000)
            told(report)

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
    found.query = trigger.start()
    return found


def _newest_hour_ms(lake: Lake) -> int:
    """Return when the newest hour of the lake begins; 0: it is empty."""
    newest = max(lake.partitions("bronze"), default="")
    if not newest:
        return 0
    return int(datetime.strptime(f"{newest} +0000", "date=%Y-%m-%d/hour=%H %z").timestamp() * 1_000)


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(max(ms, 0) / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _relative(path: str) -> str:
    """Return a manifest's name in its journal."""
    *_, shard, file = unquote(path).split("/")
    return f"{MANIFESTS}/{shard}/{file}"
