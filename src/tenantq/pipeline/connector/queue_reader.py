"""``spark.read.format("tenantq")`` of a queue: everything it holds at one moment, read by many tasks.

The driver has the server take a snapshot when the query is planned, and every task reads its part of that. The snapshot goes by itself when
nobody reads it any more.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tenantq.client import Retries
from tenantq.errors import Invalid, NotFound
from tenantq.pipeline.connector.tracebacks import plainly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tenantq.client import Client, Queue, StoredMessage
    from tenantq.pipeline.connector.options import SnapshotOptions

PAGE_MESSAGES: Final = 1_000
_RETRIES: Final = Retries(count=8, base_ms=200, max_ms=30_000)
_text, _int, _time = StringType(), IntegerType(), TimestampType()
_HISTORY: Final = StructType().add("attempt", _int).add("at", _time).add("outcome", _text).add("reason", _text)
_DEAD: Final = StructType().add("reason", _text).add("source", _text).add("attempts", _int).add("at", _time)

MESSAGES: Final = StructType(
    [
        StructField("id", _text),
        StructField("tenant", _text),
        StructField("queue", _text),
        StructField("state", _text),
        StructField("body", BinaryType()),
        StructField("body_error", _text),
        StructField("size", LongType()),
        StructField("priority", _int),
        StructField("attributes", MapType(_text, _text)),
        StructField("group", _text),
        StructField("attempts", _int),
        StructField("max_attempts", _int),
        StructField("added_at", _time),
        StructField("visible_at", _time),
        StructField("expires_at", _time),
        StructField("lease_until", _time),
        StructField("history", ArrayType(_HISTORY)),
        StructField("dead", _DEAD),
    ]
)
"""A message as a queue holds it. Body and attributes are null for a token that may not read them, or if they do not decrypt."""

_at = pa.timestamp("us", tz="UTC")
_ARROW: Final[dict[str, pa.DataType]] = {
    **{name: pa.string() for name in ("id", "tenant", "queue", "state", "body_error", "group")},
    **{name: pa.int32() for name in ("priority", "attempts", "max_attempts")},
    **dict.fromkeys(("added_at", "visible_at", "expires_at", "lease_until"), _at),
    "body": pa.binary(),
    "size": pa.int64(),
    "attributes": pa.map_(pa.string(), pa.string()),
    "history": pa.list_(
        pa.field(
            "element",
            pa.struct([("attempt", pa.int32()), ("at", _at), ("outcome", pa.string()), ("reason", pa.string())]),
        )
    ),
    "dead": pa.struct([("reason", pa.string()), ("source", pa.string()), ("attempts", pa.int32()), ("at", _at)]),
}


class SnapshotPart(InputPartition):
    """What one task reads: the messages of a snapshot with ids from ``start`` on and before ``end``."""

    def __init__(self, snapshot: str, start: str | None, end: str | None) -> None:
        super().__init__(None)
        self.snapshot, self.start, self.end = snapshot, start, end


class QueueReader(DataSourceReader):
    """Reads a queue's content without changing it. Every run of the query takes a snapshot of its own, unless one is given."""

    def __init__(self, options: SnapshotOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_message_schema(schema)

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Have a snapshot taken; return its parts."""
        if self._options.snapshot is not None:
            return [SnapshotPart(self._options.snapshot, None, None)]
        with self._options.client(_RETRIES) as client:
            queue = self._queue(client)
            taken = queue.open_snapshot(keep_ms=self._options.keep_ms, part_messages=self._options.partition_messages)
        bounds = [None, *taken.parts, None]
        return [SnapshotPart(taken.snapshot, start, end) for start, end in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a part's messages, page by page."""
        assert isinstance(partition, SnapshotPart)
        columns = pa.schema([pa.field(one.name, _ARROW[one.name], nullable=one.nullable) for one in self._schema])
        with self._options.client(_RETRIES) as client:
            queue = self._queue(client)
            start = partition.start
            while True:
                try:
                    page = queue.read_snapshot(partition.snapshot, start=start, end=partition.end, limit=PAGE_MESSAGES)
                except NotFound as error:
                    advice = "load the data frame anew, with a longer keepMs if tasks wait long for their turn"
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


def check_message_schema(schema: StructType) -> StructType:
    """Return a schema of a message's columns, or raise Invalid naming the column that is none."""
    for field in schema.fields:
        if field.name not in MESSAGES.names:
            raise Invalid(f"schema: a message has no column {field.name[:80]!r}; it has {', '.join(MESSAGES.names)}")
        kind = MESSAGES[field.name].dataType
        if field.dataType != kind:
            raise Invalid(f"schema: {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}")
    return schema


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
        row["history"] = [
            {"attempt": one.attempt, "at": one.at * 1_000, "outcome": one.outcome, "reason": one.reason}
            for one in message.history
        ]
    if row.get("dead") is not None:
        dead = row["dead"]
        row["dead"] = {
            "reason": dead.reason,
            "source": dead.source,
            "attempts": dead.attempts,
            "at": dead.at * 1_000,
        }
    return row
