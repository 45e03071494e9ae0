"""``spark.readStream.format("tenantq")``: a journal as it grows, by micro-batches with fixed bounds.

The bounds are record numbers, and segments never change, so a batch that is read again after a crash has the same rows.
"""

from __future__ import annotations

import heapq
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tenantq.errors import Invalid, StoreDamaged
from tenantq.pipeline.connector.journal_rows import JournalRows
from tenantq.pipeline.connector.offsets import Offset, parse_starting
from tenantq.pipeline.connector.pushdown import Pushed
from tenantq.pipeline.connector.record_ranges import Manifests, Span, Stretch, Stretches, open_journal, packed, spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from tenantq.pipeline.connector.options import StreamOptions


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a journal. What it keeps between calls is a cache; everything that counts is in the offsets."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._limit = _chosen_limit(options)
        self._target_end: dict[str, int] | None = None  # of a query that reads what is there and ends
        self._manifests: Manifests | None = None

    # ---- where it is ----

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where a new query begins."""
        where = self._options.starting_offsets
        if where not in {"earliest", "latest"}:
            return Offset.beginning(parse_starting(where)).plain()
        there = self._spans()
        if where == "latest":
            return Offset.beginning(_ends(there)).plain()
        return Offset.beginning({shard: first - 1 for shard, first in _firsts(there).items()}).plain()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return how far the next batch goes: at least one record further if there is any, and within the limit."""
        begun = Offset.of(start)
        new = self._following(begun.end)
        if self._target_end is not None:
            new = _within(new, {}, self._target_end)
        if isinstance(limit, ReadAllAvailable):
            return begun.reached(_ends(new)).plain()
        return begun.reached(self._limited(new, limit)).plain()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit that the options ask for."""
        return self._limit

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """Return how far the journal goes."""
        return Offset({}, _ends(self._spans())).plain()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Note how far the journal goes now: this query reads no further."""
        self._target_end = _ends(self._spans())

    # ---- what a batch reads ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch; raise StoreDamaged where a part of it is not there any more."""
        until = Offset.of(end)
        since = Offset.of(start).before(until)
        wanted = _within(self._spans(), since, until.end)
        if self._options.on_gap != "skip":
            _check_whole(wanted, since, until.end)
        return packed(self._read_manifests().of(wanted), self._options.partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        assert isinstance(partition, Stretches)
        return JournalRows(self._options, self._schema, Pushed()).read(partition.stretches)

    # ---- the journal ----

    def _spans(self) -> list[Span]:
        return spans(open_journal(self._options.journal))

    def _read_manifests(self) -> Manifests:
        if self._manifests is None:
            self._manifests = Manifests(open_journal(self._options.journal), self._options)
        return self._manifests

    def _following(self, since: dict[str, int]) -> list[Span]:
        """Return what is new, each shard without a gap, by shard and records."""
        new: list[Span] = []
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

    def _limited(self, new: list[Span], limit: ReadLimit) -> dict[str, int]:
        """Return how far a limit lets each shard go. The shards advance together, by the time of their records."""
        ends: dict[str, int] = {}
        left = _amount(limit)
        for count, stretch in enumerate(self._by_time(new)):
            size = self._size(stretch, limit)
            if size <= left or (count == 0 and not isinstance(limit, ReadMaxRows)):
                ends[stretch.span.shard] = stretch.span.last
                left -= size
                continue
            if isinstance(limit, ReadMaxRows):
                cut = self._cut(stretch, left, at_least_one=count == 0)
                if cut >= stretch.span.first:
                    ends[stretch.span.shard] = cut
            break
        return ends

    def _by_time(self, new: list[Span]) -> Iterator[Stretch]:
        """Yield segments by the time they begin, each shard's in order; manifests are read as they are come to."""
        manifests = self._read_manifests()
        manifests.forget(new)
        lines = [iter(list(mine)) for _, mine in groupby(new, key=lambda one: one.shard)]
        heads: list[tuple[int, str, int]] = []
        waiting: dict[int, Stretch] = {}

        def advance(line: int) -> None:
            span = next(lines[line], None)
            if span is not None:
                (stretch,) = manifests.of([span])
                waiting[line] = stretch
                heapq.heappush(heads, (stretch.manifest.min_ts, span.shard, line))

        for line in range(len(lines)):
            advance(line)
        while heads:
            line = heapq.heappop(heads)[2]
            yield waiting.pop(line)
            advance(line)

    def _size(self, stretch: Stretch, limit: ReadLimit) -> int:
        if isinstance(limit, ReadMaxFiles):
            return 1
        if isinstance(limit, ReadMaxBytes):
            return stretch.manifest.size
        return stretch.manifest.rows if stretch.is_whole else len(self._seqs(stretch))

    def _seqs(self, stretch: Stretch) -> pa.ChunkedArray:
        """Return the record number of every row of a stretch."""
        with open_journal(self._options.journal).open(stretch.manifest.file) as file:
            seqs = pq.read_table(file, columns=["seq"])["seq"]
        inside = pc.and_(pc.greater_equal(seqs, stretch.span.first), pc.less_equal(seqs, stretch.span.last))
        return seqs.filter(inside)

    def _cut(self, stretch: Stretch, rows: int, *, at_least_one: bool) -> int:
        """Return the last record up to which a stretch has at most ``rows`` rows; a record is never divided."""
        seqs = self._seqs(stretch)
        behind: int = seqs[rows].as_py()
        if at_least_one and behind == stretch.span.first:
            return behind
        return behind - 1


def _chosen_limit(options: StreamOptions) -> ReadLimit:
    given = {
        "maxRowsPerBatch": (ReadMaxRows, options.max_rows_per_batch),
        "maxSegmentsPerBatch": (ReadMaxFiles, options.max_segments_per_batch),
        "maxBytesPerBatch": (ReadMaxBytes, options.max_bytes_per_batch),
    }
    chosen = {name: (kind, value) for name, (kind, value) in given.items() if value is not None}
    if len(chosen) > 1:
        raise Invalid(f"options {' and '.join(chosen)}: Spark takes one limit; give one of them")
    for kind, value in chosen.values():
        assert value is not None
        return kind(value)
    return ReadAllAvailable()


def _amount(limit: ReadLimit) -> int:
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    if isinstance(limit, ReadMaxFiles):
        return limit.max_files
    if isinstance(limit, ReadMaxBytes):
        return limit.max_bytes
    raise Invalid(f"{type(limit).__name__}: a journal cannot be read by this limit")


def _firsts(there: Iterable[Span]) -> dict[str, int]:
    firsts: dict[str, int] = {}
    for span in there:
        firsts.setdefault(span.shard, span.first)
    return firsts


def _ends(there: Iterable[Span]) -> dict[str, int]:
    return {span.shard: span.last for span in there}


def _within(there: Iterable[Span], since: dict[str, int], until: dict[str, int] | None) -> list[Span]:
    """Return the parts of spans that lie behind ``since`` and not behind ``until``."""
    found: list[Span] = []
    for span in there:
        first = max(span.first, since.get(span.shard, 0) + 1)
        last = span.last if until is None else min(span.last, until.get(span.shard, 0))
        if first <= last:
            found.append(msgspec.structs.replace(span, first=first, last=last))
    return found


def _check_whole(wanted: Iterable[Span], since: dict[str, int], until: dict[str, int]) -> None:
    """Raise StoreDamaged unless every record between two offsets is there."""
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
