"""The lake: a change happens wholly or not at all, wherever the process is killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Conflict
from tenantq.pipeline.lake import Lake
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
