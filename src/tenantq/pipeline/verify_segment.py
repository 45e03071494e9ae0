"""One segment against its manifest, each record against the chain, each row against its record. Runs inside Spark's workers."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.manifest import SCHEMA_VERSION, Manifest, read_manifest
from tenantq.journal.record import unseal
from tenantq.journal.segment import SCHEMA
from tenantq.randomness import id_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenantq.journal.record import Record
    from tenantq.journal.signing import PublicKey
    from tenantq.journal.target import Target

_ID_BYTES: Final = 16
_ROW_SCHEMA: Final = pa.schema([field for field in SCHEMA if field.name not in {"link", "payload"}])


class Refused(Exception):
    """A segment that must not be processed, and why."""

    def __init__(self, reason: str, details: str, rows: int = 0) -> None:
        super().__init__(details)
        self.reason, self.details, self.rows = reason, details, rows


def verdict(target: Target, name: str, key: PublicKey | None) -> dict[str, Any]:
    """Return a row of VERDICTS about the segment that the manifest ``name`` describes."""
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


def _manifest(target: Target, name: str) -> Manifest:
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


def _check(target: Target, manifest: Manifest) -> None:
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
    expected = pa.table(_columns(_records(table, manifest)), schema=_ROW_SCHEMA)
    if not table.select(_ROW_SCHEMA.names).equals(expected):
        raise Refused("rows_differ", "the rows are not what was journaled")


def _records(table: pa.Table, manifest: Manifest) -> Iterator[Record]:
    """Yield the records of a segment along the chain."""
    payloads, links = table["payload"], table["link"]
    there = links.is_valid()
    seq, link = manifest.first_seq - 1, bytes.fromhex(manifest.previous_link)
    for stored, payload in zip(links.filter(there).to_pylist(), payloads.filter(there).to_pylist(), strict=True):
        try:
            _, record = unseal(stored + (payload or b""), link)
        except StoreDamaged as error:
            raise Refused("broken_chain", f"record {seq + 1} was changed, or the one before it taken out") from error
        seq, link = seq + 1, stored
        if record.seq != seq:
            raise Refused("broken_chain", f"record {record.seq} stands where record {seq} belongs")
        yield record
    if seq != manifest.last_seq or link.hex() != manifest.last_link:
        raise Refused("broken_chain", f"the segment ends at record {seq}, its manifest says {manifest.last_seq}")


def _columns(records: Iterator[Record]) -> dict[str, list[Any]]:
    """Expand records to columns, entry by entry: the same rows as journal.record.rows gives, several times faster."""
    columns: dict[str, list[Any]] = {name: [] for name in _ROW_SCHEMA.names}
    for record in records:
        n = 0
        for entry in record.entries:
            ids = entry.ids
            count = max(1, len(ids) // _ID_BYTES)
            columns["shard"] += [record.shard] * count
            columns["seq"] += [record.seq] * count
            columns["n"] += range(n, n + count)
            columns["ts"] += [record.ts] * count
            columns["message_id"] += (
                [id_text(ids[at : at + _ID_BYTES]) for at in range(0, len(ids), _ID_BYTES)] if ids else [""]
            )
            columns["bytes"] += _spread(entry.size, count)
            for name in ("priority", "attempt", "wait_ms", "process_ms"):
                columns[name] += _spread(getattr(entry, name), count)
            for name in _SAME_FOR_ALL:
                columns[name] += [getattr(entry, name)] * count
            n += count
    return columns


_SAME_FOR_ALL: Final = (
    "tenant", "queue", "op", "principal", "outcome", "error_code", "remote", "request_id", "details", "count",
    "user_agent",
)  # fmt: skip


def _spread(column: list[int] | int, count: int) -> list[int]:
    return column if isinstance(column, list) else [column] * count


def as_batch(found: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return verdicts as Arrow."""
    return pa.RecordBatch.from_pylist([msgspec.to_builtins(one) for one in found], schema=schema)
