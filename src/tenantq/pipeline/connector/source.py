"""The data source that Spark knows as ``tenantq``: which options ask for which reader or writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from tenantq.errors import Invalid
from tenantq.pipeline.connector.journal_reader import JournalReader, PlainJournalReader
from tenantq.pipeline.connector.journal_rows import check_schema
from tenantq.pipeline.connector.journal_stream import JournalStream
from tenantq.pipeline.connector.options import (
    JournalOptions,
    SnapshotOptions,
    StreamOptions,
    WriteOptions,
    read_options,
)
from tenantq.pipeline.connector.queue_reader import MESSAGES, QueueReader
from tenantq.pipeline.connector.queue_writer import QueueStreamWriter, QueueWriter
from tenantq.pipeline.schemas import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

FORMAT: Final = "tenantq"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make ``format("tenantq")`` known to a session, and allow filters to be pushed down."""
    spark.dataSource.register(TenantqSource)
    spark.conf.set(PUSHDOWN, "true")


class TenantqSource(DataSource):
    """A journal, a queue's content, or a queue to add to. Nothing is kept here but the options."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in ``format(…)``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of what the options name."""
        return MESSAGES if self._is_queue() else JOURNAL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it once."""
        if self._is_queue():
            return QueueReader(read_options(SnapshotOptions, self.options), schema)
        options = read_options(JournalOptions, self.options)
        kind = JournalReader if options.pushdown else PlainJournalReader
        return kind(options, check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return what follows a journal."""
        if self._is_queue():
            raise Invalid("a queue's content cannot be followed; follow the journal, or poll with a worker")
        return JournalStream(read_options(StreamOptions, self.options), check_schema(schema))

    def _is_queue(self) -> bool:
        """Tell whether a queue is to be read, and not a journal."""
        if "url" in self.options and "journal" in self.options:
            raise Invalid("options url and journal: give url to read a queue, or journal to read a journal")
        if "url" not in self.options and "journal" not in self.options:
            raise Invalid('give .option("journal", …) to read a journal, or .option("url", …) to read a queue')
        return "url" in self.options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  # Spark's signature
        """Return what adds a data frame's rows to queues."""
        return QueueWriter(read_options(WriteOptions, self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802  # likewise
        """Return what adds a stream's rows to queues."""
        return QueueStreamWriter(read_options(WriteOptions, self.options), schema, overwrite=overwrite)
