"""Verifies a segment against its manifest, its records against the hash chain, and its rows against its records.

This runs in Spark workers, on whole columns.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tenantq.errors import Invalid
from tenantq.journal.export_target import ExportTarget
from tenantq.journal.manifest import SCHEMA_VERSION, Manifest, read_manifest
from tenantq.journal.record import JournalEntry, Record
from tenantq.journal.segment import SCHEMA
from tenantq.journal.signing import PublicKey
from tenantq.pipeline.bronze.row_summary import RowSummary, summary_of
from tenantq.pipeline.bronze.rows import RowRules

ID_BYTES: Final = 16
_TEXT: Final = 36
_DIGITS: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "u2")
_ARRAY: Final = struct.Struct(">BI")  # the head of a MessagePack array: its mark and length
_ARRAY_MARK: Final = 0xDD
_decode: Final = msgspec.msgpack.Decoder(list[Record]).decode
_GROUPS: Final = ((0, 4, 0), (4, 6, 9), (6, 8, 14), (8, 10, 19), (10, 16, 24))
"""Bytes from, to, and where their text begins."""


class SegmentRefused(Exception):
    """A segment failed verification."""

    def __init__(self, reason: str, details: str, rows: int = 0) -> None:
        super().__init__(details)
        self.reason, self.details, self.rows = reason, details, rows


Verdict = tuple[dict[str, Any], RowSummary]
"""A row of SEGMENTS, and what the rows of the segment affect: nothing if it is refused."""


def verdict(target: ExportTarget, name: str, key: PublicKey | None, rules: RowRules) -> Verdict:
    """Return the verdict on the segment that the manifest ``name`` describes. ``rules`` say which rows are invalid."""
    summary = RowSummary()
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
        summary = summary_of(_checked(target, manifest), rules)
    except SegmentRefused as refused:
        found["reason"], found["details"] = refused.reason, refused.details
    return found, summary


def _manifest(target: ExportTarget, name: str) -> Manifest:
    try:
        return read_manifest(target, name)
    except (Invalid, OSError) as error:
        raise SegmentRefused("unreadable_manifest", str(error)) from error


def _check_manifest(manifest: Manifest, name: str, key: PublicKey | None) -> None:
    if manifest.name != name:
        raise SegmentRefused("wrong_manifest", f"the manifest belongs under {manifest.name}")
    if manifest.schema != SCHEMA_VERSION:
        raise SegmentRefused("wrong_schema", f"schema version {manifest.schema}; this program reads {SCHEMA_VERSION}")
    if key is not None and not key.verifies(manifest.signature, manifest.signed_text()):
        raise SegmentRefused("bad_signature", "the manifest is not signed by the server")


def _checked(target: ExportTarget, manifest: Manifest) -> pa.Table:
    """Return the rows of a segment; raise SegmentRefused if they are not what the server journaled."""
    try:
        data = target.read(manifest.file)
    except FileNotFoundError as error:
        raise SegmentRefused("missing_segment", "the segment is missing") from error
    except OSError as error:
        raise SegmentRefused("unreadable_segment", str(error)) from error
    try:
        file = pq.ParquetFile(pa.BufferReader(data), memory_map=False)
        table = file.read(use_threads=False)  # a task has one core
    except (pa.ArrowException, OSError) as error:
        raise SegmentRefused("truncated", "the segment is not complete Parquet") from error
    if table.schema.names != SCHEMA.names or not table.schema.equals(SCHEMA):
        raise SegmentRefused("wrong_schema", "the columns differ from those of a segment")
    if hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise SegmentRefused("changed_segment", "the file differs from its manifest")
    if table.num_rows != manifest.rows:
        raise SegmentRefused("changed_segment", f"{table.num_rows} rows; the manifest says {manifest.rows}")
    wrong = _differing(table, _records(table, manifest))
    if wrong:
        raise SegmentRefused("rows_differ", f"the rows differ from the journal: {wrong}")
    return table


def _records(table: pa.Table, manifest: Manifest) -> list[Record]:
    """Return the records of a segment in the order of the chain."""
    there = table["link"].is_valid()
    links, payloads = (table[name].filter(there).to_pylist() for name in ("link", "payload"))
    _check_chain(links, payloads, manifest)
    try:
        records = _decode(_ARRAY.pack(_ARRAY_MARK, len(payloads)) + b"".join(payloads))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SegmentRefused("broken_chain", "some records cannot be read") from error
    for seq, record in enumerate(records, manifest.first_seq):
        if record.seq != seq:
            raise SegmentRefused("broken_chain", f"found record {record.seq} instead of record {seq}")
    return records


def _check_chain(links: list[bytes], payloads: list[bytes | None], manifest: Manifest) -> None:
    """Compare the hash of each record with the hash over its predecessor and its payload."""
    link = bytes.fromhex(manifest.previous_link)
    for seq, (stored, payload) in enumerate(zip(links, payloads, strict=True), manifest.first_seq):
        if payload is None or hashlib.sha256(link + payload).digest() != stored:
            raise SegmentRefused("broken_chain", f"record {seq} was changed, or the record before it was removed")
        link = stored
    last = manifest.first_seq + len(links) - 1
    if last != manifest.last_seq or link.hex() != manifest.last_link:
        raise SegmentRefused(
            "broken_chain", f"the segment ends at record {last}, its manifest says {manifest.last_seq}"
        )


def _differing(table: pa.Table, records: list[Record]) -> str:
    """Return the first column that differs from the records, or an empty string."""
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
    by_field = dict(
        zip(JournalEntry.__struct_fields__, zip(*map(msgspec.structs.astuple, entries), strict=True), strict=True)
    )
    of_records = {name: [getattr(record, name) for record in records] for name in ("shard", "seq", "ts")}
    expected = {
        **{name: _array(name, values).take(pa.array(of_record)) for name, values in of_records.items()},
        "n": pa.array(np.arange(len(of_entry)) - first_row[of_record]),
        "message_id": _message_ids(ids, of_entry),
        **{name: _array(name, by_field[name]).take(pa.array(of_entry)) for name in _SAME_FOR_ALL},
        **{name: _spread(by_field[field], counts) for name, field in _OF_EACH_ROW.items()},
    }
    return next((name for name, column in expected.items() if not _equal(table, name, column)), "")


_OF_EACH_ROW: Final = {
    "bytes": "size", "priority": "priority", "attempt": "attempt", "wait_ms": "wait_ms", "process_ms": "process_ms",
}  # fmt: skip
_SAME_FOR_ALL: Final = (
    "tenant", "queue", "op", "principal", "outcome", "error_code", "remote", "request_id", "details", "count",
    "user_agent",
)  # fmt: skip


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    return pa.array(values, SCHEMA.field(name).type)


def _equal(table: pa.Table, name: str, expected: pa.Array) -> bool:
    wanted = SCHEMA.field(name).type
    try:
        cast = expected if expected.type == wanted else expected.cast(wanted)
    except pa.ArrowInvalid:  # a number out of the column's range
        return False
    found: bool = table[name].equals(pa.chunked_array([cast]))
    return found


def _message_ids(ids: list[bytes], of_entry: NDArray[Any]) -> pa.Array:
    """Return the id of each row; rows of an entry without ids have an empty one."""
    if all(ids):
        return id_texts(b"".join(ids))
    without = np.array([not one for one in ids])[of_entry]
    return pc.if_else(pa.array(without), "", id_texts(b"".join(one or bytes(ID_BYTES) for one in ids)))


def _spread(values: Sequence[list[int] | int], counts: NDArray[Any]) -> pa.Array:
    """Return a number for each row. An entry has one for all its rows, or a list."""
    lists = np.array([kind is list for kind in map(type, values)])
    try:
        if not lists.any():
            return pa.array(np.repeat(np.array(values, "i8"), counts))
        spread = np.repeat(np.array([0 if type(value) is list else value for value in values], "i8"), counts)
        listed = np.array([one for value in values if isinstance(value, list) for one in value], "i8")
    except OverflowError:
        return pa.array([], pa.int64())
    of_lists = np.repeat(lists, counts)
    if len(listed) != np.count_nonzero(of_lists):
        return pa.array([], pa.int64())
    spread[of_lists] = listed
    return pa.array(spread)


def id_texts(ids: bytes) -> Any:
    """Return an Arrow array with the text of each id. ``ids`` are 16 bytes each, concatenated."""
    raw = np.frombuffer(ids, "u1").reshape(-1, ID_BYTES)
    text = np.full((len(raw), _TEXT), ord("-"), "u1")
    digits = _DIGITS[raw].view("u1")
    for first, last, at in _GROUPS:
        text[:, at : at + 2 * (last - first)] = digits[:, 2 * first : 2 * last]
    offsets = np.arange(0, (len(raw) + 1) * _TEXT, _TEXT, dtype="i4")
    return pa.StringArray.from_buffers(len(raw), pa.py_buffer(offsets), pa.py_buffer(text))
