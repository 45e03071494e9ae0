"""``spark.readStream.format("tenantq")``: follows a journal in micro-batches with fixed bounds.

The bounds are record numbers, and segments never change, so a batch that is repeated after a crash has the same rows.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource as streaming
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tenantq.errors import Invalid, StoreDamaged
from tenantq.pipeline.connector.journal_rows import JournalRows
from tenantq.pipeline.connector.offsets import Offset, parse_starting
from tenantq.pipeline.connector.options import StreamOptions
from tenantq.pipeline.connector.pushdown import PushedFilters
from tenantq.pipeline.connector.record_ranges import (
    ManifestReader,
    RecordRange,
    SegmentPart,
    SegmentParts,
    open_journal,
    pack,
    record_ranges,
)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a journal. Its position is in the offsets; everything else it keeps is a cache."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._limit = _chosen_limit(options)
        self._target_end: dict[str, int] | None = None  # the end of a query that stops at the current records
        self._manifests: ManifestReader | None = None

    # ---- position ----

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where a new query begins."""
        where = self._options.starting_offsets
        if where not in {"earliest", "latest"}:
            return Offset.beginning(parse_starting(where)).plain()
        there = self._spans()
        if where == "latest":
            return Offset.beginning(_ends(there)).plain()
        # If a shard has several ranges, the first one is set last and wins.
        firsts = {span.shard: span.first - 1 for span in reversed(there)}
        return Offset.beginning(dict(sorted(firsts.items()))).plain()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the end of the next batch: within the limit, but at least one record further if there is one."""
        begun = Offset.of(start)
        new = self._following(begun.end)
        if self._target_end is not None:
            new = _within(new, {}, self._target_end)
        if isinstance(limit, streaming.ReadAllAvailable):
            return begun.reached(_ends(new)).plain()
        return begun.reached(self._limited(new, limit)).plain()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit that the options ask for."""
        return self._limit

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """Return the end of the journal."""
        return Offset({}, _ends(self._spans())).plain()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Record the current end of the journal: this query reads no further."""
        self._target_end = _ends(self._spans())

    # ---- reading a batch ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch; raise StoreDamaged if some of its records are missing."""
        until = Offset.of(end)
        since = Offset.of(start).before(until)
        wanted = _within(self._spans(), since, until.end)
        if self._options.on_gap != "skip":
            _check_whole(wanted, since, until.end)
        return pack(self._read_manifests().read(wanted), self._options.partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        assert isinstance(partition, SegmentParts)
        return JournalRows(self._options, self._schema, PushedFilters()).read(partition.parts)

    # ---- the journal ----

    def _spans(self) -> list[RecordRange]:
        return record_ranges(open_journal(self._options.journal))

    def _read_manifests(self) -> ManifestReader:
        if self._manifests is None:
            self._manifests = ManifestReader(open_journal(self._options.journal), self._options)
        return self._manifests

    def _following(self, since: dict[str, int]) -> list[RecordRange]:
        """Return the ranges after ``since``, without a gap in any shard."""
        new: list[RecordRange] = []
        for shard, mine in groupby(_within(self._spans(), since, None), key=lambda one: one.shard):
            end = since.get(shard)
            for span in mine:
                if end is not None and span.first > end + 1 and self._options.on_gap != "skip":
                    if self._options.on_gap == "fail":
                        raise StoreDamaged(_gap(shard, end + 1, span.first - 1))
                    break
                new.append(span)
                end = span.last
        return new

    def _limited(self, new: list[RecordRange], limit: ReadLimit) -> dict[str, int]:
        """Return the end of each shard within a limit. The shards advance together, by the time of their records."""
        ends: dict[str, int] = {}
        left = _amount(limit)
        for count, part in enumerate(self._by_time(new)):
            size = self._size(part, limit)
            if size <= left or (count == 0 and not isinstance(limit, ReadMaxRows)):
                ends[part.span.shard] = part.span.last
                left -= size
                continue
            if isinstance(limit, ReadMaxRows):
                cut = self._cut(part, left, at_least_one=count == 0)
                if cut >= part.span.first:
                    ends[part.span.shard] = cut
            break
        return ends

    def _by_time(self, new: list[RecordRange]) -> Iterator[SegmentPart]:
        """Yield segments by the time they begin, in order per shard. Manifests are read when needed."""
        manifests = self._read_manifests()
        manifests.forget(new)
        shards = [list(mine) for _, mine in groupby(new, key=lambda one: one.shard)]
        parts = (map(manifests.read_one, mine) for mine in shards)
        return heapq.merge(*parts, key=lambda part: (part.manifest.min_ts, part.span.shard))

    def _size(self, part: SegmentPart, limit: ReadLimit) -> int:
        if isinstance(limit, streaming.ReadMaxFiles):
            return 1
        if isinstance(limit, streaming.ReadMaxBytes):
            return part.manifest.size
        return part.manifest.rows if part.is_whole else len(self._seqs(part))

    def _seqs(self, part: SegmentPart) -> pa.ChunkedArray:
        """Return the record number of every row of a part."""
        with open_journal(self._options.journal).open(part.manifest.file) as file:
            seqs = pq.read_table(file, columns=["seq"])["seq"]
        inside = pc.and_(pc.greater_equal(seqs, part.span.first), pc.less_equal(seqs, part.span.last))
        return seqs.filter(inside)

    def _cut(self, part: SegmentPart, rows: int, *, at_least_one: bool) -> int:
        """Return the last record up to which a part has at most ``rows`` rows. Records are never divided."""
        seqs = self._seqs(part)
        behind: int = seqs[rows].as_py()
        if at_least_one and behind == part.span.first:
            return behind
        return behind - 1


def _chosen_limit(options: StreamOptions) -> ReadLimit:
    chosen: dict[str, ReadLimit] = {}
    if options.max_rows_per_batch is not None:
        chosen["maxRowsPerBatch"] = ReadMaxRows(options.max_rows_per_batch)
    if options.max_segments_per_batch is not None:
        chosen["maxSegmentsPerBatch"] = streaming.ReadMaxFiles(options.max_segments_per_batch)
    if options.max_bytes_per_batch is not None:
        chosen["maxBytesPerBatch"] = streaming.ReadMaxBytes(options.max_bytes_per_batch)
    if len(chosen) > 1:
        raise Invalid(f"options {' and '.join(chosen)}: only one limit is allowed. Give one of them.")
    return next(iter(chosen.values()), streaming.ReadAllAvailable())


def _amount(limit: ReadLimit) -> int:
    for name in ("max_rows", "max_files", "max_bytes"):
        if hasattr(limit, name):
            return int(getattr(limit, name))
    raise Invalid(f"{type(limit).__name__}: a journal cannot be read by this limit")


def _ends(there: Iterable[RecordRange]) -> dict[str, int]:
    return {span.shard: span.last for span in there}


def _within(there: Iterable[RecordRange], since: dict[str, int], until: dict[str, int] | None) -> list[RecordRange]:
    """Return the parts of ranges after ``since`` and up to ``until``."""
    found: list[RecordRange] = []
    for span in there:
        first = max(span.first, since.get(span.shard, 0) + 1)
        last = span.last if until is None else min(span.last, until.get(span.shard, 0))
        if first <= last:
            found.append(msgspec.structs.replace(span, first=first, last=last))
    return found


def _check_whole(wanted: Iterable[RecordRange], since: dict[str, int], until: dict[str, int]) -> None:
    """Raise StoreDamaged unless every record between two offsets exists."""
    reached = {shard: since.get(shard) for shard in until}
    for span in wanted:
        end = reached[span.shard]
        if end is not None and span.first > end + 1:
            raise StoreDamaged(_gap(span.shard, end + 1, span.first - 1))
        reached[span.shard] = span.last
    for shard, end in reached.items():
        if end is None or end < until[shard]:
            raise StoreDamaged(_gap(shard, (end or 0) + 1, until[shard]))


def _gap(shard: str, first: int, last: int) -> str:
    return (
        f"records {first} to {last} of shard {shard} are not in the journal; put the segments and manifests back,"
        ' or accept the loss with .option("onGap", "skip")'
    )
