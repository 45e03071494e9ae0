"""A cache of recent lease rows, which saves an ack most reads of the store."""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from tenantq.store.keys import PREFIX_BYTES

LEASES_MAX: Final = 32_768
"""About 8 MB. Beyond this the older half is dropped; the store has all rows."""


class LeaseCache:
    """The newest lease rows by key, as the last written round left them."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def apply(self, written: Mapping[bytes, bytes | None], cleared: set[bytes]) -> None:
        """Apply what a round wrote, after dropping the queues that it cleared by range."""
        if cleared:
            self.rows = {key: row for key, row in self.rows.items() if key[:PREFIX_BYTES] not in cleared}
        rows = self.rows
        for key, row in written.items():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
        if len(rows) > LEASES_MAX:
            self.rows = dict(islice(rows.items(), len(rows) - LEASES_MAX // 2, None))
