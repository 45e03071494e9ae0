"""Converts rows of a data frame to messages: the columns, their types, and the meaning of null."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.types import DataType, MapType, StringType

from tenantq.domain.message import NewMessage
from tenantq.errors import Invalid
from tenantq.pipeline.connector.options import WriteOptions

_NUMBER: Final = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_TEXT: Final = (StringType,)
COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (spark.BinaryType, StringType),
    "priority": _NUMBER,
    "delay_ms": _NUMBER,
    "ttl_ms": _NUMBER,
    "max_attempts": _NUMBER,
    "key": _TEXT,
    "group": _TEXT,
    "attributes": (MapType,),
    "tenant": _TEXT,
    "queue": _TEXT,
}
"""The columns of a row. Only ``body`` is required."""


class OutgoingRow(msgspec.Struct, frozen=True):
    """A row to send: its queue and message. ``number`` is its place in the task's input, for errors."""

    number: int
    tenant: str | None  # None: the token's own
    queue: str
    message: NewMessage


def check_columns(schema: spark.StructType, options: WriteOptions) -> None:
    """Raise Invalid unless every column is known, and every row will have a body and a queue."""
    for field in schema.fields:
        kinds = COLUMNS.get(field.name)
        if kinds is None:
            known = ", ".join(COLUMNS)
            raise Invalid(f"column {field.name[:80]!r}: unknown column. Drop or rename it; known columns are {known}.")
        if not isinstance(field.dataType, kinds) or not _is_text_map(field.dataType):
            wanted = "map<string,string>" if MapType in kinds else " or ".join(kind().simpleString() for kind in kinds)
            raise Invalid(f"column {field.name}: is {field.dataType.simpleString()}, and must be {wanted}; cast it")
    if "body" not in schema.names:
        raise Invalid("column body: required. Select the message body as column body (binary or string).")
    if options.queue is None and "queue" not in schema.names:
        raise Invalid('queue: required. Set .option("queue", …), or add a column queue.')


def _is_text_map(kind: DataType) -> bool:
    return not isinstance(kind, MapType) or (
        isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    )


def message_rows(batches: Iterable[pa.RecordBatch], options: WriteOptions, task: str) -> Iterator[OutgoingRow]:
    """Yield the rows of a task's input. Null means the default of the column."""
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            yield _message_row(row, number, options, task)
            number += 1


def _message_row(row: dict[str, Any], number: int, options: WriteOptions, task: str) -> OutgoingRow:
    body = row["body"]
    if body is None:
        raise Invalid(f"row {number} of {task}: body is null. Filter such rows out, or use an empty body.")
    queue = row.get("queue") or options.queue
    if queue is None:
        raise Invalid(f'row {number} of {task}: queue is null. Fill it, or set .option("queue", …).')
    message = NewMessage(
        body=body.encode() if isinstance(body, str) else bytes(body),
        priority=row.get("priority") or 0,
        delay_ms=row.get("delay_ms") or 0,
        ttl_ms=row.get("ttl_ms"),
        key=row.get("key"),
        group=row.get("group"),
        attributes=_attributes(row.get("attributes"), number, task),
        max_attempts=row.get("max_attempts"),
    )
    return OutgoingRow(number, row.get("tenant") or options.tenant, queue, message)


def _attributes(pairs: list[tuple[str, str | None]] | None, number: int, task: str) -> dict[str, str]:
    """Return a map, which Arrow returns as a list of pairs."""
    attributes: dict[str, str] = {}
    for name, value in pairs or ():
        if value is None:
            raise Invalid(f"row {number} of {task}: attributes[{name[:80]!r}] is null. Leave it out.")
        attributes[name] = value
    return attributes
