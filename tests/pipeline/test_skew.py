"""Skew: a tenant with nine of ten rows is split into files and tasks, deterministically for any arrival order."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f

from bench.synthetic_journal import Plan, make_journal
from tenantq.journal.manifest import MANIFESTS
from tenantq.pipeline.bronze.rows import RowRules, bronze
from tenantq.pipeline.gold.slo_daily import values
from tenantq.pipeline.lake.data_files import with_pieces
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tenantq.pipeline.schemas import MESSAGE_LIVES, QUEUE_RESETS, SEGMENT_ROW
from tenantq.pipeline.silver.message_lives import life_events
from tenantq.pipeline.silver.queue_hours import changes_placed, slices
from tenantq.pipeline.tables import TABLES
from tests.pipeline.conftest import NOW, digests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_TASKS = 8
_PIECE_ROWS = {"bronze": 400, "message_lives": 200}


@pytest.fixture(scope="module")
def giant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a journal of three hours in which one tenant has nine of ten rows."""
    place = tmp_path_factory.mktemp("giant")
    plan = Plan(rows=3_000, rows_per_day=24_000, tenants=2, shards=2, giant=True)
    make_journal(place / "journal", plan, processes=1)
    return place / "journal"


def test_a_large_partition_is_split_into_files_deterministically(
    spark: SparkSession, giant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file has about its share of the giant, no message is in two files, and two runs leave the same bytes as one."""
    for name, rows in _PIECE_ROWS.items():
        table = TABLES[name]
        assert table.split is not None
        split = msgspec.structs.replace(table.split, rows=rows)
        monkeypatch.setitem(TABLES, name, msgspec.structs.replace(table, split=split))
    whole, parts = Lake(tmp_path / "whole"), Lake(tmp_path / "parts")
    run(spark, str(giant), whole, RunOptions(now_ms=NOW))
    early = tmp_path / "early"
    shutil.copytree(giant, early)
    for file in early.glob("date=*/hour=02/shard=*/*.parquet"):
        file.unlink()
        (early / MANIFESTS / file.parent.name / f"{file.stem}.json").unlink()
    for journal in (early, giant):
        run(spark, str(journal), parts, RunOptions(now_ms=NOW))
    assert digests(parts) == digests(whole)
    (day,) = (whole.path / "message_lives").glob("[!_]*")
    tables = [pq.read_table(file) for file in sorted(day.iterdir())]
    shares = [pc.sum(pc.equal(table["tenant"], "giant")).as_py() for table in tables]
    assert len(tables) >= 3
    assert max(shares) < 1.5 * sum(shares) / len(shares)
    ids = [one for table in tables for one in table["message_id"].to_pylist()]
    assert len(set(ids)) == len(ids)
    assert max(len(list(hour.iterdir())) for hour in (whole.path / "bronze").glob("[!_]*/*")) >= 2


@pytest.fixture
def eight_tasks(spark: SparkSession) -> Iterator[SparkSession]:
    """Return a session whose shuffles always use eight tasks."""
    settings = {"spark.sql.shuffle.partitions": str(_TASKS), "spark.sql.adaptive.enabled": "false"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.set(name, str(old))


def test_the_work_of_a_giant_tenant_is_spread_over_tasks(eight_tasks: SparkSession, giant: Path) -> None:
    """In every large shuffle, most tasks get some of the giant's rows and none gets most of them."""
    spark = eight_tasks
    files = [str(file) for file in giant.glob("date=*/*/*/*.parquet")]
    rows = bronze(spark.read.schema(SEGMENT_ROW).parquet(*files), RowRules(now_ms=NOW, unique=True))
    changes = changes_placed(rows, spark.createDataFrame([], MESSAGE_LIVES), spark.createDataFrame([], QUEUE_RESETS))
    table = TABLES["message_lives"]
    assert table.split is not None
    days = {"date=2026-01-01": 32 * table.split.rows}
    shuffled = {
        "lives": with_pieces(life_events(rows), table, days).repartition("date", "piece"),
        "hours": slices(changes),
        "values": values(rows),
    }
    for name, spread in shuffled.items():
        sizes = _of_giant(spread)
        assert len(sizes) >= _TASKS - 2, (name, sizes)
        assert max(sizes) < 0.4 * sum(sizes), (name, sizes)
    (alone,) = _of_giant(rows.repartition("tenant"))  # what splitting avoids
    assert alone > 0.75 * rows.count()


def _of_giant(rows: DataFrame) -> list[int]:
    """Return the number of the giant's rows in each task that has any."""
    counted = rows.where(f.col("tenant") == "giant").groupBy(f.spark_partition_id()).count()
    return [row["count"] for row in counted.collect()]
