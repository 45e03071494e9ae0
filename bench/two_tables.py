"""``usage_hourly`` and ``slo_daily`` from the same segments, computed by Spark and by DuckDB and compared.

Spark runs the pipeline's own functions, without verification and without the lake; DuckDB runs two_tables.sql.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from tenantq.pipeline.arrow_shuffle import ArrowShuffle, FileRows, Sender, SentRows
from tenantq.pipeline.bronze.row_summary import RESET_COLUMNS, resets_of
from tenantq.pipeline.gold.slo_daily import slo_daily
from tenantq.pipeline.gold.usage_hourly import usage_hourly
from tenantq.pipeline.session import open_session
from tenantq.pipeline.silver.message_lives import message_lives
from tenantq.pipeline.silver.queue_hours import QUEUE_HOURS, queue_hours
from tenantq.pipeline.silver.queue_resets import QUEUE_RESETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

START: Final = "start Spark"
_USAGE: Final = (
    "tenant", "queue", "date", "hour", "operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "byte_ms",
    "messages_stored", "bytes_stored", "peak_backlog", "peak_in_flight", "refused", "throttled", "denied",
)  # fmt: skip
_SLO: Final = (
    "tenant", "queue", "date", "deliveries", "wait_max_ms", "settled", "process_max_ms", "oldest_age_ms", "acked", "dead", "expired",
    "slow", *[f"round({name}_p{p}_ms, 6)" for name in ("wait", "process") for p in (50, 95, 99)],
)  # fmt: skip
"""The compared columns. Percentiles are rounded, because both interpolate in another order."""


class Stages(msgspec.Struct):
    """The seconds of each stage."""

    spent: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time a stage."""
        started = time.perf_counter()
        yield
        self.spent[name] = round(time.perf_counter() - started, 2)


def by_spark(journal: Path, into: Path, memory: str) -> dict[str, float]:
    """Write both tables; return the seconds of each stage. The first one starts Spark."""
    stages = Stages()
    with stages.timed(START):
        spark = open_session(None, {"spark.driver.memory": memory})
    with stages.timed("queue_resets"):
        files = sorted(journal.glob("date=*/*/*/*.parquet"))
        rows = FileRows(spark, files)
        sent = SentRows(rows, Sender((*RESET_COLUMNS, "outcome"), _send_resets))
        resets = (
            ArrowShuffle(spark, [sent], 1, lambda _, found: pa.concat_tables(found[0]), QUEUE_RESETS).frame().toArrow()
        )
        resets = spark.createDataFrame(resets, QUEUE_RESETS)
    with stages.timed("message_lives"):
        lives_at = into / "message_lives"
        lives_at.mkdir(parents=True, exist_ok=True)
        message_lives(rows, None, resets).write(partial(_write, place=str(lives_at)))
        lives = FileRows(spark, sorted(lives_at.glob("*.parquet")))
    with stages.timed("queue_hours"):
        hours = str(into / "queue_hours")
        queue_hours(rows, lives, resets).write.mode("overwrite").parquet(hours)
    with stages.timed("usage_hourly"):
        usage = usage_hourly(spark.read.schema(QUEUE_HOURS).parquet(hours), resets)
        usage.write.mode("overwrite").parquet(str(into / "usage_hourly"))
    with stages.timed("slo_daily"):
        newest = _newest(files)
        first = min(file.parts[-4] for file in files).removeprefix("date=")
        days = np.arange(np.datetime64(first), np.datetime64(newest.date()) + 1)
        levels = slo_daily(rows, lives, [str(day) for day in days], round(newest.timestamp() * 1_000))
        levels.write.mode("overwrite").parquet(str(into / "slo_daily"))
    spark.stop()
    return stages.spent


def _send_resets(rows: pa.Table) -> Iterator[tuple[int, int, pa.Table]]:
    found = resets_of(rows)
    if found:
        columns = [pa.array(column) for column in zip(*found, strict=True)]
        resets = pa.table(columns, names=RESET_COLUMNS)
        yield 0, 0, resets.cast(to_arrow_schema(QUEUE_RESETS, timezone="UTC"))


def _write(part: int, rows: pa.Table, place: str) -> None:
    pq.write_table(rows, f"{place}/{part:05d}.parquet", compression="zstd", store_schema=False)


def _newest(files: list[Path]) -> datetime:
    """Return the newest time in segments, from their statistics."""
    times: list[datetime] = []
    for file in files:
        meta = pq.read_metadata(file)
        at = meta.schema.names.index("ts")
        times += [meta.row_group(group).column(at).statistics.max for group in range(meta.num_row_groups)]
    return max(times)


def by_duckdb(journal: Path, spark_tables: Path) -> tuple[float, int, int]:
    """Compute both tables; return the seconds, their rows, and how many rows differ from Spark's."""
    started = time.perf_counter()
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    files = f"{journal}/date=*/*/*/*.parquet"
    database.execute(f"CREATE VIEW journal AS FROM read_parquet('{files}', hive_partitioning = false)")
    for statement in Path(__file__).with_name("two_tables.sql").read_text(encoding="utf-8").split(";\n"):
        database.execute(statement)
    spent = time.perf_counter() - started
    rows = differing = 0
    for table, columns in (("usage_hourly", _USAGE), ("slo_daily", _SLO)):
        theirs = f"read_parquet('{spark_tables}/{table}/*.parquet')"  # a path of our own
        one, other = (f"SELECT {', '.join(columns)} FROM {place}" for place in (table, theirs))  # noqa: S608
        found = database.sql(f"SELECT (SELECT count(*) FROM {table}), (SELECT count(*) FROM (({one}) EXCEPT ALL ({other}))), (SELECT count(*) FROM (({other}) EXCEPT ALL ({one})))").fetchall()[0]  # noqa: S608  # fmt: skip
        rows, differing = rows + found[0], differing + found[1] + found[2]
    return spent, rows, differing


if __name__ == "__main__":  # a separate process, so that its memory can be measured
    print(msgspec.json.encode(by_spark(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])).decode())
