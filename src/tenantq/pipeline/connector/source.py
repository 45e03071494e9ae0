"""The Spark data source ``tenantq``: chooses the reader or writer that the options ask for."""

from typing import Final

from pyspark.sql import SparkSession, datasource
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tenantq.errors import Invalid
from tenantq.pipeline.connector.columns import check_schema
from tenantq.pipeline.connector.journal_reader import BatchJournalReader, FilteringJournalReader
from tenantq.pipeline.connector.journal_stream import JournalStreamReader
from tenantq.pipeline.connector.options import (
    JournalOptions,
    SnapshotOptions,
    StreamOptions,
    WriteOptions,
    read_options,
)
from tenantq.pipeline.connector.queue_reader import QueueReader
from tenantq.pipeline.connector.queue_writer import QueueStreamWriter, QueueWriter
from tenantq.pipeline.schemas import JOURNAL, MESSAGES, SEGMENT_ROW

FORMAT: Final = "tenantq"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register ``format("tenantq")`` with a session, and enable filter pushdown."""
    spark.dataSource.register(TenantqSource)
    spark.conf.set(PUSHDOWN, "true")


class TenantqSource(DataSource):
    """A journal to read or follow, or a queue to read or add to. It keeps nothing but the options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(…)``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the journal or the queue."""
        return MESSAGES if self._is_queue() else JOURNAL

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return a batch reader."""
        if self._is_queue():
            return QueueReader(read_options(SnapshotOptions, self.options), schema)
        options = read_options(JournalOptions, self.options)
        kind = FilteringJournalReader if options.pushdown else BatchJournalReader
        return kind(options, check_schema(schema, SEGMENT_ROW, "the journal"))

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return a reader that follows a journal."""
        if self._is_queue():
            raise Invalid("queues cannot be read as a stream. Stream the journal, or use a worker.")
        return JournalStreamReader(
            read_options(StreamOptions, self.options), check_schema(schema, SEGMENT_ROW, "the journal")
        )

    def _is_queue(self) -> bool:
        """Return whether the options ask for a queue, not a journal."""
        if "url" in self.options and "journal" in self.options:
            raise Invalid("options url and journal: give url to read a queue, or journal to read a journal")
        if "url" not in self.options and "journal" not in self.options:
            raise Invalid('give .option("journal", …) to read a journal, or .option("url", …) to read a queue')
        return "url" in self.options

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:  # noqa: FBT001  # Spark's signature
        """Return a writer that adds rows to queues."""
        return QueueWriter(read_options(WriteOptions, self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:  # noqa: FBT001, N802  # likewise
        """Return a writer that adds the rows of a stream to queues."""
        return QueueStreamWriter(read_options(WriteOptions, self.options), schema, overwrite=overwrite)
