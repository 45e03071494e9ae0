"""Skew: a tenant with nine of ten rows is split into files and tasks, deterministically for any arrival order."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from bench.synthetic_journal import Plan, make_journal
from tenantq.journal.manifest import MANIFESTS
from tenantq.pipeline.exchange import FileRows
from tenantq.pipeline.gold.service_times import time_exchange
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.pieces import Pieces
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tenantq.pipeline.schemas import QUEUE_RESETS
from tenantq.pipeline.silver.message_lives import message_lives
from tenantq.pipeline.silver.queue_hours import hour_exchange
from tenantq.pipeline.tables import TABLES
from tests.pipeline.conftest import NOW, digests

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

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


def test_the_work_of_a_giant_tenant_is_spread_over_tasks(spark: SparkSession, giant: Path) -> None:
    """In every exchange, most parts of the lives get some of the giant's rows, and hours and days get few from each file."""
    files = [pq.read_table(file) for file in sorted(giant.glob("date=*/*/*/*.parquet"))]
    rows = [table for table in files if "giant" in table["tenant"].to_pylist()]
    total = sum(map(len, rows))
    split = TABLES["message_lives"].split
    assert split is not None
    pieces = Pieces({"date=2026-01-01": 32 * split.rows}, split.rows)
    resets = spark.createDataFrame([], QUEUE_RESETS)
    source = FileRows(spark, giant.glob("date=*/*/*/*.parquet"))
    (lives,) = message_lives(source, None, resets, pieces).inputs
    sizes = Counter[int]()
    for table in rows:
        for part, _, sent in lives.send(table):
            sizes[part] += sent.num_rows
    assert len(sizes) == pieces.count
    assert max(sizes.values()) < 3 * total / pieces.count
    for exchange in (hour_exchange(source, source, resets), time_exchange(source, source, 0, 0)):
        sent = sum(sent.num_rows for table in rows for _, _, sent in exchange.inputs[0].send(table))
        assert sent < 0.8 * total  # added up before they are sent
