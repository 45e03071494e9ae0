"""Skew: a tenant with nine of ten rows is split into files and tasks, deterministically for any arrival order."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from bench.synthetic_journal import Plan, make_journal
from tenantq.journal.manifest import MANIFESTS
from tenantq.pipeline.arrow_shuffle import ArrowShuffle, FileRows, file_groups, packed, read_rows
from tenantq.pipeline.bronze.rows import bronze
from tenantq.pipeline.gold.service_times import time_exchange
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.pieces import Pieces
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tenantq.pipeline.silver.message_lives import message_lives
from tenantq.pipeline.silver.queue_hours import hour_exchange
from tenantq.pipeline.silver.queue_resets import QUEUE_RESETS
from tenantq.pipeline.tables import TABLES
from tests.pipeline.conftest import NOW, digests

if TYPE_CHECKING:
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


def _sent(shuffle: ArrowShuffle) -> Counter[int]:
    """Return how many rows each part gets from the journal."""
    (source, *_) = shuffle.inputs
    assert isinstance(source.rows, FileRows)
    found = Counter[int]()
    for file in source.rows.files:
        for part, _, sent in source.sender.from_file(file):
            found[part] += sent.num_rows
    return found


def _most(sizes: Counter[int], parts: int) -> float:
    """Return the share of the largest part, compared with the average part."""
    return max(sizes.values()) * parts / sizes.total()


def test_rows_of_a_giant_tenant_are_spread_over_parts(spark: SparkSession, giant: Path) -> None:
    """Files and lives are divided by row and by message: no part gets much more than the average."""
    source = FileRows(spark, giant.glob("date=*/*/*/*.parquet"))
    total = sum(pq.read_metadata(file).num_rows for file in source.files)
    hours = Counter[str]()
    for file in source.files:
        begins = pc.strftime(pq.read_table(file, columns=["ts"])["ts"], "date=%Y-%m-%d/hour=%H")
        hours.update(begins.to_pylist())
    rows = bronze(source, None, Pieces(hours, 150))
    pieces = Pieces({"date=2026-01-01": 3_200}, 100)
    lives = message_lives(source, None, spark.createDataFrame([], QUEUE_RESETS), pieces)
    for shuffle, parts, most in ((rows, rows.parts, 1.5), (lives, pieces.count, 1.5)):
        sizes = _sent(shuffle)
        assert parts >= 20
        assert len(sizes) == parts
        assert sizes.total() > 0.9 * total
        assert _most(sizes, parts) < most


def test_sums_of_a_giant_tenant_are_spread_over_parts(
    spark: SparkSession, giant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks add up rows before they send them. An hour or a day that is still large is divided by queue."""
    source = FileRows(spark, giant.glob("date=*/*/*/*.parquet"))
    total = sum(pq.read_metadata(file).num_rows for file in source.files)
    resets = spark.createDataFrame([], QUEUE_RESETS)
    for module in ("silver.queue_hours", "gold.service_times"):
        monkeypatch.setattr(f"tenantq.pipeline.{module}._PART_BYTES", sum(source.sizes) // 12)
    hours, times = hour_exchange(source, source, resets), time_exchange(source, source, 0, 0)
    for shuffle, most in (
        (hours, 0.35),
        (times, 0.6),
    ):  # the giant has half of its rows in one queue, over three hours
        sizes = _sent(shuffle)
        assert shuffle.parts >= 12
        assert sizes.total() < 0.8 * total
        assert max(sizes.values()) < most * sizes.total()


def test_tasks_read_about_the_same_number_of_bytes(
    spark: SparkSession, giant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever tenant the files belong to."""
    source = FileRows(spark, sorted(giant.glob("date=*/*/*/*.parquet")))
    most = 2 * max(source.sizes)
    monkeypatch.setattr("tenantq.pipeline.arrow_shuffle.TASK_BYTES", most)
    groups = file_groups(source)
    sizes = [sum(Path(file).stat().st_size for file in group) for group in groups]
    assert [file for group in groups for file in group] == list(source.files)
    assert max(sizes) <= most
    assert len(groups) < len(source.files)


def test_a_task_sends_before_it_holds_many_rows(
    spark: SparkSession, giant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its memory depends on the rows of one file, not on how well the files are compressed."""
    monkeypatch.setattr("tenantq.pipeline.arrow_shuffle.HELD_ROWS", 500)
    source = FileRows(spark, sorted(giant.glob("date=*/*/*/*.parquet")))
    (lives,) = message_lives(
        source, None, spark.createDataFrame([], QUEUE_RESETS), Pieces({"date=2026-01-01": 1}, 1)
    ).inputs
    tables = [read_rows(file, lives.sender.columns) for file in source.files]
    sent = packed(map(lives.sender.from_rows, tables), 0)
    values = [pa.ipc.open_stream(batch["rows"][0].as_buffer()).read_all().num_rows for batch in sent]
    assert sum(values) > 0.9 * sum(map(len, tables))
    assert max(values) < 500 + max(map(len, tables))
