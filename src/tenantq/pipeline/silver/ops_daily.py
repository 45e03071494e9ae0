"""Silver ``ops_daily``: the number of operations by tenant, operation, outcome and day."""

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from tenantq.pipeline.arrow_columns import by_part, decoded, numbers
from tenantq.pipeline.arrow_shuffle import ArrowShuffle, FileRows, PeriodParts, Sender, SentRows
from tenantq.pipeline.reduction import Reduction
from tenantq.pipeline.schemas import LONG, TEXT, table_columns
from tenantq.pipeline.silver.life_days import DAY_US, date_texts

OPS_DAILY: Final = table_columns(tenant=TEXT, op=TEXT, outcome=TEXT, calls=LONG, rows=LONG, principals=LONG, date=TEXT)

_PART_BYTES: Final = 128_000_000  # of rows whose sums are merged by one task
_KEY: Final = ("tenant", "op", "outcome", "date")


def ops_daily(rows: DataFrame | FileRows) -> DataFrame:
    """Return calls by tenant, op and outcome."""
    parts = PeriodParts.by_date(rows, _PART_BYTES)
    sent = SentRows(rows, Sender.reducing(OPS, partial(_send, parts=parts)))
    return ArrowShuffle(rows.sparkSession, [sent], parts.count, _merged, OPS_DAILY).frame()


def _reduced(rows: pa.Table) -> list[pa.Table]:
    """Add up the rows of each principal, because a day counts how many there are."""
    us = numbers(rows["ts"])
    rows = rows.append_column("date", date_texts(us)).append_column("day", pa.array(us // DAY_US))
    keys = [*_KEY, "principal", "day"]
    return [rows.group_by(keys, use_threads=False).aggregate([("count", "sum"), ("count", "count")])]


def _send(counted: pa.Table, parts: PeriodParts) -> Iterator[tuple[int, int, pa.Table]]:
    for part, sent in by_part(parts.parts(numbers(counted["day"]), counted["tenant"]), counted):
        yield part, 0, sent


def _merged(_: int, sent: list[list[pa.Table]]) -> pa.Table:
    rows = pa.concat_tables(map(decoded, sent[0]))
    by_principal = rows.group_by([*_KEY, "principal"], use_threads=False).aggregate(
        [("count_sum", "sum"), ("count_count", "sum")]
    )
    counted = by_principal.group_by(list(_KEY), use_threads=False).aggregate(
        [("count_sum_sum", "sum"), ("count_count_sum", "sum"), ("principal", "count")]
    )
    names = {"count_sum_sum_sum": "calls", "count_count_sum_sum": "rows", "principal_count": "principals"}
    return counted.rename_columns([names.get(name, name) for name in counted.column_names])


OPS: Final = Reduction(("tenant", "op", "outcome", "principal", "count", "ts"), _reduced)
"""Reduces rows of bronze."""
