"""Streaming a journal: fixed offsets, limits, restarts, new shards, gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles, ReadMaxRows

from tenantq.errors import Invalid, StoreDamaged
from tenantq.pipeline.connector.journal_stream import JournalStreamReader
from tenantq.pipeline.connector.options import StreamOptions, read_options
from tenantq.pipeline.schemas import JOURNAL
from tests.pipeline.journals import MINUTE, START, JournalWriter, QueueModel, entry, write_history

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tenantq.journal.export_target import DirectoryTarget

Rows = list[tuple[str, int, int]]


def _stream(target: DirectoryTarget, **options: str) -> JournalStreamReader:
    return JournalStreamReader(read_options(StreamOptions, {"journal": str(target.path), **options}), JOURNAL)


def _read(stream: JournalStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Rows:
    """Read without Spark the rows that a batch's tasks would read."""
    return [
        (row["shard"], row["seq"], row["n"])
        for task in stream.partitions(start, end)
        for batch in stream.read(task)
        for row in batch.to_pylist()
    ]


def _batches(
    stream: JournalStreamReader, limit: ReadLimit | None = None, start: dict[str, Any] | None = None
) -> list[Rows]:
    """Read batch after batch, like Spark, until nothing is new."""
    found: list[Rows] = []
    start = stream.initialOffset() if start is None else start
    while True:
        end = msgspec.json.decode(
            msgspec.json.encode(stream.latestOffset(start, limit or stream.getDefaultReadLimit()))
        )
        if end == start:
            return found
        found.append(_read(stream, start, end))
        start = end


def test_every_row_comes_once_in_batches_within_the_limit(history: DirectoryTarget) -> None:
    """For any limit, the batches together contain the journal; records are not split, and shards advance together."""
    (everything,) = _batches(_stream(history), ReadAllAvailable())
    for limit in (
        ReadMaxRows(1),
        ReadMaxRows(7),
        ReadMaxRows(50),
        ReadMaxFiles(3),
        ReadMaxBytes(20_000),
        ReadMaxBytes(1),
    ):
        batches = _batches(_stream(history), limit)
        assert sorted(row for batch in batches for row in batch) == sorted(everything), limit
        assert len(batches) > 1, limit
        if isinstance(limit, ReadMaxRows):
            records = [{row[:2] for row in batch} for batch in batches]
            assert all(
                len(batch) <= limit.max_rows or len(mine) == 1 for batch, mine in zip(batches, records, strict=True)
            )
    hours = [{row[0] for row in batch} for batch in _batches(_stream(history), ReadMaxFiles(2))]
    assert hours[0] == {"0", "1"}


def test_offsets_are_monotonic_and_always_denote_the_same_rows(journal: DirectoryTarget) -> None:
    """A batch read again after the journal has grown has the same rows."""
    writer = JournalWriter(journal)
    model = QueueModel(writer, 3)
    stream = _stream(journal, maxRowsPerBatch="9")
    kept: list[tuple[dict[str, Any], dict[str, Any], Rows]] = []
    start = stream.initialOffset()
    for number in range(12):
        for minute in range(5):
            model.round(START + (number * 5 + minute) * MINUTE)
        writer.segment()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert all(end["to"].get(shard, 0) >= seq for shard, seq in start["to"].items())
        kept.append((start, end, _read(stream, start, end)))
        start = end
    for start, end, rows in kept:
        assert rows
        assert _read(_stream(journal), start, end) == rows


def test_the_first_batch_is_the_same_after_a_crash_although_latest_has_moved(journal: DirectoryTarget) -> None:
    """Spark asks again for the start after a crash in the first batch, and gets the same start."""
    writer = JournalWriter(journal)
    model = QueueModel(writer, 3)

    def grow() -> None:
        model.round(START)
        writer.segment()

    grow()
    stream = _stream(journal, startingOffsets="latest")
    start = stream.initialOffset()
    grow()
    end = stream.latestOffset(start, ReadAllAvailable())
    rows = _read(stream, start, end)
    assert {seq for _, seq, _ in rows} == {2}
    grow()
    restarted = _stream(journal, startingOffsets="latest")
    asked_again = restarted.initialOffset()
    assert asked_again["to"] == {"0": 3}
    assert _read(restarted, asked_again, end) == rows
    assert {seq for _, seq, _ in _batches(restarted, start=end)[0]} == {3}


def test_a_query_can_start_at_any_record(history: DirectoryTarget) -> None:
    """After given records; shards that are not named are read in full."""
    (rows,) = _batches(_stream(history, startingOffsets='{"0": 58}'))
    assert {seq for shard, seq, _ in rows if shard == "0"} == {59, 60}
    assert {seq for shard, seq, _ in rows if shard == "1"} == set(range(1, 41))
    for text in ("soon", "[1]", '{"0": "x"}', '{"0": -1}'):
        with pytest.raises(Invalid, match="option startingOffsets"):
            _stream(history, startingOffsets=text).initialOffset()


def test_a_gap_stops_the_stream_unless_it_may_be_skipped(journal: DirectoryTarget) -> None:
    """Missing records may still arrive, so they are never skipped silently."""
    writer = write_history(journal, rounds=30)
    missing = writer.files[2]
    text = journal.read(missing.name)
    journal.delete(missing.name)
    with pytest.raises(StoreDamaged, match=rf"records {missing.first_seq} to {missing.last_seq} of shard 0.*onGap"):
        _batches(_stream(journal))
    waiting = _stream(journal, onGap="wait")
    (before,) = _batches(waiting)
    assert max(seq for _, seq, _ in before) == missing.first_seq - 1
    (skipped,) = _batches(_stream(journal, onGap="skip"))
    assert {seq for _, seq, _ in skipped} == set(range(1, 31)) - set(range(missing.first_seq, missing.last_seq + 1))
    journal.write(missing.name, text)
    end = waiting.latestOffset(waiting.initialOffset(), ReadAllAvailable())
    assert {seq for _, seq, _ in _read(waiting, waiting.initialOffset(), end)} == set(range(1, 31))
    journal.delete(missing.name)
    with pytest.raises(StoreDamaged, match="are not in the journal"):
        waiting.partitions(waiting.initialOffset(), end)


def test_only_one_limit_can_be_given(history: DirectoryTarget) -> None:
    """Two limits are refused."""
    assert _stream(history, maxBytesPerBatch="5").getDefaultReadLimit() == ReadMaxBytes(5)
    with pytest.raises(Invalid, match="maxRowsPerBatch and maxSegmentsPerBatch: only one limit"):
        _stream(history, maxRowsPerBatch="1", maxSegmentsPerBatch="1")


# ---- with Spark ----


def _start(spark: SparkSession, journal: DirectoryTarget, path: Path, **options: str) -> StreamingQuery:
    source = spark.readStream.format("tenantq").option("journal", str(journal.path)).options(**options).load()
    sink = source.writeStream.format("parquet").option("checkpointLocation", str(path / "checkpoint"))
    return sink.trigger(availableNow=True).start(str(path / "rows"))


def _collected(spark: SparkSession, path: Path) -> Rows:
    rows = spark.read.parquet(str(path / "rows")).select("shard", "seq", "n").collect()
    return sorted((row.shard, row.seq, row.n) for row in rows)


def test_a_restarted_query_continues_without_loss_or_repetition(
    connected: SparkSession, journal: DirectoryTarget, tmp_path: Path
) -> None:
    """Stopped, killed before it recorded a batch as done, and restarted while a shard appears: each row is read once."""
    first, second = JournalWriter(journal), JournalWriter(journal, shard="1")
    models = QueueModel(first, 5), QueueModel(second, 6)
    for number in range(20):
        models[0].round(START + number * MINUTE)
    first.segment()
    query = _start(connected, journal, tmp_path, maxRowsPerBatch="25")
    query.awaitTermination()
    assert all(one["numInputRows"] <= 25 for one in query.recentProgress)
    assert len(query.recentProgress) > 1

    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()  # as if the process had died before writing this
    (tmp_path / "checkpoint" / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    for number in range(20, 30):
        models[0].round(START + number * MINUTE)
        models[1].round(START + number * MINUTE)
    first.segment()
    second.segment()
    _start(connected, journal, tmp_path, maxRowsPerBatch="25").awaitTermination()
    (everything,) = _batches(_stream(journal), ReadAllAvailable())
    assert _collected(connected, tmp_path) == sorted(everything)


def test_invalid_options_end_the_stream_with_a_clear_error(
    connected: SparkSession, journal: DirectoryTarget, tmp_path: Path
) -> None:
    """With the connector's own message."""
    writer = JournalWriter(journal)
    writer.record(START, entry("add", size=1))
    writer.segment()
    with pytest.raises((StreamingQueryException, PySparkException), match=r"(?i)option onGapp: unknown option"):
        _start(connected, journal, tmp_path, onGapp="x").awaitTermination()
