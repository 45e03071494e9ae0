"""Exchanges of Arrow tables: Spark's tasks and this process give the same tables, from files and from DataFrames."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from tenantq.pipeline.arrow_columns import Vocabulary, distinct, id_hashes, in_order, ordered
from tenantq.pipeline.arrow_shuffle import FileRows, PeriodParts, joined
from tenantq.pipeline.bronze.rows import BRONZE
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.pieces import HOUR_US, Pieces
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tenantq.pipeline.silver.ops_daily import ops_daily
from tenantq.pipeline.silver.queue_resets import ResetIndex
from tests.pipeline.conftest import NOW, ProcessedJournal, digests

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_NUMBERS = ("seq", "n", "bytes", "priority", "attempt", "wait_ms", "process_ms", "count")


def test_tasks_compute_the_same_files_as_this_process(
    spark: SparkSession, processed: ProcessedJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows are exchanged and written without a Spark job. With these limits, every row counts as many."""
    monkeypatch.setattr("tenantq.pipeline.arrow_shuffle.FEW_BYTES", 0)
    monkeypatch.setattr("tenantq.pipeline.run.MEDIUM_ROWS", 0)
    lake = Lake(tmp_path / "lake")
    run(spark, str(processed.journal.path), lake, RunOptions(now_ms=NOW))
    assert digests(lake) == digests(processed.lake)


def test_tables_of_files_and_of_spark_are_joined() -> None:
    """Texts of files are dictionaries that cannot be null; those of Spark are neither."""
    file = pa.table(
        [pa.array(["b", "a"]).dictionary_encode()], schema=pa.schema([pa.field("tenant", pa.dictionary(pa.int32(), pa.string()), nullable=False)])
    )  # fmt: skip
    frame = pa.table({"tenant": ["c", None]})
    for tables in ([file, frame], [frame, file]):
        assert sorted(map(str, joined(tables)["tenant"].to_pylist())) == ["None", "a", "b", "c"]


def test_row_groups_may_have_different_dictionaries(spark: SparkSession, tmp_path: Path) -> None:
    """Texts are dictionaries by row group in a file; sums by text need one for all."""
    columns = to_arrow_schema(BRONZE, timezone="UTC")
    rows = [
        {**dict.fromkeys(columns.names, ""), **dict.fromkeys(_NUMBERS, 1), "ts": datetime(2026, 1, 1, tzinfo=UTC), "tenant": tenant}
        for tenant in ("acme", "umbrella", "acme")
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, columns), tmp_path / "rows.parquet", row_group_size=1)
    found = ops_daily(FileRows(spark, [tmp_path / "rows.parquet"])).collect()
    assert {row["tenant"]: row["calls"] for row in found} == {"acme": 2, "umbrella": 1}


def test_rows_are_sorted_like_by_numpy() -> None:
    """Small numbers, numbers that leave no room for the place of a row, and rows that are sorted already."""
    chance = np.random.default_rng(5)
    for most in (3, 1_000, 1 << 62):
        keys = [chance.integers(-most, most, 500), chance.integers(0, 4, 500)]
        assert in_order(keys[0]).tolist() == np.argsort(keys[0], kind="stable").tolist()
        assert ordered(keys).tolist() == np.lexsort(keys[::-1]).tolist()
        assert in_order(np.sort(keys[0])).tolist() == list(range(500))
        found, places = distinct(keys[0])
        assert (found.tolist(), found[places].tolist()) == (sorted(set(keys[0].tolist())), keys[0].tolist())


def test_tasks_send_to_the_parts_of_their_days_only(spark: SparkSession, tmp_path: Path) -> None:
    """A large day is spread over several parts. More days have more parts, but no day has more than before."""
    for day in range(8):
        place = tmp_path / f"date=2026-01-0{day + 1}"
        place.mkdir()
        (place / "rows.parquet").write_bytes(bytes(350 if day == 1 else 100))
    files = sorted(tmp_path.glob("*/*.parquet"))
    tenants = pa.chunked_array([[f"tenant-{number}" for number in range(200)]])
    for days, count in ((2, 5), (8, 11)):
        parts = PeriodParts.by_date(FileRows(spark, files[:days]), 100)
        assert (parts.width, parts.count) == (4, count)
        assert len(set(parts.parts(np.full(200, 20_000), tenants).tolist())) == 4
        assert set(parts.parts(np.arange(200), tenants).tolist()) == set(range(count))


def test_a_row_belongs_to_one_file_of_its_hour() -> None:
    """A large hour has several files, numbered on from those before; rows of other hours are refused."""
    pieces = Pieces({"date=1970-01-01/hour=01": 25, "date=1970-01-01/hour=00": 10}, 10)
    assert pieces.count == 4
    parts = pieces.parts(np.array([0, HOUR_US, HOUR_US, HOUR_US]), np.array([5, 3, 4, 5], "u8"))
    assert [pieces.place(part) for part in parts.tolist()] == [
        ("date=1970-01-01/hour=00", 0), *[("date=1970-01-01/hour=01", number) for number in (0, 1, 2)],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="not written"):
        pieces.parts(np.array([2 * HOUR_US]), np.array([0], "u8"))


def test_ids_of_any_form_have_a_stable_hash() -> None:
    """Files are named by it, so it must never change."""
    ids = pa.array(["019b76da-a800-7000-8000-000000000001", "019b76da-a800-7000-8000-000000000002"])
    assert id_hashes(ids.slice(1)).tolist() == id_hashes(ids).tolist()[1:]
    assert len(set(id_hashes(ids).tolist())) == 2
    assert id_hashes(pa.array(["a", "b", "a"])).tolist()[::2] == [id_hashes(pa.array(["a"])).tolist()[0]] * 2


def test_resets_around_a_row() -> None:
    """Resets of the tenant count for all its queues; one at the row itself has passed or is next, as asked."""
    index = ResetIndex([("0", "acme", "work", 5, 0, 50, "purge"), ("0", "acme", "", 9, 1, 90, "delete_tenant")])
    columns = (
        pa.array(["0"] * 4),
        pa.array(["acme", "acme", "acme", "other"]),
        pa.array(["work", "work", "mail", "work"]),
    )
    shard, tenant, queue = [(words := Vocabulary(column), words.ranks[0]) for column in columns]
    seq, n = np.array([5, 6, 9, 1]), np.array([0, 0, 2, 0])
    passed = index.around(shard, tenant, queue, seq, n, tie_passed=True)
    assert passed.passed.tolist() == [1, 1, 1, 0]
    assert passed.next_at.tolist() == [90, 90, -1, -1]
    coming = index.around(shard, tenant, queue, seq, n, tie_passed=False)
    assert coming.passed.tolist() == [0, 1, 1, 0]
    assert coming.next_at.tolist() == [50, 90, -1, -1]
    assert coming.next_purges.tolist() == [True, False, False, False]
