"""The archive: old days are verified, moved out of the lake, restored unchanged, and deleted at the end of their retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Invalid, NotFound, StoreDamaged
from tenantq.pipeline.explanation import explain
from tenantq.pipeline.lake.archive import archive, bring_back, deleted_dates, restore
from tenantq.pipeline.lake.retention import Retention, RetentionRule, check_retention, load_retention
from tenantq.pipeline.silver.tenant_changes import PLACED, TENANT_CHANGES
from tests.pipeline.conftest import digests
from tests.pipeline.journals import DAY, START
from tests.pipeline.test_lake import Killed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.pipeline.conftest import ProcessedJournal

THIRD_DAY = START + 2 * DAY
DAY_OLD = Retention(default=RetentionRule(archive_after_days=1))


def test_old_days_are_archived_in_few_files_and_restored_unchanged(
    spark: SparkSession, processed: ProcessedJournal, tmp_path: Path
) -> None:
    """Interrupted, repeated and restored by late rows, nothing is lost or duplicated; a changed file is refused."""
    lake, cold = processed.copy(tmp_path / "lake"), tmp_path / "cold"
    before = digests(lake)

    def dying(step: str) -> None:
        if step.startswith("slo_daily"):
            raise Killed

    with pytest.raises(Killed):
        archive(spark, lake, str(cold), DAY_OLD, THIRD_DAY, dying)
    report = archive(spark, lake, f"file://{cold}", DAY_OLD, THIRD_DAY)
    assert report.archived[0] == "slo_daily/2026-01-01"
    archived = {(day.table, day.date) for day in lake.state().archived}
    assert ("bronze", "2026-01-01") in archived
    assert "2026-01-02" not in {date for _, date in archived}
    assert len(list(cold.glob("bronze/date=2026-01-01/*"))) == 1
    assert not list(lake.path.glob("bronze/date=2026-01-01/*/*"))
    with pytest.raises(NotFound, match="--restore --from 2026-01-01 --until 2026-01-01"):
        explain(spark, lake, "2026-01/acme/Operations")
    (file,) = cold.glob("bronze/date=2026-01-01/*")
    data = file.read_bytes()
    file.write_bytes(data[:-9] + b"x" + data[-8:])
    late = processed.lake.read(spark, "bronze").where("date = '2026-01-01'").limit(1)
    with lake.locked(), pytest.raises(StoreDamaged, match="was changed"):
        bring_back(spark, lake, late)
    file.write_bytes(data)
    with lake.locked():
        assert bring_back(spark, lake, processed.lake.read(spark, "bronze").where("date = '2026-01-02'").limit(0)) == []
        assert "bronze/2026-01-01" in bring_back(spark, lake, late)
        assert restore(spark, lake, lambda _: True) == []
    assert digests(lake) == before


def test_days_past_their_retention_are_deleted_unless_held(
    spark: SparkSession, processed: ProcessedJournal, tmp_path: Path
) -> None:
    """A legal hold on a tenant keeps the days that have its rows, and deleted days are remembered."""
    lake, cold = processed.copy(tmp_path / "lake"), tmp_path / "cold"
    rules = Retention(tables={"bronze": RetentionRule(archive_after_days=1, delete_after_days=2)})
    archive(spark, lake, str(cold), rules, THIRD_DAY)
    with lake.locked():
        hold = [("0", 99, 0, processed.writer.records[-1].record.ts, "acme", PLACED, "a case", "2026-01-01")]
        frame = spark.createDataFrame(
            [(*row[:3], None, *row[4:]) for row in hold], TENANT_CHANGES
        )  # fmt: skip
        lake.stage(frame, "tenant_changes")
        lake.commit()
    report = archive(spark, lake, str(cold), rules, START + 3 * DAY)
    assert report.held == ["bronze/2026-01-01"]
    assert report.deleted == []
    with lake.locked():
        lake.stage(spark.createDataFrame([], TENANT_CHANGES), "tenant_changes")
        lake.commit()
    assert archive(spark, lake, str(cold), rules, START + 3 * DAY).deleted == ["bronze/2026-01-01"]
    assert not list(cold.glob("bronze/date=2026-01-01/*"))
    assert deleted_dates(lake.state()) == ["2026-01-01"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[tables.usage_hourly]\narchive_after_days = 3\n", "usage_hourly.* cannot be archived"),
        ("[tables.bronze]\narchive_after_days = -3\n", "must be 0 to 36500"),
        ("[tables.bronze]\ndelete_after_days = 3\n", "must be given"),
        ("[tables.bronze]\narchive_after_days = 3\ndelete_after_days = 3\n", "more than archive_after_days"),
        ("[tables.bronze]\nafter = 3\n", "unknown field"),
        ("tables = ", "Invalid value"),
    ],
)
def test_invalid_retention_rules_are_refused(tmp_path: Path, text: str, what: str) -> None:
    """The error names the table and the problem."""
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(Invalid, match=what):
        load_retention(file, None)


def test_the_rule_of_a_table_overrides_the_default() -> None:
    """Fields that it leaves out come from the default."""
    rules = check_retention(Retention(default=RetentionRule(90, 400), tables={"bronze": RetentionRule(30)}), "rules")
    assert rules.of("bronze") == RetentionRule(30, 400)
    assert rules.of("anomalies") == RetentionRule(90, 400)
