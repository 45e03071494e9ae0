"""Types of columns, and the columns of the journal and of messages. Those of a table are in the file of its function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DecimalType, StructField, StructType

from tenantq.domain.access import ACTIONS

TEXT: Final = spark.StringType()
LONG: Final = spark.LongType()
INT: Final = spark.IntegerType()
TIME: Final = spark.TimestampType()
DOUBLE: Final = spark.DoubleType()
BOOLEAN: Final = spark.BooleanType()
MONEY: Final = DecimalType(38, 2)
PRICE: Final = DecimalType(38, 10)
BYTE_MS: Final = DecimalType(38, 0)


def table_columns(**columns: spark.DataType) -> StructType:
    """Return columns by their names and types."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


JOURNAL: Final = table_columns(
    shard=TEXT, seq=LONG, n=INT, ts=TIME, tenant=TEXT, queue=TEXT, op=TEXT, message_id=TEXT, principal=TEXT,
    bytes=LONG, priority=INT, attempt=INT, wait_ms=LONG, process_ms=LONG, outcome=TEXT, error_code=TEXT,
    remote=TEXT, request_id=TEXT, details=TEXT, count=LONG, user_agent=TEXT,
)  # fmt: skip
"""A row of the journal."""

SEGMENT_ROW: Final = StructType(
    [*JOURNAL.fields, StructField("link", BinaryType()), StructField("payload", BinaryType())]
)
"""A row of a segment."""


MESSAGES: Final = table_columns(
    id=TEXT, tenant=TEXT, queue=TEXT, state=TEXT, body=BinaryType(), body_error=TEXT, size=LONG, priority=INT,
    attributes=spark.MapType(TEXT, TEXT), group=TEXT, attempts=INT, max_attempts=INT, added_at=TIME, visible_at=TIME,
    expires_at=TIME, lease_until=TIME, history=ArrayType(table_columns(attempt=INT, at=TIME, outcome=TEXT, reason=TEXT)),
    dead=table_columns(reason=TEXT, source=TEXT, attempts=INT, at=TIME),
)  # fmt: skip
"""A message in a queue. Body and attributes are null if the token may not read them, or if they cannot be decrypted."""

KNOWN_OPS: Final = frozenset(ACTIONS) | {
    "lease_expired", "expire", "dead_letter", "collect", "heal", "mend", "create_tenant", "configure_tenant",
    "quota_warning", "quota_critical", "note_key_use", "note_entries", "alert", "create_queue", "configure_queue",
    "drop_queue", "trim_journal", "put_data_key", "replace_data_key", "drop_data_keys", "cancel_redrive", "unexplained",
    "checkpoint", "self_check", "restore_backup", "certify_erasure", "suspend_queue", "reopen_queue", "topology",
    "login", "move_tenant", "compliance", "resolve_alert", "remove_segments", "contain", "request_signup",
    "spread_tenant", "send_rights", "receive_rights", "restore_rights",
    "*",  # refusals of many kinds, coalesced under flood
}  # fmt: skip
"""The ops of the journal. Rows with any other op are quarantined, because their effect is unknown."""


def local_frame(session: SparkSession, rows: Sequence[Mapping[str, Any]], columns: StructType) -> DataFrame:
    """Return a few rows as a part of the plan. Spark reads them without a job and leaves out what depends on no rows."""
    return session.createDataFrame(pa.Table.from_pylist(list(rows), to_arrow_schema(columns, timezone="UTC")), columns)
