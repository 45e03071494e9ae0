"""What new rows affect is known from the verification of their segments, without a Spark job."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tenantq.pipeline.bronze.row_summary import RowSummary, combined, summarize, summary_of
from tenantq.pipeline.bronze.rows import RowRules, valid_rows
from tenantq.pipeline.bronze.segment_check import verdict
from tenantq.pipeline.schemas import SEGMENT_ROW
from tests.pipeline.journals import DAY, HOUR, START, JournalWriter, entry, message_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tenantq.journal.export_target import DirectoryTarget

RULES = RowRules(now_ms=START + 2 * DAY)


def written(journal: DirectoryTarget, op: str = "ack", at: int = START + HOUR, size: int = 0) -> tuple[str, pa.Table]:
    """Write a segment in which two messages are added and one more record follows; return its manifest and rows."""
    writer = JournalWriter(journal)
    writer.record(START, entry("create_queue"), entry("add", ids=message_id(1) + message_id(2)))
    writer.record(at, entry(op, ids=message_id(1), size=size))
    writer.record(at + 1, entry("purge"))
    manifest = writer.segment()
    return manifest.name, pq.read_table(io.BytesIO(journal.read(manifest.file)))


def test_a_verified_segment_names_the_partitions_its_rows_affect(journal: DirectoryTarget) -> None:
    """Hours count rows, and days of lives count the messages that were added."""
    name, _ = written(journal)
    row, found = verdict(journal, name, None, RULES)
    assert row["reason"] == ""
    assert found.rows == 5
    assert list(found.hours.values()) == [3, 2]
    assert list(found.lives.values()) == [2]
    assert (found.first_reset_ms, found.faulty) == (START + HOUR + 1, False)


def test_a_refused_segment_affects_nothing(journal: DirectoryTarget) -> None:
    """Otherwise partitions would be selected that get no rows."""
    name, _ = written(journal)
    journal.write(name, b"{}")
    row, found = verdict(journal, name, None, RULES)
    assert row["reason"]
    assert found == RowSummary()


@pytest.mark.parametrize(
    ("changed", "rules"),
    [
        ({"op": "levitate"}, RULES),
        ({"size": -1}, RULES),
        ({"at": START + 4 * DAY}, RULES),
        ({}, RowRules(now_ms=START + 2 * DAY, deleted_dates=("2026-01-01",))),
    ],
)
def test_rows_that_may_be_invalid_are_noticed(
    journal: DirectoryTarget, changed: dict[str, int], rules: RowRules
) -> None:
    """Spark then looks at each row; without this flag it does not."""
    _, rows = written(journal, **changed)  # type: ignore[arg-type]  # of several types
    assert summary_of(rows, rules).faulty


def test_spark_and_the_verification_summarize_alike(spark: SparkSession, journal: DirectoryTarget) -> None:
    """Spark summarizes rows that the verification cannot judge alone: of overlapping segments and erased tenants."""
    name, rows = written(journal)
    raw = spark.createDataFrame(rows.to_pylist(), SEGMENT_ROW).repartition(3)
    _, found = verdict(journal, name, None, RULES)
    on_spark = summarize(valid_rows(raw, RowRules(unique=True)))
    assert (on_spark.rows, on_spark.hours, on_spark.lives, on_spark.first_reset_ms) == (
        found.rows, found.hours, found.lives, found.first_reset_ms,
    )  # fmt: skip
    assert combined([found, RowSummary()]) == found
