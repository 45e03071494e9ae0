"""``spark.read.format("tenantq")`` of a journal: segments found at the driver, skipped by what filters say, read by the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from tenantq.pipeline.connector.journal_rows import JournalRows
from tenantq.pipeline.connector.pushdown import Pushed, taken
from tenantq.pipeline.connector.record_ranges import Manifests, Stretches, open_journal, packed, spans
from tenantq.pipeline.connector.tracebacks import plainly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition
    from pyspark.sql.types import StructType

    from tenantq.pipeline.connector.options import JournalOptions


class PlainJournalReader(DataSourceReader):
    """Reads a journal as it is at the moment of planning; Spark applies all filters."""

    def __init__(self, options: JournalOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = Pushed()

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Return a task for every few segments that can hold a wanted row."""
        target = open_journal(self._options.journal)
        near = [span for span in spans(target) if self._pushed.wants_span(span)]
        wanted = [stretch for stretch in Manifests(target, self._options).of(near) if self._pushed.wants(stretch)]
        return packed(wanted, self._options.partition_bytes) or [Stretches([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        assert isinstance(partition, Stretches)
        return JournalRows(self._options, self._schema, self._pushed).read(partition.stretches)


class JournalReader(PlainJournalReader):
    """Applies what filters it can by itself."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take filters over; return those that Spark must apply."""
        mine, rest = taken(filters)
        self._pushed = Pushed(mine)
        return rest
