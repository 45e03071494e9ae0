"""Audit events as JSON lines, CSV and Parquet, written in chunks with bounded memory."""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tenantq.domain.formatting import printable, show_time
from tenantq.errors import Invalid
from tenantq.journal.audit_event import EVENT_FIELDS

FORMATS: Final = ("jsonl", "csv", "parquet")
NUMBERS: Final = frozenset(("seq", "n", "bytes", "priority", "attempt", "wait_ms", "process_ms", "count"))
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_ROWS_PER_GROUP: Final = 20_000

Event = dict[str, Any]


class AuditFormat(ABC):
    """Encodes events as a file: ``start``, then ``add`` any number of times, then ``end``."""

    content_type: str

    def start(self) -> bytes:
        """Return the bytes before the first event."""
        return b""

    @abstractmethod
    def add(self, events: Sequence[Event]) -> bytes:
        """Return the bytes of more events; empty while they are buffered."""

    def end(self) -> bytes:
        return b""


def audit_format(name: str) -> AuditFormat:
    """Return a format by name. Raises Invalid."""
    formats: dict[str, type[AuditFormat]] = {"jsonl": JsonLines, "csv": Csv, "parquet": Parquet}
    if name not in formats:
        raise Invalid(f"format: must be one of {', '.join(FORMATS)}")
    return formats[name]()


class JsonLines(AuditFormat):
    """One JSON object per line, with the names and values of the HTTP API."""

    content_type = "application/x-ndjson"

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode

    def add(self, events: Sequence[Event]) -> bytes:
        return b"".join(self._encode(event) + b"\n" for event in events)


class Csv(AuditFormat):
    """RFC 4180 with a header, UTF-8. ``time`` is ISO 8601.

    Texts that a spreadsheet would run as a formula get a leading '. Line breaks and tabs become spaces, other control
    characters U+FFFD.
    """

    content_type = "text/csv; charset=utf-8; header=present"

    def start(self) -> bytes:
        return _csv([["time" if name == "ts" else name for name in EVENT_FIELDS]])

    def add(self, events: Sequence[Event]) -> bytes:
        return _csv([[_cell(name, event[name]) for name in EVENT_FIELDS] for event in events])


def _csv(lines: list[list[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(lines)
    return text.getvalue().encode("utf-8", "replace")


def _cell(name: str, value: object) -> object:
    if name == "ts" and isinstance(value, int):
        return show_time(value)
    if name in NUMBERS:
        return value
    text = printable(" ".join(str(value).splitlines()).replace("\t", " "))
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


class Parquet(AuditFormat):
    """One Parquet file, zstd, ``ts`` as a timestamp. Needs pyarrow."""

    content_type = "application/vnd.apache.parquet"

    def __init__(self) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415  # an extra
            import pyarrow.parquet as pq  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise Invalid("format: parquet requires pyarrow. Run pip install '.[parquet]' in the checkout.") from error
        self._pa = pa
        kinds = {"ts": pa.timestamp("ms", tz="UTC"), **dict.fromkeys(NUMBERS, pa.int64())}
        self._schema = pa.schema([pa.field(name, kinds.get(name, pa.string())) for name in EVENT_FIELDS])
        self._sink = _Sink()
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")
        self._buffered: list[Event] = []

    def start(self) -> bytes:
        """Return the file's first bytes."""
        return self._sink.taken()

    def add(self, events: Sequence[Event]) -> bytes:
        """Buffer events. Returns the bytes of a row group when enough are buffered."""
        self._buffered += events
        if len(self._buffered) < _ROWS_PER_GROUP:
            return b""
        self._write()
        return self._sink.taken()

    def end(self) -> bytes:
        """Return the last row group and the footer."""
        if self._buffered:
            self._write()
        self._writer.close()
        return self._sink.taken()

    def _write(self) -> None:
        columns = {name: [event[name] for event in self._buffered] for name in EVENT_FIELDS}
        self._writer.write_table(self._pa.table(columns, schema=self._schema))
        self._buffered = []


class _Sink(io.RawIOBase):
    """A write-only file whose content is taken out as it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def tell(self) -> int:
        return self._at

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data
