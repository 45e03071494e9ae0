"""A segment with changed rows, records or columns is refused, and the reason names the column."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tenantq.journal.manifest import Manifest, manifest_names, read_manifest
from tenantq.journal.segment import SCHEMA, to_parquet
from tenantq.pipeline.bronze.rows import RowRules
from tenantq.pipeline.bronze.segment_check import id_texts, verdict
from tenantq.runtime.randomness import id_text
from tests.pipeline.journals import START, JournalWriter, entry, message_id

if TYPE_CHECKING:
    from tenantq.journal.export_target import DirectoryTarget


def table_of(journal: DirectoryTarget) -> tuple[Manifest, pa.Table]:
    """Write a segment of several records, with and without messages; return its manifest and rows."""
    writer = JournalWriter(journal)
    many = b"".join(message_id(number) for number in range(5))
    writer.record(START, entry("create_queue"), entry("add", ids=many, size=[1, 2, 3, 4, 5], priority=5))
    writer.record(
        START + 1, entry("poll", ids=many, size=[1, 2, 3, 4, 5], wait_ms=7, attempt=1), entry("peek", count=9)
    )
    writer.record(START + 2, entry("collect", principal="system", details="1 expiry entries"))
    manifest = writer.segment()
    return manifest, pq.read_table(io.BytesIO(journal.read(manifest.file)))


def verified(journal: DirectoryTarget, manifest: Manifest, table: pa.Table) -> dict[str, Any]:
    """Replace the segment's table and adapt the manifest, and verify the result."""
    data = to_parquet(table)
    manifest = msgspec.structs.replace(manifest, sha256=hashlib.sha256(data).hexdigest(), rows=table.num_rows)
    journal.write(manifest.file, data)
    journal.write(manifest.name, msgspec.json.encode(manifest))
    return verdict(journal, manifest.name, None, RowRules())[0]


def test_an_unchanged_segment_is_accepted(journal: DirectoryTarget) -> None:
    """With entries of many messages, with one value for all of them, and without messages."""
    manifest, table = table_of(journal)
    (name,) = manifest_names(journal)
    assert read_manifest(journal, name) == manifest
    assert verdict(journal, name, None, RowRules())[0]["reason"] == ""
    assert verified(journal, manifest, table)["reason"] == ""


@pytest.mark.parametrize("name", [field.name for field in SCHEMA if field.name not in {"link", "payload"}])
def test_a_changed_value_in_any_column_is_refused(journal: DirectoryTarget, name: str) -> None:
    """One value is enough, also in the last row."""
    manifest, table = table_of(journal)
    place = table.schema.get_field_index(name)
    for row in (0, 3, table.num_rows - 1):
        values = table[name].cast(pa.int64()).to_pylist() if name == "ts" else table[name].to_pylist()
        values[row] = values[row] + "x" if isinstance(values[row], str) else values[row] + 1
        changed = table.set_column(place, SCHEMA.field(name), pa.array(values, SCHEMA.field(name).type))
        found = verified(journal, manifest, changed)
        assert (found["reason"], found["details"].rpartition(" ")[2]) == ("rows_differ", name)


def test_missing_and_duplicate_rows_are_refused(journal: DirectoryTarget) -> None:
    """Although the manifest matches the file: the records say how many rows there are."""
    manifest, table = table_of(journal)
    rest = pa.concat_tables([table.slice(0, 3), table.slice(4)])
    twice = pa.concat_tables([table.slice(0, 4), table.slice(3)])
    for changed in (rest, twice):
        assert verified(journal, manifest, changed)["reason"] == "rows_differ"


def test_a_removed_record_breaks_the_chain(journal: DirectoryTarget) -> None:
    """The next record does not follow the previous one."""
    manifest, table = table_of(journal)
    without = pa.concat_tables([table.slice(0, 6), table.slice(12)])
    assert verified(journal, manifest, without)["reason"] == "broken_chain"


def test_a_record_with_a_truncated_id_is_refused(journal: DirectoryTarget) -> None:
    """It is in the chain although no server writes it, and must not end the run."""
    writer = JournalWriter(journal)
    writer.record(START, entry("add", ids=message_id(1)[:9], size=1))
    assert verdict(journal, writer.segment().name, None, RowRules())[0]["reason"] == "rows_differ"


def test_the_fast_id_formatting_equals_the_usual_one() -> None:
    """For many IDs at once."""
    ids = [message_id(number, START + number) for number in range(50)]
    assert id_texts(b"".join(ids)).to_pylist() == [id_text(one) for one in ids]
    assert id_texts(b"").to_pylist() == []
