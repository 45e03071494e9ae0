"""The lake's tables: layer, columns, partitions, order of rows, and which tables each comes from."""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql.types import StructType

from tenantq.pipeline import schemas


class Split(msgspec.Struct, frozen=True):
    """How a large partition is dealt out to several files: by a hash, so that a giant tenant is in all of them alike.

    How many they are depends on nothing but the partition's rows.
    """

    by: tuple[str, ...]  # what the hash is of
    counted: str  # rows in which this is not null are counted
    rows: int  # of a file, about


class Table(msgspec.Struct, frozen=True):
    """One table. Rows are sorted by ``order`` in each file, which is unique, so that the same rows give the same bytes."""

    name: str
    layer: str
    columns: StructType
    partitions: tuple[str, ...]
    order: tuple[str, ...]
    sources: tuple[str, ...]
    split: Split | None = None  # None: its partitions are small


_ALL: Final = (
    Table("segments", "bronze", schemas.VERDICTS, (), ("manifest",), ("journal",)),
    Table(
        "quarantine", "bronze", schemas.QUARANTINE, (), ("reason", "shard", "first_seq", "file", "details"),
        ("journal", "segments"),
    ),
    Table(
        "bronze", "bronze", schemas.BRONZE, ("date", "hour"), ("tenant", "shard", "seq", "n"), ("journal", "segments"),
        Split(("shard", "seq"), "seq", 1_000_000),
    ),
    Table("queue_resets", "silver", schemas.RESETS, (), ("shard", "seq", "n"), ("bronze",)),
    Table(
        "message_lives", "silver", schemas.MESSAGE_LIVES, ("date",), ("tenant", "message_id"), ("bronze", "queue_resets"),
        Split(("message_id",), "added_at", 250_000),  # a message is added once, so adds can be counted before they are lives
    ),
    Table(
        "queue_hours", "silver", schemas.QUEUE_HOURS, ("date", "hour"), ("tenant", "queue", "shard", "epoch"),
        ("bronze", "message_lives", "queue_resets"),
    ),
    Table("ops_daily", "silver", schemas.OPS_DAILY, ("date",), ("tenant", "op", "outcome"), ("bronze",)),
    Table("places_daily", "silver", schemas.PLACES_DAILY, ("date",), ("tenant", "principal", "network"), ("bronze",)),
    Table("tenant_changes", "silver", schemas.TENANT_CHANGES, ("date",), ("shard", "seq", "n"), ("bronze",)),
    Table(
        "usage_hourly", "gold", schemas.USAGE_HOURLY, ("date",), ("tenant", "queue", "hour"), ("queue_hours", "queue_resets")
    ),
    Table("slo_daily", "gold", schemas.SLO_DAILY, ("date",), ("tenant", "queue"), ("bronze", "message_lives")),
    Table("invoice_lines", "gold", schemas.INVOICE_LINES, ("period",), ("tenant", "item"), ("usage_hourly",)),
    Table(
        "anomalies", "gold", schemas.ANOMALIES, ("date",), ("kind", "tenant", "queue", "principal", "first_at", "details"),
        ("bronze", "usage_hourly", "places_daily", "quarantine"),
    ),
    Table("tenant_growth", "gold", schemas.TENANT_GROWTH, ("date",), ("tenant", "metric"), ("usage_hourly", "tenant_changes")),
    Table(
        "compliance_soc2", "gold", schemas.COMPLIANCE, ("date",), ("control", "tenant", "evidence"),
        ("ops_daily", "anomalies", "segments", "quarantine"),
    ),
    Table(
        "compliance_gdpr_art30", "gold", schemas.COMPLIANCE, ("date",), ("control", "tenant", "evidence"),
        ("ops_daily", "segments", "quarantine"),
    ),
)  # fmt: skip

TABLES: Final[dict[str, Table]] = {table.name: table for table in _ALL}
