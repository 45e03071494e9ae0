"""Storage of archived days: few, well compressed Parquet files, each read back and compared after writing."""

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tenantq.errors import StoreDamaged
from tenantq.journal.export_target import ExportTarget
from tenantq.pipeline.lake.data_files import partition_values
from tenantq.pipeline.lake.state import ArchivedDay, ArchivedFile

PART_BYTES: Final = 128_000_000
"""The size of a file in memory; it is smaller on disk."""


def partition_rows(files: Mapping[str, list[Path]]) -> Iterator[pa.Table]:
    """Yield the rows of a table's files by row group, with the partition columns from the directory names."""
    for name in sorted(files):
        for file in files[name]:
            source = pq.ParquetFile(file)
            for group in range(source.num_row_groups):
                rows = source.read_row_group(group)
                for column, value in partition_values(name).items():
                    rows = rows.append_column(column, pa.array([value] * rows.num_rows, pa.string()))
                yield rows


def store(target: ExportTarget, place: str, rows: Iterable[pa.Table], mark: str = "") -> list[ArchivedFile]:
    """Write rows as files under ``place`` and return these. Raise StoreDamaged if one differs when read back."""
    found: list[ArchivedFile] = []
    waiting: list[pa.Table] = []
    size = 0

    def flush() -> None:
        if waiting:
            name = f"{place}/part-{len(found):05d}{mark}.parquet"
            found.append(_store_part(target, name, pa.concat_tables(waiting)))
            waiting.clear()

    for table in rows:
        if waiting and size + table.nbytes > PART_BYTES:
            flush()
            size = 0
        waiting.append(table)
        size += table.nbytes
    flush()
    return found


def _store_part(target: ExportTarget, name: str, rows: pa.Table) -> ArchivedFile:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd", compression_level=9, row_group_size=100_000)
    data = buffer.getvalue()
    target.write(name, data)
    there = target.read(name)
    digest = hashlib.sha256(data).hexdigest()
    if hashlib.sha256(there).hexdigest() != digest or not pq.read_table(io.BytesIO(there)).equals(rows):
        raise StoreDamaged(f"archive: {name} differs from what was written. Nothing was removed from the lake.")
    return ArchivedFile(name, len(data), digest, rows.num_rows)


def read_rows(target: ExportTarget, file: ArchivedFile, columns: list[str] | None = None) -> pa.Table:
    """Return the verified rows of an archived file; raise StoreDamaged as ``fetch`` does."""
    return pq.read_table(io.BytesIO(fetch(target, file)), columns=columns)


def fetch(target: ExportTarget, file: ArchivedFile) -> bytes:
    """Return the bytes of an archived file; raise StoreDamaged if it is missing or was changed."""
    try:
        data = target.read(file.name)
    except OSError as error:
        raise StoreDamaged(f"archive: {file.name}: cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise StoreDamaged(f"archive: {file.name}: was changed since it was written; restore it from a backup")
    return data


def tenants_in(target: ExportTarget, day: ArchivedDay) -> set[str]:
    """Return the tenants that have rows in an archived day."""
    return {name for file in day.files for name in pc.unique(read_rows(target, file, ["tenant"])["tenant"]).to_pylist()}


def sweep(target: ExportTarget, day: ArchivedDay) -> None:
    """Delete files of a day that do not belong to it, left by a process that was killed."""
    kept = {file.name for file in day.files}
    for name in target.names(day_place(day.table, day.date)):
        if name not in kept:
            target.delete(name)


def day_place(table: str, date: str) -> str:
    """Return the directory of a day of a table in the archive."""
    return f"{table}/date={date}"
