"""Ingestion: verifies a journal's new segments, with a summary of what their rows affect, and reads the accepted ones."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tenantq.pipeline.bronze.quarantine import row_faults
from tenantq.pipeline.bronze.row_summary import RowSummary, combined, summarize
from tenantq.pipeline.bronze.rows import RowRules, bronze
from tenantq.pipeline.bronze.segments import verdicts, verify
from tenantq.pipeline.schemas import BRONZE, QUARANTINE, SEGMENT_ROW, SEGMENTS, local_frame

_FILES_PER_TASK: Final = 4
LOCAL_ROWS: Final = 1_200_000
"""So many rows are verified in this process while Java starts. Spark workers would begin later, and take as long."""
_FILE: Final = r"(date=[^/]*/hour=[^/]*/shard=[^/]*/[^/]*)$"


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

    def verify(
        self, journal: str, manifests: Sequence[str], public_key: Path | None, rules: RowRules, rows: int
    ) -> None:
        """Verify the segments of these manifests: in this process if they have few ``rows``, else on Spark workers."""
        if rows <= LOCAL_ROWS:
            found = list(verdicts(manifests, journal, public_key, rules))
        else:
            tasks = max(1, len(manifests) // _FILES_PER_TASK)
            names = self._spark().createDataFrame([(name,) for name in manifests], "manifest string").repartition(tasks)
            found = verify(names, journal, public_key, rules)
        self.verdicts = sorted((row for row, _ in found), key=lambda one: str(one["manifest"]))
        self.summary = combined(summary for _, summary in found)

    def read(self, journal: str, rules: RowRules, restore: Callable[[DataFrame], object], known: Callable[[], DataFrame]) -> None:  # fmt: skip
        """Read the rows of accepted segments, without those already ``known`` in bronze.

        ``restore`` gets the rows first, and brings back archived days that they belong to.
        """
        files = [str(Path(journal) / one["file"]) for one in self.accepted]
        raw = self._spark().read.schema(SEGMENT_ROW).parquet(*files).drop("link", "payload")
        inexact = self.summary.faulty or bool(rules.erased) or not rules.unique
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
        if inexact:
            self.summary = summarize(bronze(self.rows, self.rules))

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
