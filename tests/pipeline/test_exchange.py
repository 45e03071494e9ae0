"""Exchanges of Arrow tables: Spark's tasks and this process give the same tables, from files and from DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from tenantq.pipeline.arrow_columns import Vocabulary, id_hashes
from tenantq.pipeline.exchange import joined
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.pieces import HOUR_US, Pieces
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tenantq.pipeline.silver.queue_resets import ResetIndex
from tests.pipeline.conftest import NOW, ProcessedJournal, digests

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_tasks_compute_the_same_files_as_this_process(
    spark: SparkSession, processed: ProcessedJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows are exchanged and written without a Spark job. With these limits, every row counts as many."""
    monkeypatch.setattr("tenantq.pipeline.exchange.FEW_BYTES", 0)
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
