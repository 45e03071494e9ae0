"""Settings of the export. Separate from the exporter, which needs an extra."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.domain.message import check_int


class ExportSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When and where the journal is exported."""

    enabled: bool = True
    target: str | None = None  # a directory or URL; none: journal/ in the data directory
    every_ms: int = 60_000  # how long a record waits at most
    segment_rows: int = 50_000  # most rows of one segment
    segment_bytes: int = 32 << 20  # most bytes of records in one segment
    keep_records: int = 10_000  # exported records that stay in the store for quick queries
    journal_lag_max_bytes: int = 10 << 30  # records that wait for their export; beyond it no messages are taken


_RANGES: Final[dict[str, tuple[int, int]]] = {
    "every_ms": (100, 86_400_000),
    "segment_rows": (1, 10_000_000),
    "segment_bytes": (1_024, 1 << 30),
    "keep_records": (0, 1 << 40),
    "journal_lag_max_bytes": (1_024, 1 << 50),
}


def check_export(settings: ExportSettings) -> ExportSettings:
    """Return ``settings``. Raises Invalid if one is out of range."""
    for field, (low, high) in _RANGES.items():
        check_int(f"export.{field}", getattr(settings, field), low, high)
    return settings
