"""Ingestion: verifies a journal's new segments, with a summary of what their rows affect, and reads the accepted ones."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from tenantq.pipeline.arrow_shuffle import FileRows
from tenantq.pipeline.bronze.quarantine import QUARANTINE, row_faults
from tenantq.pipeline.bronze.row_summary import RowSummary, combined, summarize
from tenantq.pipeline.bronze.rows import BRONZE, RowRules, valid_rows
from tenantq.pipeline.bronze.segments import SEGMENTS, verdicts, verify
from tenantq.pipeline.schemas import SEGMENT_ROW, local_frame
from tenantq.pipeline.silver.queue_resets import QUEUE_RESETS

LOCAL_ROWS: Final = 1_200_000
"""So many rows are verified in this process while Java starts. Spark workers would begin later, and take as long."""
_RESET: Final = StructType([*QUEUE_RESETS.fields, StructField("outcome", StringType())])
_FILE: Final = r"(date=[^/]*/hour=[^/]*/shard=[^/]*/[^/]*)$"


class NewSegments:
    """The new segments of a journal, and their rows that are new in bronze."""

    def __init__(self, spark: Callable[[], SparkSession]) -> None:
        self.verdicts: list[dict[str, Any]] = []  # rows of SEGMENTS
        self.orphans: list[str] = []  # segments that no manifest names
        self.rules = RowRules(unique=True)
        self._files: tuple[str, ...] = ()
        self._rows: DataFrame | None = None
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
            found = verify(self._spark().sparkContext, manifests, journal, public_key, rules)
        self.verdicts = sorted((row for row, _ in found), key=lambda one: str(one["manifest"]))
        self.summary = combined(summary for _, summary in found)

    def read(self, journal: str, rules: RowRules, restore: Callable[[DataFrame], object] | None, known: Callable[[], DataFrame]) -> None:  # fmt: skip
        """Find the rows of accepted segments, without those already ``known`` in bronze.

        ``restore``, if given, gets the rows first, and brings back archived days that they belong to.
        """
        self._files = tuple(str(Path(journal) / one["file"]) for one in self.accepted)
        inexact = self.summary.faulty or bool(rules.erased) or not rules.unique
        if self.summary.faulty:
            self.faults = row_faults(
                self._raw.withColumn("file", f.regexp_extract(f.col("_metadata.file_path"), _FILE, 1)), rules
            )
        else:
            rules = msgspec.structs.replace(rules, now_ms=None)
        if restore is not None:
            restore(valid_rows(self._raw, rules))
        self.rules = rules
        if not rules.unique:
            new = valid_rows(self._raw, rules).join(
                known().select("shard", "seq", "n"), ["shard", "seq", "n"], "left_anti"
            )
            self._rows = new.select(*BRONZE.names).persist(StorageLevel.MEMORY_AND_DISK)
            self._cached.append(self._rows)
        if inexact:
            self.summary = summarize(self.rows)

    @cached_property
    def _raw(self) -> DataFrame:
        return self._spark().read.schema(SEGMENT_ROW).parquet(*self._files).drop("link", "payload")

    @property
    def rows(self) -> DataFrame:
        """The rows that are new in bronze."""
        if self._rows is None:
            self._rows = valid_rows(self._raw, self.rules) if self._files else local_frame(self._spark(), [], BRONZE)
        return self._rows

    def source(self) -> DataFrame | FileRows:
        """Return the same rows, in files if every row of them is new in bronze."""
        if not self.rules.accept_all:
            return self.rows
        return FileRows(self._spark(), map(Path, self._files))

    def frame(self, part: str) -> DataFrame:
        """Return one of the inputs that tables have from the journal: verdicts, orphans, faults or resets."""
        spark = self._spark()
        if part == "verdicts":
            return local_frame(spark, self.verdicts, SEGMENTS)
        if part == "orphans":
            details = "no manifest names this segment"
            lost = [("missing_manifest", file, "", 0, 0, 1, details) for file in self.orphans]
            return local_frame(spark, [dict(zip(QUARANTINE.names, one, strict=True)) for one in lost], QUARANTINE)
        if part == "resets":
            return local_frame(
                spark, [dict(zip(_RESET.names, (*one, "ok"), strict=True)) for one in self.summary.resets], _RESET
            )
        return self.faults if self.faults is not None else local_frame(spark, [], QUARANTINE)

    def close(self) -> None:
        """Release cached rows."""
        for rows in self._cached:
            rows.unpersist()


def overlap(segments: Sequence[dict[str, Any]]) -> bool:
    """Return whether any record is in two of these segments."""
    spans = sorted((one["shard"], one["first_seq"], one["last_seq"]) for one in segments)
    return any(a[0] == b[0] and b[1] <= a[2] for a, b in pairwise(spans))
