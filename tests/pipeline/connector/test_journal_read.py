"""Reading a journal with Spark: in full and with filters."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pyspark_tenantq import DefaultSource
from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.export_target import DirectoryTarget
from tenantq.pipeline.connector import TenantqSource
from tenantq.pipeline.connector.journal_reader import FilteringJournalReader
from tenantq.pipeline.connector.options import JournalOptions, read_options
from tenantq.pipeline.connector.source import PUSHDOWN
from tenantq.pipeline.schemas import JOURNAL, SEGMENT_ROW
from tests.pipeline.connector.conftest import read_journal
from tests.pipeline.journals import HOUR, START, JournalWriter, entry, write_history

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition

    from tenantq.journal.signing import SigningKey


def _reader(target: DirectoryTarget, **options: str) -> FilteringJournalReader:
    return FilteringJournalReader(read_options(JournalOptions, {"journal": str(target.path), **options}), JOURNAL)


def _rows(reader: FilteringJournalReader, tasks: list[InputPartition] | None = None) -> list[dict[str, object]]:
    """Read without Spark the rows that a task would read."""
    tasks = list(reader.partitions()) if tasks is None else tasks
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


@cache
def _everything(journal: Path) -> list[dict[str, object]]:
    """Return all rows of a journal that does not change."""
    return _rows(_reader(DirectoryTarget(journal)))


def _files(reader: FilteringJournalReader) -> list[str]:
    return [part.manifest.file for task in reader.partitions() for part in task.parts]  # type: ignore[attr-defined]


def test_every_row_is_read_with_the_columns_of_the_journal(connected: SparkSession, history: DirectoryTarget) -> None:
    """The connector reads the same rows as Spark's own Parquet reader."""
    plain = connected.read.schema(JOURNAL).parquet(str(history.path) + "/date=*").select(*JOURNAL.names)
    read = read_journal(connected, history)
    assert read.schema == JOURNAL
    assert sorted(read.collect()) == sorted(plain.collect())


def test_pushed_filters_do_not_change_results(connected: SparkSession, history: DirectoryTarget) -> None:
    """The same query gives the same rows, whether the source or Spark applies the filter."""
    unpushed = read_journal(connected, history).cache()
    for condition in (
        "tenant = 'acme' and op in ('add', 'poll') and queue <> 'mail' and upper(tenant) = 'ACME'",
        "ts >= timestamp'2026-01-01 03:00:00' and ts < timestamp'2026-01-01 05:30:00.001' and shard = '0'",
        "seq between 7 and 19 and shard not in ('1') and (bytes > 100 or op = 'ack') and queue like '%k'",
        "op like 'po%' or queue is null",
    ):
        found = sorted(read_journal(connected, history, pushdown="true").where(condition).collect())
        assert found
        assert found == sorted(unpushed.where(condition).collect()), condition
    unpushed.unpersist()


def test_a_frame_can_be_used_for_many_queries(connected: SparkSession, history: DirectoryTarget) -> None:
    """Rows filtered out by one query are available to the next, without pushdown, which is the default."""
    frame = read_journal(connected, history)
    assert frame.where("seq = 1").count() < 20
    assert frame.select("shard", "seq").distinct().count() == 100


_TIMES = st.datetimes(datetime(2025, 12, 31, 23), datetime(2026, 1, 1, 14), timezones=st.just(UTC))  # noqa: DTZ001  # bounds are naive by contract
_VALUES = {
    "shard": st.sampled_from(["0", "1", "2", ""]),
    "tenant": st.sampled_from(["acme", "umbrella", "a", "zz", "acm\u00e9"]),
    "op": st.sampled_from(["add", "ack", "poll", "x", "dead_letter"]),
    "seq": st.integers(-2, 70),
    "bytes": st.integers(-(2**40), 2**40) | st.integers(0, 500),
    "n": st.integers(-1, 4),
    "ts": _TIMES,
}


@st.composite
def _filters(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from(sorted(_VALUES)))
    value = _VALUES[name]
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    texts = [StringStartsWith, StringEndsWith, StringContains] if name in {"shard", "tenant", "op"} else []
    kind = draw(st.sampled_from([*kinds, *texts, In, IsNotNull]))
    if kind is IsNotNull:
        return IsNotNull((name,))
    found: Filter = (
        In((name,), tuple(draw(st.lists(value, min_size=1, max_size=3)))) if kind is In else kind((name,), draw(value))
    )
    return Not(found) if draw(st.booleans()) else found


def _holds(one: Filter, row: dict[str, object]) -> bool:
    """Evaluate a filter in plain Python."""
    if isinstance(one, Not):
        return not _holds(one.child, row)
    value: Any = row[one.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(one, IsNotNull):
        return value is not None
    if isinstance(one, In):
        return value in one.value
    given = one.value  # type: ignore[attr-defined]
    meanings: dict[type[Filter], Callable[[], Any]] = {
        EqualTo: lambda: value == given,
        EqualNullSafe: lambda: value == given,
        GreaterThan: lambda: value > given,
        GreaterThanOrEqual: lambda: value >= given,
        LessThan: lambda: value < given,
        LessThanOrEqual: lambda: value <= given,
        StringStartsWith: lambda: value.startswith(given),
        StringEndsWith: lambda: value.endswith(given),
        StringContains: lambda: given in value,
    }
    return bool(meanings[type(one)]())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(filters=st.lists(_filters(), max_size=4))
def test_any_filters_return_exactly_the_matching_rows(history: DirectoryTarget, filters: list[Filter]) -> None:
    """Skipped segments and row groups contain no matching row."""
    everything = _everything(history.path)
    reader = _reader(history)
    left = list(reader.pushFilters(filters))
    assert [row for row in _rows(reader) if all(_holds(one, row) for one in left)] == [
        row for row in everything if all(_holds(one, row) for one in filters)
    ]


def test_segments_are_skipped_by_shard_records_and_times(history: DirectoryTarget) -> None:
    """A filter on values in the manifest avoids opening whole files."""
    everything = _files(_reader(history))
    assert len(everything) == 19
    at = datetime.fromtimestamp((START + 3 * HOUR) / 1_000).astimezone()
    cases: list[tuple[list[Filter], list[str]]] = [
        ([EqualTo(("shard",), "1")], [name for name in everything if "shard=1" in name]),
        ([GreaterThan(("seq",), 55), EqualTo(("shard",), "0")], everything[10:11]),
        ([LessThan(("ts",), at)], [name for name in everything if int(name.split("hour=")[1][:2]) < 3]),
        ([GreaterThan(("seq",), 60)], []),
    ]
    for filters, expected in cases:
        reader = _reader(history)
        assert not list(reader.pushFilters(filters))
        assert _files(reader) == expected, filters


def test_row_groups_are_skipped_by_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group whose bounds exclude the filter is not read, even if its bytes are damaged."""
    target = DirectoryTarget(tmp_path)
    writer = JournalWriter(target)
    monkeypatch.setattr("tenantq.journal.segment._ROWS_PER_GROUP", 10)
    for number in range(30):
        writer.record(START + number, entry("add", "acme" if number < 10 else "zeta", size=1))
    manifest = writer.segment()
    file = pq.ParquetFile(tmp_path / manifest.file)
    assert file.metadata.num_row_groups == 3
    start = file.metadata.row_group(2).column(0).dictionary_page_offset
    data = bytearray((tmp_path / manifest.file).read_bytes())
    data[start : start + 40] = bytes(40)
    (tmp_path / manifest.file).write_bytes(data)
    reader = _reader(target)
    reader.pushFilters([EqualTo(("tenant",), "acme")])
    assert len(_rows(reader)) == 10
    with pytest.raises(StoreDamaged, match="not readable as Parquet"):
        _rows(_reader(target))


def test_small_segments_are_packed_into_tasks_and_read_once(history: DirectoryTarget) -> None:
    """The size of a task is an option; every segment is in one task."""
    packed, single = _reader(history, partitionBytes=str(5 << 20)), _reader(history, partitionBytes="1")
    assert (len(packed.partitions()), len(single.partitions())) == (5, 19)
    assert _files(packed) == _files(single)
    assert _rows(packed) == _rows(single)


def test_a_segment_without_a_manifest_is_ignored(tmp_path: Path) -> None:
    """The exporter writes the manifest last, so the segment may be incomplete."""
    target = DirectoryTarget(tmp_path)
    writer = write_history(target, rounds=12)
    before = len(_rows(_reader(target)))
    target.delete(writer.files[0].name)
    assert len(_rows(_reader(target))) == before - writer.files[0].rows


def test_overlapping_segments_give_each_record_once(tmp_path: Path) -> None:
    """Records exported twice with different bounds are read once."""
    target = DirectoryTarget(tmp_path)
    writer = write_history(target, rounds=20)
    once = _rows(_reader(target))
    writer.write(writer.records[2:9])
    writer.write(writer.records[4:6])
    assert len(list(target.names("manifest"))) == len(writer.files) + 1
    assert sorted(map(repr, _rows(_reader(target)))) == sorted(map(repr, once))


def test_columns_can_be_chosen_by_a_schema(connected: SparkSession, history: DirectoryTarget) -> None:
    """Only these are read; the hash chain's columns are available on request."""
    chosen = (
        connected.read.format("tenantq").schema("op string, link binary").option("journal", str(history.path)).load()
    )
    assert chosen.columns == ["op", "link"]
    assert chosen.where(f.col("link").isNotNull()).count() == 100
    assert SEGMENT_ROW["link"].dataType.simpleString() == "binary"


def test_verification_is_an_option(tmp_path: Path, key: SigningKey) -> None:
    """Hash, chain and signature are checked on request, and the error names the file and says what to do."""
    target = DirectoryTarget(tmp_path / "journal")
    (tmp_path / "journal").mkdir()
    writer = write_history(target, rounds=8, key=key)
    public = tmp_path / "audit_key.pub"
    reader = _reader(target, verify="full", publicKey=str(public))
    assert len(_rows(reader)) == sum(one.rows for one in writer.files)

    victim = writer.files[1]
    table = pq.read_table(tmp_path / "journal" / victim.file)
    changed = table.set_column(
        table.column_names.index("bytes"), table.schema.field("bytes"), pa.array([7] * table.num_rows)
    )
    pq.write_table(changed, tmp_path / "journal" / victim.file)
    assert len(_rows(_reader(target))) == sum(one.rows for one in writer.files)
    with pytest.raises(StoreDamaged, match=r"hour=01.*differs from its manifest.*audit verify"):
        _rows(_reader(target, verify="hash"))
    with pytest.raises(StoreDamaged, match="changed_segment"):
        _rows(_reader(target, verify="full"))

    forged = msgspec.structs.replace(victim, rows=99)
    target.write(forged.name, msgspec.json.encode(forged))
    with pytest.raises(StoreDamaged, match="the signature does not match publicKey"):
        _reader(target, publicKey=str(public)).partitions()


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    """A manifest without its file is damage, not an empty segment."""
    target = DirectoryTarget(tmp_path)
    writer = write_history(target, rounds=8)
    target.delete(writer.files[0].file)
    with pytest.raises(StoreDamaged, match=r"hour=00.*is missing"):
        _rows(_reader(target))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option journal: is missing"),
        ({"journal": ""}, "option journal: is missing"),
        ({"journal": "/no/such/place"}, "is not a directory"),
        ({"journal": ".", "partitionBytes": "many"}, "option partitionBytes: Expected `int"),
        ({"journal": ".", "partitionBytes": "0"}, "option partitionBytes: 0 is not from 1"),
        ({"journal": ".", "verify": "maybe"}, "option verify: Invalid enum value 'maybe'"),
        ({"journal": ".", "jurnal": "x"}, "option jurnal: unknown option; must be one of journal, verify"),
        ({"journal": ".", "publicKey": "/no/key"}, "public key /no/key: No such file"),
    ],
)
def test_invalid_options_are_named(options: dict[str, str], said: str) -> None:
    """The error lists the known options."""
    with pytest.raises(Invalid, match=said.replace("(", r"\(")):
        FilteringJournalReader(read_options(JournalOptions, options), JOURNAL).partitions()


def test_errors_reach_the_user_of_spark(connected: SparkSession, history: DirectoryTarget) -> None:
    """Options and schemas are refused when the query is planned, with the connector's own message."""
    with pytest.raises(PySparkException, match="option jurnal: unknown option"):
        read_journal(connected, history, jurnal="x").count()
    frame = connected.read.format("tenantq").schema("tenant int").option("journal", str(history.path)).load()
    with pytest.raises(PySparkException, match="schema: tenant is string, not int"):
        frame.count()
    frame = connected.read.format("tenantq").schema("tennant string").option("journal", str(history.path)).load()
    with pytest.raises(PySparkException, match="the journal has no column 'tennant'"):
        frame.count()


def test_an_empty_journal_has_no_rows(connected: SparkSession, tmp_path: Path) -> None:
    """A server that has not exported anything yet is no error."""
    assert read_journal(connected, tmp_path).count() == 0


def test_spark_finds_the_installed_format(connected: SparkSession, history: DirectoryTarget) -> None:
    """With the package installed, nothing has to be registered; only filter pushdown has to be enabled."""
    fresh = connected.newSession()
    fresh.conf.set(PUSHDOWN, "false")
    assert DefaultSource is TenantqSource
    assert read_journal(fresh, history).count() > 100
    with pytest.raises(PySparkException, match="filterPushdown"):
        read_journal(fresh, history, pushdown="true").count()
