"""Ingestion: verifies a journal's new segments, reads the accepted ones, and summarizes what their rows touch."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tenantq.pipeline.bronze.quarantine import row_faults
from tenantq.pipeline.bronze.rows import RowRules, bronze, row_fault
from tenantq.pipeline.bronze.segments import verdicts, verify
from tenantq.pipeline.schemas import BRONZE, QUARANTINE, SEGMENT_ROW, SEGMENTS, local_frame
from tenantq.pipeline.silver.message_lives import life_date, tells_of_life
from tenantq.pipeline.silver.queue_resets import is_reset

_FILES_PER_TASK: Final = 4
LOCAL_ROWS: Final = 200_000
"""So many rows are verified in this process: it takes a second or two, less than Java needs to start."""
_HOUR_MS: Final = 3_600_000
_FILE: Final = r"(date=[^/]*/hour=[^/]*/shard=[^/]*/[^/]*)$"


class RowSummary(msgspec.Struct, frozen=True):
    """The partitions and messages that new rows affect. Partitions are named by their directories."""

    rows: int = 0  # valid ones
    faulty: bool = False  # whether there are invalid ones
    hours: dict[str, int] = {}  # partition of bronze -> rows
    lives: dict[str, int] = {}  # partition of message_lives -> lives that begin; 0 where one only continues
    first_reset: datetime | None = None  # when the first of them emptied a queue


class NewSegments:
    """The new segments of a journal. ``rows`` under ``rules`` are the rows that are new in bronze."""

    def __init__(self, spark: Callable[[], SparkSession]) -> None:
        self.verdicts: list[dict[str, Any]] = []  # rows of SEGMENTS
        self.strays: list[str] = []  # segments that no manifest names
        self.rows: DataFrame | None = None
        self.rules = RowRules(unique=True)
        self.faults: DataFrame | None = None
        self.summary = RowSummary()
        self._cached: list[DataFrame] = []
        self._spark = spark

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """The segments that passed verification."""
        return [one for one in self.verdicts if not one["reason"]]

    def verify(self, journal: str, manifests: Sequence[str], public_key: Path | None, rows: int) -> None:
        """Verify the segments of these manifests: in this process if they have few ``rows``, else on Spark workers."""
        if rows <= LOCAL_ROWS:
            found = list(verdicts(manifests, journal, public_key))
        else:
            tasks = max(1, len(manifests) // _FILES_PER_TASK)
            names = self._spark().createDataFrame([(name,) for name in manifests], "manifest string").repartition(tasks)
            found = [row.asDict() for row in verify(names, journal, public_key).collect()]
        self.verdicts = sorted(found, key=lambda one: str(one["manifest"]))

    def read(self, journal: str, rules: RowRules, restore: Callable[[DataFrame], object], known: Callable[[], DataFrame]) -> None:  # fmt: skip
        """Read the rows of accepted segments, without those already ``known`` in bronze, and summarize them.

        ``restore`` gets the rows first, and brings back archived days that they belong to.
        """
        files = [str(Path(journal) / one["file"]) for one in self.accepted]
        raw = self._spark().read.schema(SEGMENT_ROW).parquet(*files).drop("link", "payload")
        self.summary = summarize(raw, rules)
        if self.summary.faulty:
            self.faults = row_faults(
                raw.withColumn("file", f.regexp_extract(f.col("_metadata.file_path"), _FILE, 1)), rules
            )
        else:
            rules = msgspec.structs.replace(rules, now_ms=None)
        restore(bronze(raw, rules))
        self.rows, self.rules = raw, rules
        if not rules.unique:
            new = bronze(raw, rules).join(known().select("shard", "seq", "n"), ["shard", "seq", "n"], "left_anti")
            self.rows = new.select(*BRONZE.names).persist(StorageLevel.MEMORY_AND_DISK)
            self.rules = RowRules(unique=True)
            self._cached.append(self.rows)
        if not rules.unique or rules.erased:
            self.summary = summarize(bronze(self.rows, self.rules), self.rules)

    def frame(self, part: str) -> DataFrame:
        """Return one of the inputs that tables have from the journal: verdicts, strays, faults or rows."""
        if part == "verdicts":
            return local_frame(self._spark(), self.verdicts, SEGMENTS)
        if part == "strays":
            details = "no manifest names this segment"
            lost = [("missing_manifest", file, "", 0, 0, 1, details) for file in self.strays]
            return local_frame(
                self._spark(), [dict(zip(QUARANTINE.names, one, strict=True)) for one in lost], QUARANTINE
            )
        found, columns = {"faults": (self.faults, QUARANTINE), "rows": (self.rows, BRONZE)}[part]
        return found if found is not None else local_frame(self._spark(), [], columns)

    def close(self) -> None:
        """Release cached rows."""
        for rows in self._cached:
            rows.unpersist()


def overlap(segments: Sequence[dict[str, Any]]) -> bool:
    """Return whether any record is in two of these segments."""
    spans = sorted((one["shard"], one["first_seq"], one["last_seq"]) for one in segments)
    return any(a[0] == b[0] and b[1] <= a[2] for a, b in pairwise(spans))


def summarize(rows: DataFrame, rules: RowRules) -> RowSummary:
    """Summarize journal rows in one pass. Each row must occur once."""
    looked_at = rows.select(
        row_fault(rules).alias("reason"),
        f.floor(f.unix_millis("ts") / _HOUR_MS).alias("hour"),
        f.when(tells_of_life(), life_date()).alias("day"),
        (tells_of_life() & (f.col("op") == "add")).alias("begins"),
        f.when(is_reset(), f.col("ts")).alias("reset"),
    )
    grouped = looked_at.groupBy("reason", "hour", "day")
    seen = grouped.agg(f.count("*"), f.count_if("begins"), f.min("reset")).collect()
    valid = [row for row in seen if not row[0]]
    hours, lives = Counter[str](), Counter[str]()
    for _, number, date, count, begins, _ in valid:
        hours[f"{datetime.fromtimestamp(number * _HOUR_MS // 1_000, UTC):date=%Y-%m-%d/hour=%H}"] += count
        if date is not None:
            lives[f"date={date}"] += begins
    first_reset = min((row[5] for row in valid if row[5] is not None), default=None)
    return RowSummary(hours.total(), len(valid) < len(seen), dict(hours), dict(lives), first_reset)
