"""The records of one segment."""

from tenantq.domain.limits import HOUR_MS
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.record import decode_record


class SegmentBatch:
    """Records of one segment, as they are stored. Decoded they would be many small objects for the garbage collector."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.times: list[int] = []
        self.rows = self.size = self.last_seq = 0
        self.last_link = b""

    def add(self, stored: bytes, settings: ExportSettings) -> bool:
        """Add a record. Returns False if it is of another hour or exceeds a limit; the first one always fits."""
        link, record = decode_record(stored)
        rows = sum(entry.rows for entry in record.entries)
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
