"""Complete runs: the tables equal an oracle's for any order and number of runs, and bad input does not affect the rest."""

from __future__ import annotations

import os
import random
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tenantq.errors import Conflict, Invalid, NotFound, Unavailable
from tenantq.journal.export_target import open_target
from tenantq.pipeline.explanation import explain, offsets
from tenantq.pipeline.gold.slo_daily import Objective
from tenantq.pipeline.journal_source import new_files, open_journal
from tenantq.pipeline.lake.delta_tables import DeltaTables
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.lake.versions import storage_options
from tenantq.pipeline.price_book import DEFAULT, Credit, Item, PriceBook, Tier
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions, RunReport
from tenantq.pipeline.stream import PipelineStream, stream
from tenantq.pipeline.tables import TABLES
from tests.buckets import served_bucket
from tests.pipeline.conftest import NOW, digests
from tests.pipeline.journals import HOUR, START, JournalWriter, encode_chained, entry, message_id
from tests.pipeline.oracle import Oracle, journal_rows
from tests.pipeline.test_lake import Killed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tenantq.journal.export_target import DirectoryTarget
    from tests.pipeline.conftest import ProcessedJournal, RunPipeline


def check_against_oracle(spark: SparkSession, lake: Lake, writers: list[JournalWriter]) -> None:
    """Compare message lives and usage with plain Python results from the same records."""
    oracles = [Oracle(journal_rows(writer.records)) for writer in writers]
    lives = {
        (row["tenant"], row["message_id"]): {
            "queue": row["queue"],
            "bytes": row["bytes"],
            "waits": [one["wait_ms"] for one in row["deliveries"]],
            "times": sorted(one["process_ms"] for one in row["settlements"]),
            "outcome": row["outcome"],
            "ended_at": row["ended_at"] and row["ended_at"].astimezone(UTC),
            "dead_letters": row["dead_letters"],
        }
        for row in lake.read(spark, "message_lives").collect()
    }
    expected = {key: {**life, "times": sorted(life["times"])} for one in oracles for key, life in one.lives.items()}
    assert lives == expected
    usage = {}
    for row in lake.read(spark, "usage_hourly").collect():
        at = int(datetime.strptime(f"{row['date']} {row['hour']} +0000", "%Y-%m-%d %H %z").timestamp() * 1_000) // HOUR
        usage[row["tenant"], row["queue"], at] = row.asDict()
    hours = {key: hour for one in oracles for key, hour in one.hours.items() if any(hour.values())}
    for key, hour in hours.items():
        assert {name: int(usage[key][name]) for name in hour} == hour, key
    assert not [key for key, row in usage.items() if key not in hours and (row["operations"] or row["byte_ms"])]


def _no_spark(_: int) -> SparkSession:
    raise AssertionError("a run without new data must not start Spark")


def test_72_reruns_and_any_order_of_arrival_give_each_event_exactly_once(
    spark: SparkSession, processed: ProcessedJournal, journal: DirectoryTarget, lake: Lake, pipeline: RunPipeline
) -> None:
    """One run, a rerun, and late segments in any order leave the same bytes, equal to the oracle.

    Late segments rewrite only the partitions they touch: none of an earlier day, except for message lives that began there.
    """
    assert processed.report.accepted == processed.report.segments == len(processed.writer.files)
    assert not processed.report.quarantined
    check_against_oracle(spark, processed.lake, [processed.writer])
    before = digests(processed.lake)
    again = run(_no_spark, str(processed.journal.path), processed.lake, RunOptions(now_ms=NOW))
    assert again.changed == []
    assert digests(processed.lake) == before

    second_day = [one for one in processed.writer.files if "date=2026-01-02" in one.file]
    late = random.Random(5).sample(second_day, 3)
    for part in ([one for one in processed.writer.files if one not in late], late):
        for manifest in part:
            journal.write(manifest.file, processed.journal.read(manifest.file))
            journal.write(manifest.name, processed.journal.read(manifest.name))
        report = pipeline()
    assert digests(lake) == before
    hours = {one.file.split("/shard=")[0] for one in late}
    assert {one for one in report.changed if one.startswith("bronze/")} == {f"bronze/{hour}" for hour in hours}
    earlier = {one for one in report.changed if one.partition("/")[2] < "date=2026-01-02" and "date=" in one}
    assert earlier <= {"message_lives/date=2026-01-01"}
    assert 0 < len(report.changed) < len(processed.report.changed) / 2


def test_every_table_exists_after_a_run_also_without_rows(
    spark: SparkSession, journal: DirectoryTarget, lake: Lake, pipeline: RunPipeline
) -> None:
    """An empty journal leaves empty tables that other readers can open; later rows are the only ones."""
    assert pipeline().changed == []
    for name, table in TABLES.items():
        found = pq.read_table(lake.path / name)
        assert (found.num_rows, set(found.column_names)) == (0, set(table.columns.names))
        assert lake.read(spark, name).isEmpty()
    writer = JournalWriter(journal)
    writer.record(START, entry("create_queue"), entry("add", ids=message_id(1), size=10))
    writer.segment()
    report = pipeline()
    assert not [name for name in report.changed if name.startswith("anomalies")]
    assert not list(lake.path.glob("bronze/*.parquet"))
    assert lake.read(spark, "bronze").count() == pq.read_table(lake.path / "bronze").num_rows == 2
    assert pq.read_table(lake.path / "anomalies").num_rows == 0
    assert pipeline().changed == []


def test_a_restarted_stream_gives_the_same_tables_as_a_batch(
    spark: SparkSession, processed: ProcessedJournal, tmp_path: Path
) -> None:
    """A continuous stream is stopped after a micro-batch; another one ends when nothing is new."""
    options, streamed = RunOptions(now_ms=NOW), Lake(tmp_path / "streamed")
    half = len(processed.writer.files) * 2 // 3
    journal = f"file://{processed.journal.path}"
    reports: list[RunReport] = []
    first: Future[PipelineStream] = Future()

    def stopped(report: RunReport) -> None:
        reports.append(report)
        first.result().stop()

    first.set_result(stream(spark, journal, streamed, options, every_s=1, files_per_batch=half, on_batch=stopped))
    first.result().wait()
    assert [one.accepted for one in reports] == [half]
    assert reports[0].watermark == "2026-01-02T05:43:00Z"
    rest = stream(spark, journal, streamed, options, files_per_batch=half, on_batch=reports.append)
    rest.wait()
    assert sum(one.accepted for one in reports) == len(processed.writer.files)
    tables = {name: value for name, value in digests(streamed).items() if not name.startswith("_")}
    assert tables == digests(processed.lake)


def test_a_run_killed_at_any_stage_leaves_the_same_bytes_when_repeated(
    spark: SparkSession, processed: ProcessedJournal, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between layers, then during its commit."""
    journal, options = str(processed.journal.path), RunOptions(now_ms=NOW)

    def dying(stage: str) -> None:
        if stage == "queue_resets":
            raise Killed

    with pytest.raises(Killed):
        run(spark, journal, lake, options, dying)
    assert digests(lake) == {}
    commit, left = DeltaTables.commit, [8]

    def last(*given: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return commit(*given)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTables, "commit", last)
        with pytest.raises(Killed):
            run(spark, journal, lake, options)
    assert set(digests(lake)) < set(digests(processed.lake))
    assert not lake.tables.sets
    assert run(spark, journal, lake, options).changed == processed.report.changed
    assert digests(lake) == digests(processed.lake)


def test_a_new_price_book_or_objective_recomputes_only_affected_rows(
    spark: SparkSession, processed: ProcessedJournal, tmp_path: Path
) -> None:
    """Lines of months with other prices, or service levels; the report says so."""
    lake, journal = processed.copy(tmp_path / "copy"), str(processed.journal.path)
    dearer = PriceBook(items=[Item("Operations", "operations", [Tier("2.00")])])
    elsewhere = msgspec.structs.replace(DEFAULT, credits=[Credit("acme", "2031-05", "1.00", "another month")])

    def again(**given: Any) -> RunReport:
        return run(spark, journal, lake, RunOptions(now_ms=NOW, **given))

    assert again(prices=elsewhere).repriced == []
    assert again(prices=dearer, from_date="2026-02-01").repriced == []
    report = again(prices=dearer)
    assert report.repriced == ["2026-01"]
    assert report.changed == ["invoice_lines/period=2026-01"]
    lines = lake.read(spark, "invoice_lines").collect()
    assert {line["item"] for line in lines} == {"Operations"}
    assert all(line["amount"] == line["quantity"] * 2 for line in lines)
    assert again(prices=dearer).changed == []
    report = again(prices=dearer, objective=Objective(target=0.5, wait_ms=1))
    assert report.remeasured
    assert {one.split("/")[0] for one in report.changed} == {"slo_daily"}


def test_a_range_of_days_selects_the_segments(processed: ProcessedJournal, lake: Lake) -> None:
    """By the day of the first record; both ends are included."""
    days = {}
    for first, last in (("", "2026-01-01"), ("2026-01-02", ""), ("2026-01-02", "2026-01-02"), ("2027-01-01", "")):
        options = RunOptions(now_ms=NOW, from_date=first, to_date=last)
        found = new_files(processed.journal, str(processed.journal.path), lake, options)
        files = {manifest.name: manifest.file for manifest in processed.writer.files}
        days[first, last] = {files[name][5:15] for name in found.manifests}
        assert found.orphans == []
    assert list(days.values()) == [
        {"2026-01-01"}, {"2026-01-02"}, {"2026-01-02"}, set(),
    ]  # fmt: skip


def test_bad_segments_and_rows_are_quarantined_and_the_good_are_processed(
    spark: SparkSession, journal: DirectoryTarget, lake: Lake, pipeline: RunPipeline
) -> None:
    """Each kind of damage has its reason and count. Everything else is in the tables, including records that two segments contain."""
    writer = JournalWriter(journal)
    for number in range(11):
        size = -7 if number == 6 else 10
        op = "levitate" if number == 7 else "add"
        writer.record(START + number * HOUR, entry("create_queue"), entry(op, ids=message_id(number), size=size))
        writer.segment()
    truncated, changed, orphan, gone, foreign = writer.files[1:6]
    data = journal.read(truncated.file)
    journal.write(truncated.file, data[: len(data) // 2])
    journal.write(changed.file, journal.read(writer.files[0].file))
    journal.delete(orphan.name)
    journal.delete(gone.file)
    journal.write(foreign.name, msgspec.json.encode(msgspec.structs.replace(foreign, schema=99)))
    unreadable, garbled, moved = writer.files[8:11]
    journal.delete(unreadable.file)
    (journal.path / unreadable.file).mkdir()
    journal.write(garbled.name, b'{"shard": 7')
    journal.write(moved.name.replace("-", "-9"), journal.read(moved.name))
    writer.record(NOW + 40 * 24 * HOUR, entry("add", ids=message_id(99), size=3))
    writer.segment()
    writer.write(writer.records[6:8])  # records of two other segments again
    report = pipeline()
    assert report.quarantined == {
        "changed_segment": 2, "future_timestamp": 1, "missing_manifest": 1, "missing_records": 7, "missing_segment": 2,
        "negative_value": 2, "truncated": 2, "unknown_op": 2, "unreadable_manifest": 0, "unreadable_segment": 2,
        "wrong_manifest": 2, "wrong_schema": 2,
    }  # fmt: skip
    assert lake.read(spark, "message_lives").count() == 2
    assert lake.read(spark, "bronze").count() == 6
    gaps = lake.read(spark, "anomalies").collect()
    assert {(row["kind"], row["severity"]) for row in gaps} == {("audit_gap", "high")}
    assert {row["details"].split(":")[0] for row in gaps} == set(report.quarantined)
    failed = lake.read(spark, "compliance_soc2").where("status = 'fail'").collect()
    assert {row["evidence"] for row in failed} == {f"quarantined: {reason}" for reason in report.quarantined}


def test_an_invoice_line_is_traced_back_to_journal_offsets(spark: SparkSession, processed: ProcessedJournal) -> None:
    """The rows behind a line are those that were charged, and their quantities add up to it."""
    found = explain(spark, processed.lake, "2026-01/acme/Operations")
    charged = [
        row
        for row in journal_rows(processed.writer.records)
        if row.tenant == "acme" and row.outcome == "ok" and row.principal != "system"
    ]
    assert found.rows == len(charged)
    assert int(found.line["quantity"]) == int(found.quantity) == sum(row.count for row in charged)
    assert offsets(spark, processed.lake, "2026-01/acme/Operations") == [f"0:{row.seq}.{row.n}" for row in charged]
    with pytest.raises(NotFound, match="no such invoice line"):
        explain(spark, processed.lake, "2026-01/nobody/Operations")


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Run as a user that file permissions apply to."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if me == 0:
            os.seteuid(me)


def test_an_unreadable_journal_is_a_typed_error(tmp_path: Path) -> None:
    """Missing, unreadable, not a journal or unreachable; the error names it."""
    place = tmp_path / "a place"
    (place / "manifest" / "shard=0").mkdir(parents=True)
    assert open_journal(f"file://{str(place).replace(' ', '%20')}").path == place  # type: ignore[attr-defined]
    place.chmod(0)
    with as_unprivileged_user(), pytest.raises(Invalid, match="cannot be read: Permission denied"):
        open_journal(str(place))
    place.chmod(0o755)
    (tmp_path / "other" / "things").mkdir(parents=True)
    with pytest.raises(Invalid, match="neither date=… nor manifest"):
        open_journal(str(tmp_path / "other"))


def test_a_journal_and_a_lake_at_urls_work_like_directories(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only new segments are fetched. An empty prefix and an unreachable bucket are reported. Any Delta reader works."""
    with served_bucket(monkeypatch):
        lake = Lake("s3://evidence/lake")
        _fetch_and_forget(spark, lake)
        assert Lake("s3://evidence/lake").tables.newest.tables.keys() == TABLES.keys()
        lives = DeltaTable("s3://evidence/lake/message_lives", storage_options=storage_options())
        assert lives.to_pyarrow_table().num_rows == 2
        names = lake.tables.target.names("message_lives")
        assert len([name for name in names if name.endswith(".parquet")]) == 1
        late, other = Lake("s3://evidence/lake"), Lake("s3://evidence/lake")
        for one in (late, other):
            assert one.state() == LakeState(**{name: getattr(lake.state(), name) for name in ("prices", "objective")})
            one.stage_state(LakeState(objective="changed"))
        late.commit()
        with pytest.raises(Conflict, match="another run changed the lake"):
            other.commit()
    gone = Lake("s3://evidence/lake")
    with pytest.raises(Unavailable, match="s3://evidence/journal: cannot be read"):
        run(spark, "s3://evidence/journal", gone, RunOptions(now_ms=NOW))
    with pytest.raises(Unavailable, match="s3://evidence/lake/_versions: cannot be read"):
        gone.settle()


def _fetch_and_forget(spark: SparkSession, lake: Lake) -> None:
    url = "s3://evidence/journal"
    far = open_target(url)
    writer = JournalWriter(far)  # type: ignore[arg-type]  # any target will do
    for number in range(2):
        writer.record(START + number, entry("create_queue"), entry("add", ids=message_id(number), size=10))
        writer.segment()
    far.delete(writer.files[1].file)
    with pytest.raises(Invalid, match="s3://evidence/elsewhere: is empty"):
        run(spark, "s3://evidence/elsewhere", lake, RunOptions(now_ms=NOW))
    report = run(spark, url, lake, RunOptions(now_ms=NOW))
    assert (report.segments, report.accepted, report.rows) == (2, 1, 2)
    assert report.quarantined == {"missing_segment": 2}
    far.write(writer.files[1].file, encode_chained(writer.records[1:])[0])
    far.delete(writer.files[0].file)  # is not read again
    assert run(spark, url, lake, RunOptions(now_ms=NOW)).accepted == 1
    assert lake.read(spark, "message_lives").count() == 2
    assert not (lake.path / "_incoming").exists()


def test_a_missing_journal_is_a_typed_error(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(Invalid, match="is not a directory"):
        run(spark, str(tmp_path / "nowhere"), lake, RunOptions(now_ms=NOW))
