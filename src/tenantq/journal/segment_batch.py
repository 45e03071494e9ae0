"""The records of one segment, and their encoding outside the server's interpreter."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from types import TracebackType
from typing import Final, Self

from tenantq.domain.limits import HOUR_MS
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.record import decode_record
from tenantq.journal.segment import encode_stored

_INLINE_RECORDS_MAX: Final = 500  # about 20 ms of work


class SegmentBatch:
    """Records of one segment, as they are stored. Decoded they would be many small objects for the garbage collector."""

    __slots__ = ("last_link", "last_seq", "records", "rows", "size", "times")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.times: list[int] = []
        self.rows = self.size = self.last_seq = 0
        self.last_link = b""

    def add(self, stored: bytes, settings: ExportSettings) -> bool:
        """Add a record. Returns False if it is of another hour or exceeds a limit; the first one always fits."""
        link, record = decode_record(stored)
        rows = sum(max(1, len(entry.ids) // 16) for entry in record.entries)
        if self.records and (
            self.size >= settings.segment_bytes
            or self.rows + rows > settings.segment_rows
            or record.ts // HOUR_MS != self.times[0] // HOUR_MS
        ):
            return False
        self.records.append(stored)
        self.times.append(record.ts)
        self.rows += rows
        self.size += len(stored)
        self.last_link, self.last_seq = link, record.seq
        return True


class SegmentEncoder:
    """Encodes small segments here and large ones in a process of low priority, so that callers do not wait for the GIL."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def encode(self, records: list[bytes]) -> tuple[bytes, int]:
        """Return the bytes of a segment and its number of rows, from stored records."""
        if len(records) <= _INLINE_RECORDS_MAX:
            return encode_stored(records)
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=os.nice, initargs=(10,))
        try:
            return self._pool.submit(encode_stored, records).result()
        except BrokenExecutor:  # the process was killed
            self._pool = None
            return encode_stored(records)
