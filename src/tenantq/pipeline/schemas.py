"""The columns of every table, in their order on disk, with the partition columns last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DecimalType, StructField, StructType

from tenantq.domain.access import ACTIONS

_text, _long, _int, _time, _double = (
    spark.StringType(),
    spark.LongType(),
    spark.IntegerType(),
    spark.TimestampType(),
    spark.DoubleType(),
)
MONEY: Final = DecimalType(38, 2)
PRICE: Final = DecimalType(38, 10)
BYTE_MS: Final = DecimalType(38, 0)


def _table(**columns: spark.DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


JOURNAL: Final = _table(
    shard=_text, seq=_long, n=_int, ts=_time, tenant=_text, queue=_text, op=_text, message_id=_text, principal=_text,
    bytes=_long, priority=_int, attempt=_int, wait_ms=_long, process_ms=_long, outcome=_text, error_code=_text,
    remote=_text, request_id=_text, details=_text, count=_long, user_agent=_text,
)  # fmt: skip
"""A row of the journal."""

SEGMENT_ROW: Final = StructType(
    [*JOURNAL.fields, StructField("link", BinaryType()), StructField("payload", BinaryType())]
)
"""A row of a segment."""

BRONZE: Final = StructType([*JOURNAL.fields, StructField("date", _text), StructField("hour", _text)])

SEGMENTS: Final = _table(
    manifest=_text, file=_text, shard=_text, first_seq=_long, last_seq=_long, previous_link=_text, last_link=_text,
    sha256=_text, rows=_long, reason=_text, details=_text, signed=BooleanType(),
)  # fmt: skip
"""A segment, with the result of its verification. An empty reason means that it passed."""

QUARANTINE: Final = _table(
    reason=_text, file=_text, shard=_text, first_seq=_long, last_seq=_long, count=_long, details=_text
)

QUEUE_RESETS: Final = _table(shard=_text, tenant=_text, queue=_text, seq=_long, n=_int, ts=_time, op=_text)
"""When a queue became empty, or, without a queue, all queues of a tenant."""

DELIVERY: Final = _table(seq=_long, at=_time, queue=_text, wait_ms=_long)
SETTLEMENT: Final = _table(seq=_long, at=_time, queue=_text, op=_text, process_ms=_long)
LAST: Final = _table(seq=_long, place=_int, state=_text, queue=_text, at=_time, shard=_text)

MESSAGE_LIVES: Final = _table(
    tenant=_text, message_id=_text, shard=_text, queue=_text, bytes=_long, priority=_int, added_at=_time,
    first_wait_ms=_long, wait_ms=_long, process_ms=_long, attempts=_long, nacks=_long, lease_expiries=_long,
    releases=_long, dead_letters=_long, redrives=_long, outcome=_text, ended_at=_time, leased_at_end=BooleanType(),
    deliveries=ArrayType(DELIVERY), settlements=ArrayType(SETTLEMENT), last=LAST, date=_text,
)  # fmt: skip

QUEUE_HOURS: Final = _table(
    tenant=_text, queue=_text, shard=_text, epoch=_int, operations=_long, messages_in=_long, messages_out=_long,
    bytes_in=_long, bytes_out=_long, acked=_long, nacked=_long, lease_expired=_long, dead=_long, expired=_long,
    removed=_long, healed=_long, refused=_long, throttled=_long, denied=_long, messages_net=_long, bytes_net=_long,
    in_flight_net=_long, backlog_top=_long, in_flight_top=_long, byte_ms=BYTE_MS, date=_text, hour=_text,
)  # fmt: skip

USAGE_HOURLY: Final = _table(
    tenant=_text, queue=_text, operations=_long, messages_in=_long, messages_out=_long, bytes_in=_long,
    bytes_out=_long, byte_hours=DecimalType(38, 6), byte_ms=BYTE_MS, messages_stored=_long, bytes_stored=_long,
    peak_backlog=_long, peak_in_flight=_long, refused=_long, throttled=_long, denied=_long, hour=_text, date=_text,
)  # fmt: skip

SLO_DAILY: Final = _table(
    tenant=_text, queue=_text, deliveries=_long, wait_p50_ms=_double, wait_p95_ms=_double, wait_p99_ms=_double,
    wait_max_ms=_long, settled=_long, process_p50_ms=_double, process_p95_ms=_double, process_p99_ms=_double,
    process_max_ms=_long, oldest_age_ms=_long, acked=_long, dead=_long, expired=_long, success_rate=_double,
    dead_letter_rate=_double, slow=_long, target=_double, error_budget=_double, error_budget_left=_double, date=_text,
)  # fmt: skip

INVOICE_LINES: Final = _table(
    line=_text, tenant=_text, item=_text, kind=_text, metric=_text, quantity=PRICE, unit=PRICE, amount=MONEY,
    currency=_text, details=_text, period=_text,
)  # fmt: skip

INVOICE_CORRECTIONS: Final = _table(
    line=_text, corrects=_text, tenant=_text, item=_text, metric=_text, quantity=PRICE, amount=MONEY, currency=_text,
    status=_text, approved_by=_text, period=_text,
)  # fmt: skip

ANOMALIES: Final = _table(
    kind=_text, severity=_text, tenant=_text, queue=_text, principal=_text, first_at=_time, last_at=_time, observed=_double,
    expected=_double, details=_text, evidence=ArrayType(_text), date=_text,
)  # fmt: skip

TENANT_GROWTH: Final = _table(
    tenant=_text, metric=_text, days=_long, mean=_double, trend_per_day=_double, last_value=_double, quota=_long,
    quota_hit_on=_text, date=_text,
)  # fmt: skip

COMPLIANCE: Final = _table(
    control=_text, title=_text, tenant=_text, evidence=_text, count=_long, status=_text, date=_text
)

MESSAGES: Final = _table(
    id=_text, tenant=_text, queue=_text, state=_text, body=BinaryType(), body_error=_text, size=_long, priority=_int,
    attributes=spark.MapType(_text, _text), group=_text, attempts=_int, max_attempts=_int, added_at=_time, visible_at=_time,
    expires_at=_time, lease_until=_time, history=ArrayType(_table(attempt=_int, at=_time, outcome=_text, reason=_text)),
    dead=_table(reason=_text, source=_text, attempts=_int, at=_time),
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

OPS_DAILY: Final = _table(tenant=_text, op=_text, outcome=_text, calls=_long, rows=_long, principals=_long, date=_text)

PLACES_DAILY: Final = _table(
    tenant=_text, principal=_text, network=_text, calls=_long, first_at=_time, evidence=_text, date=_text
)

TENANT_CHANGES: Final = _table(
    shard=_text, seq=_long, n=_int, ts=_time, tenant=_text, op=_text, details=_text, date=_text
)


def local_frame(session: SparkSession, rows: Sequence[Mapping[str, Any]], columns: StructType) -> DataFrame:
    """Return a few rows as a part of the plan. Spark reads them without a job and leaves out what depends on no rows."""
    return session.createDataFrame(pa.Table.from_pylist(list(rows), to_arrow_schema(columns, timezone="UTC")), columns)
