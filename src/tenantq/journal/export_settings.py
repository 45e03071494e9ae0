"""Settings of the journal export. They are apart from the exporter, which needs optional libraries."""

from typing import Annotated

import msgspec

from tenantq.domain.limits import DAY_MS
from tenantq.domain.names import RegionName
from tenantq.domain.validation import about, between


class ExportSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When and where the journal is exported."""

    enabled: Annotated[bool, about("Export the journal.")] = True
    target: Annotated[str, about("Directory or URL. Default: journal/ in the data directory.")] | None = None
    region: Annotated[RegionName, about("Region of the target. Default: the shard's.")] | None = None
    every_ms: Annotated[int, between(100, DAY_MS, "Maximum time until a record is exported.")] = 60_000
    segment_rows: Annotated[int, between(1, 10_000_000, "Maximum rows per segment.")] = 50_000
    segment_bytes: Annotated[int, between(1_024, 1 << 30, "Maximum bytes of records per segment.")] = 32 << 20
    keep_records: Annotated[int, between(0, 1 << 40, "Exported records kept in the store for fast queries.")] = 10_000
    keep_days: (
        Annotated[int, between(1, 36_500, "Days after which exported segments are removed. Default: never.")] | None
    ) = None
    journal_lag_max_bytes: Annotated[
        int, between(1_024, 1 << 50, "Maximum bytes of records not exported yet. Beyond it, new messages are refused.")
    ] = 10 << 30
