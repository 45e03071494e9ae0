"""``spark.read.format("tenantq")`` of a journal: the driver finds the segments, and tasks read them."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tenantq.pipeline.connector.journal_rows import JournalRows
from tenantq.pipeline.connector.options import JournalOptions
from tenantq.pipeline.connector.pushdown import PushedFilters, split_filters
from tenantq.pipeline.connector.record_ranges import ManifestReader, SegmentParts, open_journal, pack, record_ranges
from tenantq.pipeline.connector.tracebacks import without_traceback


class BatchJournalReader(DataSourceReader):
    """Reads a journal as it is when the query is planned. Spark applies all filters."""

    def __init__(self, options: JournalOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters = PushedFilters()

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Return a task for every few segments that can have a wanted row."""
        target = open_journal(self._options.journal)
        near = [span for span in record_ranges(target) if self._filters.want_range(span)]
        wanted = [part for part in ManifestReader(target, self._options).read(near) if self._filters.want_part(part)]
        return pack(wanted, self._options.partition_bytes) or [SegmentParts([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        assert isinstance(partition, SegmentParts)
        return JournalRows(self._options, self._schema, self._filters).read(partition.parts)


class FilteringJournalReader(BatchJournalReader):
    """Applies the filters it supports itself."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take over supported filters; return those that Spark must apply."""
        supported, rest = split_filters(filters)
        self._filters = PushedFilters(supported)
        return rest
