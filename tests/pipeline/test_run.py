"""Whole runs: the tables equal an oracle's, whatever the order and number of runs, and bad input harms nothing good."""

from __future__ import annotations

import hashlib
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.errors import Invalid
from tenantq.pipeline.explain import explain
from tenantq.pipeline.lake import Lake
from tenantq.pipeline.run import Options, run
from tenantq.pipeline.stream import stream
from tests.pipeline.conftest import NOW
from tests.pipeline.journals import HOUR, MINUTE, START, JournalWriter, entry, message_id, write_history
from tests.pipeline.oracle import Oracle, journal_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tenantq.journal.signing import SigningKey
    from tenantq.journal.target import DirectoryTarget
    from tests.pipeline.conftest import RunPipeline


def digests(lake: Lake) -> dict[str, str]:
    """Return every table file's digest by name."""
    return {
        file.relative_to(lake.path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in lake.path.rglob("*.parquet")
    }


def check_against_oracle(spark: SparkSession, lake: Lake, writers: list[JournalWriter]) -> None:
    """Compare lives and usage with what plain Python makes of the same records."""
    oracles = [Oracle(journal_rows(writer.sealed)) for writer in writers]
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


def test_72_a_rerun_and_any_order_of_arrival_give_the_oracles_events_exactly_once(
    spark: SparkSession, journal: DirectoryTarget, lake: Lake, pipeline: RunPipeline, tmp_path: Path, key: SigningKey
) -> None:
    """One run, a run again, and runs over segments that come late and twice leave the same bytes, equal to the oracle."""
    writer = write_history(journal, seed=3, rounds=30, every_ms=97 * MINUTE, key=key)
    report = pipeline()
    assert report.accepted == report.segments == len(writer.files)
    assert not report.quarantined
    check_against_oracle(spark, lake, [writer])
    before = digests(lake)
    again = pipeline()
    assert again.changed == []
    assert digests(lake) == before

    late = Lake(tmp_path / "late")
    files = {
        manifest.name: (journal.read(manifest.name), manifest.file, journal.read(manifest.file))
        for manifest in writer.files
    }
    names = list(files)
    random.Random(5).shuffle(names)
    for name in files:
        journal.delete(name)
        journal.delete(files[name][1])
    for part in (names[: len(names) // 2], names[len(names) // 2 :]):
        for name in part:
            journal.write(files[name][1], files[name][2])
            journal.write(name, files[name][0])
        pipeline(lake=late)
    assert digests(late) == before


def test_a_stream_gives_the_tables_of_a_batch(spark: SparkSession, journal: DirectoryTarget, tmp_path: Path) -> None:
    """The same journal through Structured Streaming, in several micro-batches, leaves the same bytes."""
    writer = write_history(journal, seed=8, rounds=12, every_ms=25 * MINUTE)
    options = Options(now_ms=NOW)
    batch, streamed = Lake(tmp_path / "batch"), Lake(tmp_path / "streamed")
    run(spark, str(journal.path), batch, options)
    query = stream(spark, str(journal.path), streamed, options, files_per_batch=len(writer.files) // 2 + 1)
    query.awaitTermination()
    tables = {name: value for name, value in digests(streamed).items() if not name.startswith("_")}
    assert tables == digests(batch)


def test_bad_segments_and_rows_are_quarantined_and_the_good_are_processed(
    spark: SparkSession, journal: DirectoryTarget, lake: Lake, pipeline: RunPipeline
) -> None:
    """Each kind of damage has its reason and count; everything else is in the tables."""
    writer = JournalWriter(journal)
    for number in range(8):
        size = -7 if number == 6 else 10
        op = "levitate" if number == 7 else "add"
        writer.record(START + number * HOUR, entry("create_queue"), entry(op, ids=message_id(number), size=size))
        writer.segment()
    truncated, changed, stray, gone, foreign = writer.files[1:6]
    data = journal.read(truncated.file)
    journal.write(truncated.file, data[: len(data) // 2])
    journal.write(changed.file, journal.read(writer.files[0].file))
    journal.delete(stray.name)
    journal.delete(gone.file)
    journal.write(foreign.name, msgspec.json.encode(msgspec.structs.replace(foreign, schema=99)))
    writer.record(NOW + 40 * 24 * HOUR, entry("add", ids=message_id(99), size=3))
    writer.segment()
    report = pipeline()
    assert report.quarantined == {
        "changed_segment": 2, "future_timestamp": 1, "missing_manifest": 1, "missing_records": 5, "missing_segment": 2,
        "negative_value": 1, "truncated": 2, "unknown_op": 1, "wrong_schema": 2,
    }  # fmt: skip
    assert lake.read(spark, "message_lives").count() == 1
    assert lake.read(spark, "bronze").count() == 4
    kinds = {row["kind"] for row in lake.read(spark, "anomalies").collect()}
    assert kinds == {"audit_gap"}


def test_an_invoice_line_is_traced_back_to_journal_offsets(
    spark: SparkSession, journal: DirectoryTarget, lake: Lake, pipeline: RunPipeline
) -> None:
    """The rows behind a line are those that were charged, and their quantities add up to the line's."""
    writer = write_history(journal, seed=4, rounds=10, every_ms=7 * MINUTE)
    pipeline()
    found = explain(spark, lake, "2026-01/acme/Operations")
    charged = [
        row
        for row in journal_rows(writer.sealed)
        if row.tenant == "acme" and row.outcome == "ok" and row.principal != "system"
    ]
    assert found.rows == len(charged)
    assert int(found.line["quantity"]) == int(found.quantity) == sum(row.count for row in charged)


def test_a_journal_that_is_not_there_is_told_plainly(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """A wrong directory is a typed error, before anything is written."""
    with pytest.raises(Invalid, match="is no directory"):
        run(spark, str(tmp_path / "nowhere"), lake, Options(now_ms=NOW))
