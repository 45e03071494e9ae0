"""One segment against its manifest, each record against the chain, each row against its record. Runs inside Spark's workers."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.manifest import SCHEMA_VERSION, Manifest, read_manifest
from tenantq.journal.record import JournalEntry, decode_record
from tenantq.journal.segment import SCHEMA
from tenantq.pipeline.bronze.id_texts import ID_BYTES, id_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tenantq.journal.export_target import ExportTarget
    from tenantq.journal.record import Record
    from tenantq.journal.signing import PublicKey


class Refused(Exception):
    """A segment that must not be processed, and why."""

    def __init__(self, reason: str, details: str, rows: int = 0) -> None:
        super().__init__(details)
        self.reason, self.details, self.rows = reason, details, rows


def verdict(target: ExportTarget, name: str, key: PublicKey | None) -> dict[str, Any]:
    """Return a row of SEGMENTS about the segment that the manifest ``name`` describes."""
    found: dict[str, Any] = {
        "manifest": name, "file": "", "shard": name.split("/")[1].removeprefix("shard="), "first_seq": 0, "last_seq": 0,
        "previous_link": "", "last_link": "", "sha256": "", "rows": 0, "reason": "", "details": "", "signed": False,
    }  # fmt: skip
    try:
        manifest = _manifest(target, name)
        for field in ("file", "shard", "first_seq", "last_seq", "previous_link", "last_link", "sha256", "rows"):
            found[field] = getattr(manifest, field)
        _check_manifest(manifest, name, key)
        found["signed"] = key is not None
        _check(target, manifest)
    except Refused as refused:
        found["reason"], found["details"] = refused.reason, refused.details
    return found


def _manifest(target: ExportTarget, name: str) -> Manifest:
    try:
        return read_manifest(target, name)
    except (Invalid, OSError) as error:
        raise Refused("unreadable_manifest", str(error)) from error


def _check_manifest(manifest: Manifest, name: str, key: PublicKey | None) -> None:
    if manifest.name != name:
        raise Refused("wrong_manifest", f"the manifest belongs under {manifest.name}")
    if manifest.schema != SCHEMA_VERSION:
        raise Refused("wrong_schema", f"schema version {manifest.schema}; this program reads {SCHEMA_VERSION}")
    if key is not None and not key.verifies(manifest.signature, manifest.signed_text()):
        raise Refused("bad_signature", "the manifest's signature is not the server's")


def _check(target: ExportTarget, manifest: Manifest) -> None:
    try:
        data = target.read(manifest.file)
    except FileNotFoundError as error:
        raise Refused("missing_segment", "the segment is not there") from error
    except OSError as error:
        raise Refused("unreadable_segment", str(error)) from error
    try:
        table = pq.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError) as error:
        raise Refused("truncated", "the segment is not readable as Parquet to its end") from error
    if table.schema.names != SCHEMA.names or not table.schema.equals(SCHEMA):
        raise Refused("wrong_schema", "its columns are not those of a segment")
    if hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise Refused("changed_segment", "the file is not the one that its manifest was written for")
    if table.num_rows != manifest.rows:
        raise Refused("changed_segment", f"{table.num_rows} rows; the manifest says {manifest.rows}")
    wrong = _differing(table, list(_records(table, manifest)))
    if wrong:
        raise Refused("rows_differ", f"the rows are not what was journaled: {wrong}")


def _records(table: pa.Table, manifest: Manifest) -> Iterator[Record]:
    """Yield the records of a segment along the chain."""
    payloads, links = table["payload"], table["link"]
    there = links.is_valid()
    seq, link = manifest.first_seq - 1, bytes.fromhex(manifest.previous_link)
    for stored, payload in zip(links.filter(there).to_pylist(), payloads.filter(there).to_pylist(), strict=True):
        try:
            _, record = decode_record(stored + (payload or b""), link)
        except StoreDamaged as error:
            raise Refused("broken_chain", f"record {seq + 1} was changed, or the one before it taken out") from error
        seq, link = seq + 1, stored
        if record.seq != seq:
            raise Refused("broken_chain", f"record {record.seq} stands where record {seq} belongs")
        yield record
    if seq != manifest.last_seq or link.hex() != manifest.last_link:
        raise Refused("broken_chain", f"the segment ends at record {seq}, its manifest says {manifest.last_seq}")


def _differing(table: pa.Table, records: list[Record]) -> str:
    """Return the first column that is not what the records say, or nothing. Works on whole columns, entry by entry at most."""
    entries = [entry for record in records for entry in record.entries]
    ids = [entry.ids for entry in entries]
    counts = np.array([max(1, len(one) // ID_BYTES) for one in ids], "i8")
    entries_of = np.array([len(record.entries) for record in records], "i8")
    if counts.sum() != table.num_rows:
        return "n"
    if not entries:
        return ""
    if any(len(one) % ID_BYTES for one in ids):
        return "message_id"
    of_entry = np.repeat(np.arange(len(entries)), counts)
    of_record = np.repeat(np.arange(len(records)), entries_of)[of_entry]
    first_entry = np.cumsum(entries_of) - entries_of
    first_row = (np.cumsum(counts) - counts)[np.minimum(first_entry, len(entries) - 1)]
    for name in ("shard", "seq", "ts"):
        values = pa.array([getattr(record, name) for record in records], SCHEMA.field(name).type)
        if not _equal(table, name, values.take(pa.array(of_record))):
            return name
    if not _equal(table, "n", pa.array(np.arange(len(of_entry)) - first_row[of_record])):
        return "n"
    if not _equal(table, "message_id", _message_ids(ids, of_entry)):
        return "message_id"
    by_field = dict(
        zip(JournalEntry.__struct_fields__, zip(*map(msgspec.structs.astuple, entries), strict=True), strict=True)
    )
    where = pa.array(of_entry)
    for name in _SAME_FOR_ALL:
        if not _equal(table, name, pa.array(by_field[name], SCHEMA.field(name).type).take(where)):
            return name
    for name in ("bytes", "priority", "attempt", "wait_ms", "process_ms"):
        if not _equal(table, name, _spread(by_field["size" if name == "bytes" else name], counts.tolist())):
            return name
    return ""


_SAME_FOR_ALL: Final = (
    "tenant", "queue", "op", "principal", "outcome", "error_code", "remote", "request_id", "details", "count",
    "user_agent",
)  # fmt: skip


def _equal(table: pa.Table, name: str, expected: pa.Array) -> bool:
    wanted = SCHEMA.field(name).type
    try:
        cast = expected if expected.type == wanted else expected.cast(wanted)
    except pa.ArrowInvalid:  # a number that the column cannot hold
        return False
    found: bool = table[name].equals(pa.chunked_array([cast]))
    return found


def _message_ids(ids: list[bytes], of_entry: NDArray[Any]) -> pa.Array:
    """Return the text of each row's id; rows of an entry without ids have none."""
    if all(ids):
        return id_texts(b"".join(ids))
    without = np.array([not one for one in ids])[of_entry]
    return pc.if_else(pa.array(without), "", id_texts(b"".join(one or bytes(ID_BYTES) for one in ids)))


def _spread(values: Sequence[list[int] | int], counts: list[int]) -> pa.Array:
    """Return a number for each row; an entry has one for all its rows, or a list with one for each."""
    spread: list[int] = []
    for value, count in zip(values, counts, strict=True):
        spread += value if isinstance(value, list) else [value] * count
    try:
        return pa.array(spread, pa.int64())
    except OverflowError:
        return pa.array([], pa.int64())


def as_batch(found: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return verdicts as Arrow."""
    return pa.RecordBatch.from_pylist([msgspec.to_builtins(one) for one in found], schema=schema)
