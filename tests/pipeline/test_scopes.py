"""Scopes: late rows also change partitions without new rows, and a run finds these."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tenantq.pipeline.arrow_shuffle import read_rows
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tests.pipeline.conftest import NOW, digests
from tests.pipeline.journals import DAY, HOUR, MINUTE, START, JournalWriter, entry, message_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    import pytest
    from pyspark.sql import SparkSession

    from tenantq.journal.export_target import DirectoryTarget
    from tenantq.journal.record import JournalEntry
    from tests.pipeline.conftest import ProcessedJournal, RunPipeline


def test_late_resets_and_leases_change_partitions_without_new_rows(
    journal: DirectoryTarget, lake: Lake, pipeline: RunPipeline, tmp_path: Path
) -> None:
    """Segments that arrive late leave the same bytes as one run over everything.

    A purge ends open messages of an earlier day, and those that a later purge had ended. A delivery or a release before a
    known remove says whether the remove ended a lease.
    """
    writer = JournalWriter(journal)
    late: list[int] = []  # numbers of segments

    def told(op: str, queue: str, number: int, day: int) -> JournalEntry:
        return entry(op, queue=queue, ids=message_id(number, START + day * DAY), size=10)

    def happened(at: int, *entries: JournalEntry, is_late: bool = False) -> None:
        writer.record(START + at, *entries)
        writer.segment(write=not is_late)
        if is_late:
            late.append(len(writer.records))

    happened(0, told("add", "given", 1, 0), told("add", "returned", 2, 0))
    happened(MINUTE, told("poll", "returned", 2, 0))
    happened(HOUR, told("poll", "given", 1, 0), told("release", "returned", 2, 0), is_late=True)
    happened(2 * HOUR, told("remove", "given", 1, 0), told("remove", "returned", 2, 0))
    happened(DAY, told("add", "open", 3, 1))
    happened(2 * DAY, told("add", "purged", 4, 2))
    happened(3 * DAY, entry("purge", queue="purged", size=10, details="1 messages: a test"), is_late=True)
    happened(3 * DAY + HOUR, entry("purge", queue="purged", details="0 messages: a test"))
    happened(3 * DAY + 2 * HOUR, entry("purge", queue="open", size=10, details="1 messages: a test"), is_late=True)
    happened(3 * DAY + 3 * HOUR, told("add", "another", 5, 3))
    pipeline()
    for number in late:
        writer.write(writer.records[number - 1 : number])
    changed = set(pipeline().changed)
    assert "queue_hours/date=2026-01-01/hour=02" in changed
    assert {f"message_lives/date=2026-01-0{day}" for day in (1, 2, 3)} <= changed
    assert "message_lives/date=2026-01-04" not in changed
    whole = Lake(tmp_path / "whole")
    pipeline(lake=whole)
    assert digests(lake) == digests(whole)


def test_the_rows_of_new_files_are_not_read_again(
    processed: ProcessedJournal, lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables computed from Arrow tables get new rows as the task reduced them that wrote the file."""
    read: list[str] = []

    def recorded(file: str, columns: Sequence[str]) -> pa.Table:
        read.append(file)
        return read_rows(file, columns)

    monkeypatch.setattr("tenantq.pipeline.arrow_shuffle.read_rows", recorded)
    run(spark, str(processed.journal.path), lake, RunOptions(now_ms=NOW))
    assert Counter(read) == Counter({str(processed.journal.path / one.file): 2 for one in processed.writer.files})
    assert digests(lake) == digests(processed.lake)
