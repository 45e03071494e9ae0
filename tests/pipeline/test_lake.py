"""The lake: a change happens wholly or not at all, wherever the process is killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.schemas import OPS_DAILY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")


class Killed(BaseException):
    """What a kill does to a process."""


def stage(spark: SparkSession, lake: Lake, calls: int) -> None:
    """Stage a row for each day."""
    rows = [("acme", "add", "ok", calls, 1, 1, day) for day in DAYS]
    lake.stage(spark.createDataFrame(rows, OPS_DAILY), "ops_daily")


def seen(spark: SparkSession, lake: Lake) -> set[int]:
    """Return the values that the table has."""
    return {row["calls"] for row in lake.read(spark, "ops_daily").collect()}


def test_a_run_killed_anywhere_in_its_commit_is_finished_or_forgotten(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any number of renames the next run finds all of the old or makes all of the new."""
    with lake.locked():
        stage(spark, lake, 0)
        lake.commit()
    rename = Path.rename
    for renames in range(5):
        left = [renames]

        def dying(path: Path, target: Path, left: list[int] = left) -> Path:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return rename(path, target)

        with lake.locked():
            before = seen(spark, lake)
            stage(spark, lake, renames + 1)
            monkeypatch.setattr(Path, "rename", dying)
            try:
                lake.commit()
            except Killed:
                assert renames < 4
            finally:
                monkeypatch.setattr(Path, "rename", rename)
        again = Lake(lake.path)
        with again.locked():
            assert seen(spark, again) == (before if renames == 0 else {renames + 1})
        assert not (lake.path / "_staging").exists()


def test_two_runs_at_once_are_kept_apart(lake: Lake) -> None:
    """The second is told, and changes nothing."""
    with lake.locked(), pytest.raises(Conflict, match="another run"), Lake(lake.path).locked():
        pass


def test_what_did_not_change_is_not_written(spark: SparkSession, lake: Lake) -> None:
    """The same rows staged again leave every file alone; a partition without rows goes."""
    with lake.locked():
        stage(spark, lake, 1)
        assert len(lake.commit()) == 3
        stage(spark, lake, 1)
        assert lake.commit() == []
        lake.stage(spark.createDataFrame([], OPS_DAILY), "ops_daily", lambda one: one == f"date={DAYS[0]}")
        assert lake.commit() == [f"ops_daily/date={DAYS[0]}"]


def test_filters_on_tenant_and_time_skip_files_and_row_groups(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day is one file, sorted by tenant, in row groups whose statistics say which of them can have a tenant."""
    monkeypatch.setattr("tenantq.pipeline.lake.lake.ROW_GROUP_BYTES", 20_000)
    rows = spark.range(40_000).selectExpr(
        "concat('t', lpad(id % 50, 2, '0')) tenant", "cast(uuid() as string) op", "'ok' outcome", "id calls", "id rows",
        "id principals", "if(id % 2 = 0, '2026-01-01', '2026-01-02') date",
    )  # fmt: skip
    with lake.locked():
        lake.stage(rows, "ops_daily")
        lake.commit()
    days = sorted(lake.path.glob("ops_daily/*"))
    assert [day.name for day in days] == ["date=2026-01-01", "date=2026-01-02"]
    for day in days:
        (file,) = day.iterdir()
        meta = pq.ParquetFile(file).metadata
        groups = [meta.row_group(at).column(0).statistics for at in range(meta.num_row_groups)]
        assert len(groups) >= 10
        bounds = [(group.min, group.max) for group in groups]
        assert bounds == sorted(bounds)
        tenant = "t20" if day.name.endswith("1") else "t21"
        assert 1 <= sum(low <= tenant <= high for low, high in bounds) <= len(bounds) / 10
    plan = lake.read(spark, "ops_daily").where("date = '2026-01-01' and tenant = 't20'")
    assert len(plan.inputFiles()) == 2
    assert plan.count() == 800
    said = plan._jdf.queryExecution().toString()
    assert "PartitionFilters: [isnotnull(date" in said
    assert "EqualTo(tenant,t20)" in said


def test_what_cannot_be_a_lake_is_told_plainly(tmp_path: Path, spark: SparkSession) -> None:
    """A file, a place where nothing can be made, nothing at all, and a state that is no state."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="is a file"), Lake(tmp_path / "file").locked():
        pass
    with pytest.raises(Invalid, match="cannot be written"), Lake(tmp_path / "file" / "below").locked():
        pass
    with pytest.raises(Invalid, match="is a file"):
        Lake(tmp_path / "file").settle()
    with pytest.raises(NotFound, match="run tenantq pipeline run first"):
        Lake(tmp_path / "nothing").settle()
    lake = Lake(tmp_path / "lake")
    (lake.path / "_state").mkdir(parents=True)
    (lake.path / "_state" / "state.json").write_text("{")
    with pytest.raises(Invalid, match="restore it from a backup"):
        lake.state()
