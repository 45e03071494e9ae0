"""Verification: any tampering with the archive is found at the first affected record."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tenantq.errors import Invalid
from tenantq.journal.manifest import manifest_names, read_head, read_manifest
from tenantq.journal.verify import verify_segments
from tests.shards import Q, T, message

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.journal.export_target import DirectoryTarget
    from tenantq.journal.manifest import Manifest
    from tenantq.journal.signing import SigningKey
    from tenantq.journal.verify import AuditReport
    from tests.contract.journal.conftest import MakeExporter
    from tests.verbs import Shard


@pytest.fixture
async def archive(shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget) -> list[Manifest]:
    """Return three segments of about five records each."""
    exporter = make_exporter(shard)
    for part in range(3):
        for number in range(5):
            await shard.add(T, Q, [message(f"{part} {number}"), message("second")])
        await exporter.export_now()
    return [read_manifest(target, name) for name in manifest_names(target)]


def rewrite(target: DirectoryTarget, manifest: Manifest, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a segment like an attacker who knows Parquet, and update the hash in the manifest."""
    table = change(pq.read_table(io.BytesIO(target.read(manifest.file)), partitioning=None))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    target.write(manifest.file, buffer.getvalue())
    fitting = msgspec.structs.replace(
        manifest, sha256=hashlib.sha256(buffer.getvalue()).hexdigest(), size=len(buffer.getvalue()), rows=table.num_rows
    )
    target.write(manifest.name, msgspec.json.encode(fitting, order="sorted"))


def with_value(table: pa.Table, row: int, column: str, value: Any) -> pa.Table:
    """Return the table with one cell changed."""
    cells = table.column(column).to_pylist()
    cells[row] = value
    return table.set_column(table.schema.get_field_index(column), table.schema.field(column), [cells])


def first_row_of(table: pa.Table, seq: int) -> int:
    """Return the index of a record's first row."""
    return int(table.column("seq").to_pylist().index(seq))


def at(report: AuditReport, text: str) -> list[int]:
    """Return the records of findings with this text."""
    return [finding.seq for finding in report.findings if text in finding.text]


def test_untouched_archive_is_clean(archive: list[Manifest], verify: Callable[[], AuditReport]) -> None:
    """All signatures are checked."""
    report = verify()
    assert report.clean
    assert report.segments == len(archive) == 3
    assert report.last_seq == {"0": archive[-1].last_seq}


def test_edited_row_is_found(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """This holds even if the file's hash is updated."""
    seq = archive[1].first_seq + 2
    rewrite(target, archive[1], lambda table: with_value(table, first_row_of(table, seq), "principal", "nobody"))
    report = verify()
    assert at(report, "differ from the journaled record") == [seq]
    assert at(report, "signature") == [archive[1].first_seq]


def test_edited_payload_is_found(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """The chain no longer matches."""
    seq = archive[1].first_seq + 1

    def change(table: pa.Table) -> pa.Table:
        row = first_row_of(table, seq)
        payload = table.column("payload").to_pylist()[row]
        return with_value(table, row, "payload", payload.replace(b"local", b"nobdy"))

    rewrite(target, archive[1], change)
    assert at(verify(), "was changed") == [seq]


def test_deleted_record_is_found(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """The finding names its position."""
    seq = archive[0].first_seq + 2
    rewrite(target, archive[0], lambda table: table.filter(pa.compute.not_equal(table["seq"], seq)))
    assert at(verify(), "was removed") == [seq]


def test_inserted_record_is_found(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """The record is a copy of a real one."""
    seq = archive[2].first_seq + 1

    def change(table: pa.Table) -> pa.Table:
        row = first_row_of(table, seq)
        return pa.concat_tables([table.slice(0, row), table.slice(row - 2, 2), table.slice(row)])

    rewrite(target, archive[2], change)
    report = verify()
    assert not report.clean
    assert min(finding.seq for finding in report.findings if "signature" not in finding.text) == seq


def test_reordered_records_are_found(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """The finding names the first that is out of order."""
    seq = archive[1].first_seq

    def change(table: pa.Table) -> pa.Table:
        second = first_row_of(table, seq + 1)
        third = first_row_of(table, seq + 2)
        return pa.concat_tables([table.slice(second, third - second), table.slice(0, second), table.slice(third)])

    rewrite(target, archive[1], change)
    assert at(verify(), "was changed") == [seq]


def test_missing_segment_is_found(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """Its manifest may be missing too."""
    target.delete(archive[1].file)
    assert at(verify(), "is missing") == [archive[1].first_seq]
    target.delete(archive[1].name)
    assert at(verify(), "are missing") == [archive[1].first_seq]


def test_truncated_archive_is_found(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """The signed head shows that there was more."""
    target.delete(archive[2].file)
    target.delete(archive[2].name)
    assert at(verify(), "missing at the end") == [archive[2].first_seq]
    target.delete("manifest/shard=0/head.json")
    assert at(verify(), "head is missing") == [archive[2].first_seq]


def test_truncated_file_is_found(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """It is cut at several positions."""
    whole = target.read(archive[0].file)
    for keep in (0, 1, len(whole) // 2, len(whole) - 1):
        target.write(archive[0].file, whole[:keep])
        assert at(verify(), "cannot be read") == [archive[0].first_seq]


def test_extra_file_among_the_segments_is_found(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """No manifest names it."""
    target.write("date=2026-01-01/hour=00/shard=0/x.parquet", target.read(archive[0].file))
    assert [finding.text for finding in verify().findings] == ["No manifest names this segment."]


def test_signatures_of_another_key_are_refused(
    archive: list[Manifest], target: DirectoryTarget, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All manifests and the head are refused."""
    from tenantq.journal.signing import SigningKey  # noqa: PLC0415  # only here

    other: SigningKey = SigningKey.load_or_make(tmp_path_factory.mktemp("other"))
    report = verify_segments(target, other.public)
    assert len(at(report, "signature")) == len(archive) + 1


def test_archive_may_be_ahead_of_its_head(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport], key: SigningKey
) -> None:
    """It may never be behind it."""
    head = read_head(target, "0")
    assert head is not None
    older = msgspec.structs.replace(head, last_seq=archive[0].last_seq)
    signed = msgspec.structs.replace(older, signature=key.sign(older.signed_text()))
    target.write(head.name, msgspec.json.encode(signed))
    assert verify().clean


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../../../outside.parquet"},
        {"file": "/etc/passwd"},
        {"file": ""},
        {"file": "date=2026-01-01/hour=00/shard=../" + "0" * 20 + "-" + "0" * 20 + ".parquet"},
        {"last_link": "no hash"},
        {"previous_link": "zz" * 32},
    ],
)
def test_manifest_with_a_foreign_path_is_refused(
    changes: dict[str, str], archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """No file outside the archive is read or written."""
    wrong = msgspec.structs.replace(archive[1], **changes)
    target.write(archive[1].name, msgspec.json.encode(wrong, order="sorted"))
    with pytest.raises(Invalid, match="not a manifest"):
        read_manifest(target, archive[1].name)
    assert any("not a manifest" in finding.text for finding in verify().findings)


@pytest.mark.parametrize("column", ["ts", "link", "payload", "seq"])
def test_segment_with_missing_values_is_a_finding(
    column: str, archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """The verification continues after it."""
    nothing = lambda table: table.set_column(  # noqa: E731  # one line says it
        table.schema.get_field_index(column),
        pa.field(column, table.schema.field(column).type),
        pa.nulls(table.num_rows, table.schema.field(column).type),
    )
    rewrite(target, archive[1], nothing)
    report = verify()
    assert report.findings
    assert report.segments == 3


def test_segment_with_wrong_column_types_is_a_finding(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """Correct column names do not suffice."""
    rewrite(target, archive[1], lambda table: pa.table({name: ["x"] for name in table.schema.names}))
    assert any("columns are not those" in finding.text for finding in verify().findings)


def test_directory_in_place_of_a_segment_is_a_finding(
    archive: list[Manifest], target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """It does not cause a traceback."""
    (target.path / archive[1].file).unlink()
    (target.path / archive[1].file).mkdir()
    assert at(verify(), "cannot be read") == [archive[1].first_seq]
