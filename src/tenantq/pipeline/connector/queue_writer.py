"""``df.write.format("tenantq")`` and ``writeStream``: every row becomes a message, added once even if its task is repeated."""

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tenantq.client import Retries
from tenantq.errors import Invalid
from tenantq.pipeline.connector.batch_sender import BatchSender, WriteCounts
from tenantq.pipeline.connector.message_rows import check_columns, message_rows
from tenantq.pipeline.connector.options import WriteOptions
from tenantq.pipeline.connector.row_keys import RowKeys
from tenantq.pipeline.connector.tracebacks import without_traceback

log = logging.getLogger("tenantq.connector")

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RETRIES: Final = Retries(count=2, base_ms=100, max_ms=1_000)
"""Retries of the client: few, because the writer itself waits longer."""


def total(messages: Sequence[WriterCommitMessage | None]) -> WriteCounts:
    """Return the sum of the counts of tasks. None is a task that failed."""
    counts = [one for one in messages if isinstance(one, WriteCounts)]
    return WriteCounts(
        sum(one.rows for one in counts), sum(one.added for one in counts), sum(one.duplicates for one in counts)
    )


class QueueWriter(DataSourceArrowWriter):
    """Adds the rows of a data frame. All tasks of a write share its id, also repeated ones."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(options, schema, overwrite=overwrite)
        self._options = options
        self._fallback_id = uuid.uuid4().hex

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteCounts:
        """Add a task's rows."""
        return add_rows(iterator, self._options, self._options.write_id or _of_stream() or self._fallback_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the counts."""
        log.info("write done: %r", total(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many messages were added; they stay."""
        log.warning("write failed; added by tasks that succeeded: %r", total(messages))


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Adds the rows of a stream by micro-batch. A batch that is repeated after a crash keeps its id."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(options, schema, overwrite=overwrite)
        self._options = options

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteCounts:
        """Add a task's rows."""
        found = _of_stream(self._options.write_id)
        if found is None:
            raise Invalid("Spark did not report the ID of this micro-batch. Add a column key with a key for each row.")
        return add_rows(iterator, self._options, found)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log the counts."""
        log.info("batch %d done: %r", batchId, total(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log what was added."""
        log.warning("batch %d failed; added by tasks that succeeded: %r", batchId, total(messages))


def add_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions, write_id: str) -> WriteCounts:
    """Add rows under keys that belong to ``write_id``; return the counts."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    task = f"partition {partition}"
    keys = RowKeys(write_id, partition, once=options.identical_rows == "once")
    keyed = (
        msgspec.structs.replace(row, message=msgspec.structs.replace(row.message, key=keys.key(row)))
        for row in message_rows(batches, options, task)
    )
    with options.client(_RETRIES) as client:
        sender = BatchSender(client, batch_size=options.batch_size, max_wait_ms=options.max_wait_ms, task=task)
        sender.send_all(keyed)
    return sender.counts


def _of_stream(write_id: str | None = None) -> str | None:
    """Return an id for the task's micro-batch; None outside of a stream."""
    context = TaskContext.get()
    if context is None:
        return None
    query, batch = write_id or context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    return f"{query}/{batch}" if query and batch else None


def _check(options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise Invalid('only .mode("append") is supported. Purge the queue first if it should be empty.')
    check_columns(schema, options)
    options.check()
