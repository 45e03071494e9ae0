"""Segments: ranges of the journal as Parquet files, one row per message, with the hash chain next to the rows.

The first row of each record has ``link`` and ``payload``: the record's hash and the bytes that were hashed. So anyone with the files
can recompute the chain and compare the rows with what was journaled.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tenantq.journal.manifest import SCHEMA_VERSION
from tenantq.journal.record import HASH_BYTES, JournalRow, decode_record, rows

_NUMBERS: Final = {
    **dict.fromkeys(("seq", "bytes", "wait_ms", "process_ms", "count"), pa.int64()),
    **dict.fromkeys(("n", "priority", "attempt"), pa.int32()),
    "ts": pa.timestamp("ms", tz="UTC"),
}
ROW_COLUMNS: Final = JournalRow.__struct_fields__
SCHEMA: Final = pa.schema(
    [
        *(pa.field(name, _NUMBERS.get(name, pa.string()), nullable=False) for name in ROW_COLUMNS),
        pa.field("link", pa.binary(32)),
        pa.field("payload", pa.binary()),
    ],
    metadata={b"tenantq.schema": str(SCHEMA_VERSION).encode()},
)
"""Columns of a segment. Ids are text, because Spark does not read Parquet's UUID type."""

_COLUMNS: Final = [(field.name, field.type) for field in SCHEMA]
_NAMES: Final = ["tenant", "queue", "op", "principal", "outcome", "error_code", "remote", "shard", "user_agent"]
_ROWS_PER_GROUP: Final = 20_000


def encode(records: Sequence[bytes]) -> tuple[bytes, int]:
    """Return the bytes of a Parquet file and its number of rows, from stored records. The same records give the same bytes."""
    columns: dict[str, list[Any]] = {field.name: [] for field in SCHEMA}
    appends = [columns[name].append for name in ROW_COLUMNS]
    links, payloads = columns["link"], columns["payload"]
    for stored in records:
        link, record = decode_record(stored)
        first: tuple[bytes | None, bytes | None] = (link, stored[len(link) :])
        for row in rows(record):
            for append, value in zip(appends, msgspec.structs.astuple(row), strict=True):
                append(value)
            links.append(first[0])
            payloads.append(first[1])
            first = (None, None)
    return to_parquet(pa.table(columns, schema=SCHEMA)), len(links)


def to_parquet(table: pa.Table) -> bytes:
    """Return the bytes of a segment from a table of SCHEMA."""
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        compression="zstd",
        use_dictionary=_NAMES,
        row_group_size=_ROWS_PER_GROUP,
        write_statistics=[name for name in SCHEMA.names if name not in {"payload", "link"}],
    )
    return buffer.getvalue()


def decode(data: bytes) -> Iterator[tuple[bytes, bytes, list[dict[str, Any]]]]:
    """Yield (link, payload, rows) of each record. Raises ValueError if the data is not a segment."""
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        if [(field.name, field.type) for field in file.schema_arrow] != _COLUMNS:
            raise ValueError("its columns are not those of a segment")
        link, payload, gathered = b"", b"", list[dict[str, Any]]()
        for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP):
            for row in batch.to_pylist():
                row_link, row_payload = row.pop("link"), row.pop("payload")
                if row["ts"] is None or (row_link is not None and len(row_link) != HASH_BYTES):
                    raise ValueError("a value is missing")
                row["ts"] = int(row["ts"].timestamp() * 1_000 + 0.5)
                if row_link is not None:
                    if gathered:
                        yield link, payload, gathered
                    link, payload, gathered = row_link, row_payload or b"", []
                gathered.append(row)
        if gathered:
            yield link, payload, gathered
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is not readable as Parquet: {error}") from error
