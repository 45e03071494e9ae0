"""The lake: commits are atomic wherever the process is killed, and any Delta reader can read it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.pipeline.bronze.segments import SEGMENTS
from tenantq.pipeline.lake.delta_tables import DeltaTables
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.lake.versions import VersionSet
from tenantq.pipeline.silver.ops_daily import OPS_DAILY
from tenantq.pipeline.silver.tenant_changes import LIFTED, PLACED, TENANT_CHANGES
from tenantq.runtime.clock import ManualClock
from tests.buckets import served_bucket

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")


class Killed(BaseException):
    """Simulates a killed process."""


def stage(spark: SparkSession, lake: Lake, calls: int) -> None:
    """Stage a row for each day."""
    rows = [("acme", "add", "ok", calls, 1, 1, day) for day in DAYS]
    lake.stage(spark.createDataFrame(rows, OPS_DAILY), "ops_daily")


def stage_states(spark: SparkSession, lake: Lake, number: int) -> None:
    """Stage a second table without partitions."""
    row = (f"manifest/{number}", "", "0", number, number, "", "", "", 1, "", "", False)
    lake.stage(spark.createDataFrame([row], SEGMENTS), "segments")


def seen(spark: SparkSession, lake: Lake) -> set[int]:
    """Return the values in the table."""
    return {row["calls"] for row in lake.read(spark, "ops_daily").collect()}


def test_threads_stage_tables_in_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run computes several tables at once, and the first ones may begin at the same moment."""
    lake, both = Lake(tmp_path), Barrier(2)
    make = tempfile.mkdtemp

    def meet(**given: Any) -> str:
        with suppress(BrokenBarrierError):  # only one thread comes here
            both.wait(0.3)
        made: str = make(**given)
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", meet)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lake.scratch, ("one", "two"))
    assert first.parent == second.parent


def test_a_commit_killed_at_any_step_is_atomic(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its version set is recorded, a commit to two tables is rolled back; afterwards it is complete."""
    steps = (
        (DeltaTables, "commit", 0),
        (DeltaTables, "commit", 1),
        (DeltaTables, "record", 0),
        (DeltaTables, "sweep", 0),
    )
    for number, (owner, name, before) in enumerate((*steps, *steps)):
        left, step = [before], getattr(owner, name)

        def dying(*given: Any, left: list[int] = left, step: Any = step, **named: Any) -> Any:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return step(*given, **named)

        with lake.locked():
            earlier = seen(spark, lake)
            stage(spark, lake, number)
            stage_states(spark, lake, number)
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, dying)
                with pytest.raises(Killed):
                    lake.commit()
        again = Lake(lake.path)
        with again.locked():
            expected = {number} if name == "sweep" else earlier
            assert seen(spark, again) == expected
        for reader in (Lake(lake.path).tables, DeltaTables(lake.path)):
            assert set(reader.newest.tables) == ({"ops_daily", "segments"} if number > 2 else set())
        latest = DeltaTable(str(lake.path / "ops_daily")).to_pyarrow_table() if expected else None
        plain = pq.read_table(lake.path / "ops_daily") if expected else None
        assert expected == (set() if latest is None else set(latest["calls"].to_pylist()))
        assert expected == (set() if plain is None else set(plain["calls"].to_pylist()))
        assert not (lake.path / "_staging").exists()


def test_an_empty_log_entry_after_a_power_cut_is_dropped(spark: SparkSession, lake: Lake) -> None:
    """The table and the version sets are as recorded before."""
    with lake.locked():
        stage(spark, lake, 1)
        lake.commit()
    for table in ("ops_daily", "_versions"):
        (lake.path / table / "_delta_log" / f"{1:020d}.json").touch()
    (lake.path / "_staging").mkdir()
    again = Lake(lake.path)
    with again.locked():
        assert seen(spark, again) == {1}
        stage(spark, again, 2)
        assert len(again.commit()) == 3
    assert seen(spark, again) == {2}


def test_a_concurrent_writer_with_an_older_version_is_refused(spark: SparkSession, lake: Lake) -> None:
    """Without a lock, as at a URL, the commit of rows computed from an older version fails."""
    with lake.locked():
        stage(spark, lake, 1)
        lake.commit()
        stage(spark, lake, 2)
        other = Lake(lake.path)
        assert other.tables.newest.number == 1
        lake.commit()
    with pytest.raises(Conflict, match="another run changed table"):
        other.tables.commit("ops_daily", {f"date={DAYS[0]}": []}, 0)
    with pytest.raises(Conflict, match="another run changed the lake"):
        other.tables.record([VersionSet(number=2, at_ms=0, tables={"ops_daily": 1})])
    assert seen(spark, Lake(lake.path)) == {2}


def test_a_claim_keeps_other_processes_from_changing_a_lake_at_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the commit, or expires if its process was killed; a process that continues after that is refused."""
    clock = ManualClock()
    with served_bucket(monkeypatch):
        one, other = (Lake("s3://evidence/lake", clock) for _ in range(2))
        one.stage_state(LakeState(objective="first"))
        one.commit()
        other.settle()
        other.stage_state(LakeState(objective="second"))
        killed = one.tables.claimed()
        killed.__enter__()
        with pytest.raises(Conflict, match="another run is changing it, at most until"):
            other.commit()
        clock.advance(31 * 60_000)
        other.commit()
        with pytest.raises(Conflict, match="another run changed the lake"):
            killed.__exit__(None, None, None)
        reader = Lake("s3://evidence/lake")
        assert (reader.state().objective, reader.tables.newest.claim) == ("second", "")


def test_old_versions_stay_readable_while_they_are_kept_or_pinned(spark: SparkSession, lake: Lake) -> None:
    """Every reader sees the newest rows, and kept or pinned version sets the older ones until they are released."""
    with lake.locked():
        for calls in (1, 2, 3):
            stage(spark, lake, calls)
            lake.commit(keep=2)
            if calls == 1:
                lake.tables.pin(1, "invoices of January")
    uri = str(lake.path / "ops_daily")
    assert [(one.number, one.pin) for one in lake.tables.sets] == [(1, "invoices of January"), (2, ""), (3, "")]
    for one in lake.tables.sets:
        version = one.tables["ops_daily"]
        assert set(pl.read_delta(uri, version=version)["calls"]) == {one.number}
        assert set(DeltaTable(uri, version=version).to_pandas()["calls"]) == {one.number}
        rows = DeltaTable(uri, version=version).to_pyarrow_dataset()
        assert duckdb.from_arrow(rows).project("calls").distinct().fetchall() == [(one.number,)]
    with lake.locked():
        lake.tables.pin(1, "")
        stage(spark, lake, 4)
        lake.commit(keep=1)
    assert [one.number for one in lake.tables.sets] == [4]
    assert set(pq.read_table(uri)["calls"].to_pylist()) == {4}
    with pytest.raises(NotFound, match="does not keep version set 1"), lake.locked():
        lake.tables.pin(1, "too late")


def test_only_runs_and_erasures_drop_version_sets_that_a_run_kept(spark: SparkSession, lake: Lake) -> None:
    """Commits of other commands replace each other. The next run keeps as many sets of runs as it is asked to."""

    def numbers() -> list[int]:
        return [one.number for one in Lake(lake.path).tables.sets]

    with lake.locked():
        for calls in (1, 2, 3):
            stage(spark, lake, calls)
            lake.commit(keep=2)
        for calls in (4, 5):
            stage(spark, lake, calls)
            lake.commit()
        assert numbers() == [2, 3, 5]
        uri = str(lake.path / "ops_daily")
        assert [set(pl.read_delta(uri, version=at)["calls"]) for at in (1, 2, 4)] == [{2}, {3}, {5}]
        stage(spark, lake, 6)
        lake.commit(keep=2)
        assert numbers() == [3, 6]
        stage_states(spark, lake, 7)
        lake.commit(keep=1)
        assert numbers() == [7]
        assert set(pq.read_table(uri)["calls"].to_pylist()) == {6}
        stage_states(spark, lake, 8)
        lake.commit(keep=2)
        assert numbers() == [7, 8]
        lake.stage_state(LakeState(objective="changed"))
        lake.commit(erased="acme")
        assert numbers() == [9]


def test_pinned_versions_stay_readable_for_longer_than_delta_keeps_its_log(spark: SparkSession, lake: Lake) -> None:
    """Commits work too, and the log keeps no entries that neither the pinned nor the newest version set needs."""

    def commit(calls: int) -> None:
        stage(spark, lake, calls)
        lake.commit()

    with lake.locked():
        commit(0)
        every_fifth = {"delta.checkpointInterval": "5"}
        for table in ("ops_daily", "_versions"):
            DeltaTable(str(lake.path / table)).alter.set_table_properties(every_fifth)
        lake.tables.record([msgspec.structs.replace(lake.tables.newest, tables={"ops_daily": 1})])
        commit(1)
        pinned = lake.tables.pin(lake.tables.newest.number, "invoices of January")
        for calls in range(2, 8):
            commit(calls)
        month_ago = time.time() - 31 * 86_400
        for file in lake.path.glob("*/_delta_log/*"):
            os.utime(file, (month_ago, month_ago))
        for calls in range(8, 20):
            commit(calls)
    uri, version = str(lake.path / "ops_daily"), pinned.tables["ops_daily"]
    assert set(DeltaTable(uri, version=version).to_pandas()["calls"]) == {1}
    assert set(pl.read_delta(uri, version=version)["calls"]) == {1}
    assert seen(spark, Lake(lake.path)) == {19}
    assert set(pl.read_delta(uri)["calls"]) == {19}
    entries = {table: sorted(lake.path.glob(f"{table}/_delta_log/*.json")) for table in ("ops_daily", "_versions")}
    assert [int(file.stem) for file in entries["ops_daily"]] == [0, 1, 2, 19, 20]  # of versions 2 and 20
    assert len(entries["_versions"]) <= 6


def test_a_vacuum_by_another_tool_leaves_what_pins_and_legal_holds_need(spark: SparkSession, tmp_path: Path) -> None:
    """Pinned and held files of any age stay, also after a cleanup of the log, and the next commit works."""
    lake = Lake(tmp_path / "lake", ManualClock())
    when = datetime(2026, 1, 1, tzinfo=UTC)
    with lake.locked():
        held = [("0", 1, 0, when, "acme", PLACED, "", DAYS[0])]
        lake.stage(spark.createDataFrame(held, TENANT_CHANGES), "tenant_changes")
        for calls in (1, 2, 3):
            stage(spark, lake, calls)
            lake.commit()
            if calls == 1:
                lake.tables.pin(1, "invoices of January")
    held_files = lake.tables.old_files("ops_daily")
    assert len(held_files) == 3
    for file in lake.path.glob("*/**/*.*"):
        os.utime(file, (0, 0))
    for table in ("ops_daily", "tenant_changes", "_versions"):
        for full in (False, True):
            DeltaTable(str(lake.path / table)).vacuum(dry_run=False, full=full)
        DeltaTable(str(lake.path / table)).cleanup_metadata()
    uri = str(lake.path / "ops_daily")
    assert set(pl.read_delta(uri, version=Lake(lake.path).tables.find(1).tables["ops_daily"])["calls"]) == {1}
    again = Lake(lake.path)
    with again.locked():
        assert again.tables.old_files("ops_daily") == held_files
        stage(spark, again, 4)
        assert len(again.commit()) == 3
    assert set(pl.read_delta(uri)["calls"]) == {4}
    assert set(pl.read_delta(uri, version=Lake(lake.path).tables.find(1).tables["ops_daily"])["calls"]) == {1}


def test_checkpoints_are_synced_before_the_log_entries_they_replace_are_deleted(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut then leaves either the entries or the checkpoint."""
    synced: set[str] = set()
    deleted: list[str] = []

    def sync_all(paths: Iterable[Path]) -> None:
        synced.update(str(path.relative_to(lake.path)) for path in paths)

    def delete(name: str) -> None:
        if "_delta_log" in name:
            table = name.partition("/")[0]
            assert {f"{table}/_delta_log", f"{table}/_delta_log/_last_checkpoint"} <= synced
            deleted.append(name)

    with lake.locked():
        stage(spark, lake, 1)
        lake.commit()
        for table in ("ops_daily", "_versions"):
            found = DeltaTable(str(lake.path / table))
            found.create_checkpoint()
            (lake.path / table / "_delta_log" / f"{found.version() + 1:020d}.json").write_text('{"commitInfo":{}}\n')
            DeltaTable(str(lake.path / table)).create_checkpoint()
        lake.tables.record([msgspec.structs.replace(lake.tables.newest, tables={"ops_daily": 1})])
        monkeypatch.setattr("tenantq.pipeline.lake.delta_tables.sync_all", sync_all)
        monkeypatch.setattr(lake.tables.target, "delete", delete)
        lake.tables.sweep(["ops_daily"])
    assert {name.partition("/")[0] for name in deleted} == {"ops_daily", "_versions"}


def test_files_of_old_versions_stay_while_a_tenant_in_them_is_under_a_legal_hold(
    spark: SparkSession, lake: Lake
) -> None:
    """They are deleted with the first commit after the hold; an erasure of another tenant still deletes its own rows."""
    when = datetime(2026, 1, 1, tzinfo=UTC)

    def hold(op: str, seq: int) -> None:
        lake.stage(
            spark.createDataFrame([("0", seq, 0, when, "acme", op, "", DAYS[0])], TENANT_CHANGES), "tenant_changes"
        )
        lake.commit()

    with lake.locked():
        hold(PLACED, 1)
        for calls in (1, 2):
            stage(spark, lake, calls)
            lake.commit()
        old = lake.tables.old_files("ops_daily")
        assert len(old) == 3
        assert set(DeltaTable(str(lake.path / "ops_daily"), version=0).to_pandas()["calls"]) == {1}
        lake.commit(erased="other")
        assert lake.tables.old_files("ops_daily") == old
        hold(LIFTED, 2)
        stage(spark, lake, 3)
        lake.commit()
        assert lake.tables.old_files("ops_daily") == []


def test_a_second_concurrent_run_is_refused(lake: Lake) -> None:
    """It changes nothing."""
    with lake.locked(), pytest.raises(Conflict, match="another run"), Lake(lake.path).locked():
        pass


def test_unchanged_partitions_are_not_rewritten(spark: SparkSession, lake: Lake) -> None:
    """The same rows staged again change no file; a partition without rows is removed."""
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
    """A day is one file, sorted by tenant, with row group statistics on the tenant."""
    monkeypatch.setattr("tenantq.pipeline.lake.lake.ROW_GROUP_BYTES", 20_000)
    rows = spark.range(40_000).selectExpr(
        "concat('t', lpad(id % 50, 2, '0')) tenant", "cast(uuid() as string) op", "'ok' outcome", "id calls", "id rows",
        "id principals", "if(id % 2 = 0, '2026-01-01', '2026-01-02') date",
    )  # fmt: skip
    with lake.locked():
        lake.stage(rows, "ops_daily")
        lake.commit()
    days = sorted(lake.path.glob("ops_daily/date=*"))
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


def test_an_unusable_lake_path_is_a_clear_error(tmp_path: Path, spark: SparkSession) -> None:
    """A file, a read-only directory, a missing path, and an invalid state file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="but is a file"), Lake(tmp_path / "file").locked():
        pass
    with pytest.raises(Invalid, match="cannot be written"), Lake(tmp_path / "file" / "below").locked():
        pass
    with pytest.raises(Invalid, match="but is a file"):
        Lake(tmp_path / "file").settle()
    with pytest.raises(NotFound, match="run tenantq pipeline run first"):
        Lake(tmp_path / "nothing").settle()
    old = tmp_path / "old"
    (old / "_state").mkdir(parents=True)
    with pytest.raises(Invalid, match="before Delta Lake"), Lake(old).locked():
        pass
    log = tmp_path / "lake" / "_versions" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("{")
    with pytest.raises(Invalid, match="Restore it from a backup"):
        Lake(tmp_path / "lake").settle()
