"""Checks wrapped data keys: each is readable, belongs to a tenant, and the tenant's secret exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantq.engine.catalog import TENANT_ROW
from tenantq.engine.data_key_rows import DATA_KEY_ROW
from tenantq.store.keys import after
from tenantq.store.row_pages import pages_of_items
from tenantq.vault.stored_keys import is_key

if TYPE_CHECKING:
    from tenantq.doctor.report import FindingLog
    from tenantq.store.interface import Store

_SECRET: Final = 0
_ID_BYTES: Final = 4


def load_data_keys(store: Store, log: FindingLog) -> dict[int, set[int]]:
    """Return the numbers of data keys by tenant id, and record findings about them."""
    found: dict[int, set[int]] = {}
    for page in pages_of_items(store, store.meta, DATA_KEY_ROW, after(DATA_KEY_ROW)):
        for key, value in page:
            place = key[len(DATA_KEY_ROW) :]
            if len(place) != 2 * _ID_BYTES:
                log.found("damaged", f"A data key has a malformed key {key.hex()}.")
                continue
            tenant_id, number = int.from_bytes(place[:_ID_BYTES]), int.from_bytes(place[_ID_BYTES:])
            found.setdefault(tenant_id, set()).add(number)
            if not is_key(value):
                text = f"Data key {number} cannot be read, nor what it has sealed. Restore it from the file beside the backups."
                log.found("keys", text, tenant=f"#{tenant_id}")
        log.progress("data keys", len(page))
    for tenant_id, numbers in found.items():
        row = store.get(store.meta, TENANT_ROW + tenant_id.to_bytes(_ID_BYTES))
        if row is None:
            log.found("orphan", f"{len(numbers)} data keys belong to no tenant.", tenant=f"#{tenant_id}")
        elif _SECRET not in numbers:
            log.found("keys", "The tenant has data keys, but its secret (number 0) is gone.", tenant=f"#{tenant_id}")
    log.figures.data_keys = sum(map(len, found.values()))
    return found
