"""``spark.read.format("tenantq")`` of a queue: everything it holds at one point in time, read by many tasks.

When the query is planned, the server takes a snapshot, and every task reads a part of it. The server drops unused
snapshots after a while.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tenantq.client import Client, Queue, Retries, StoredMessage
from tenantq.errors import NotFound
from tenantq.pipeline.connector.columns import check_schema
from tenantq.pipeline.connector.options import SnapshotOptions
from tenantq.pipeline.connector.tracebacks import without_traceback
from tenantq.pipeline.schemas import MESSAGES

PAGE_MESSAGES: Final = 1_000
_RETRIES: Final = Retries(count=8, base_ms=200, max_ms=30_000)


class SnapshotPart(InputPartition):
    """The messages of a snapshot that one task reads: ids from ``start`` to before ``end``."""

    def __init__(self, snapshot: str, start: str | None, end: str | None) -> None:
        super().__init__(None)
        self.snapshot, self.start, self.end = snapshot, start, end


class QueueReader(DataSourceReader):
    """Reads a queue without changing it. Every run of the query takes its own snapshot, unless one is given."""

    def __init__(self, options: SnapshotOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(schema, MESSAGES, "a message")

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Open a snapshot and return its parts."""
        if self._options.snapshot is not None:
            return [SnapshotPart(self._options.snapshot, None, None)]
        with self._options.client(_RETRIES) as client:
            queue = self._queue(client)
            taken = queue.open_snapshot(keep_ms=self._options.keep_ms, part_messages=self._options.partition_messages)
        bounds = [None, *taken.parts, None]
        return [SnapshotPart(taken.snapshot, start, end) for start, end in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part, page by page."""
        assert isinstance(partition, SnapshotPart)
        columns = to_arrow_schema(self._schema, timezone="UTC")
        with self._options.client(_RETRIES) as client:
            queue = self._queue(client)
            start = partition.start
            while True:
                try:
                    page = queue.read_snapshot(partition.snapshot, start=start, end=partition.end, limit=PAGE_MESSAGES)
                except NotFound as error:
                    advice = "load the data frame again, with a longer keepMs if tasks wait long to start"
                    error.args = (f"{error.message}; {advice}",)
                    raise
                if page.messages:
                    rows = [_row(message, columns.names) for message in page.messages]
                    yield pa.RecordBatch.from_pylist(rows, schema=columns)
                start = page.cursor
                if start is None:
                    return

    def _queue(self, client: Client) -> Queue:
        if self._options.tenant is None:
            return client.queue(self._options.queue)
        return client.tenant(self._options.tenant).queue(self._options.queue)


def _row(message: StoredMessage, names: list[str]) -> dict[str, Any]:
    row = {name: getattr(message, name) for name in names}
    for name in ("added_at", "visible_at", "expires_at", "lease_until"):
        if row.get(name) is not None:
            row[name] *= 1_000
    if message.hidden or message.body_error:
        row.update({name: None for name in ("body", "attributes", "group") if name in row})
    elif "attributes" in row:
        row["attributes"] = list(message.attributes.items())
    if "history" in row:
        row["history"] = [{**msgspec.structs.asdict(one), "at": one.at * 1_000} for one in message.history]
    if row.get("dead") is not None:
        row["dead"] = {**msgspec.structs.asdict(row["dead"]), "at": row["dead"].at * 1_000}
    return row
