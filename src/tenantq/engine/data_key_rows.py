"""Wrapped data keys of encrypted tenants: kept in the meta family, cached here, changed only by rounds.

datakey/<tenant id be32><number be32>     a wrapped key, in the vault's own format; opaque to the engine
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from tenantq.store.interface import Batch, Store
from tenantq.store.keys import after, tenant_prefix
from tenantq.store.row_pages import rows_under

DATA_KEY_ROW: Final = b"datakey/"
_PLACE = struct.Struct(">II")
_PAGE: Final = 10_000


def tenant_range(tenant_id: int) -> tuple[bytes, bytes]:
    """Return the bounds of all of a tenant's rows."""
    prefix = tenant_prefix(tenant_id)
    return DATA_KEY_ROW + prefix, DATA_KEY_ROW + after(prefix)


def data_key_row(tenant_id: int, number: int) -> bytes:
    """Return the key of a wrapped key's row."""
    return DATA_KEY_ROW + _PLACE.pack(tenant_id, number)


class DataKeyRows:
    """The wrapped keys of all tenants. A tenant that never encrypted anything is not in ``by_tenant``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_tenant: dict[int, dict[int, bytes]] = {}

    def of(self, tenant_id: int) -> Mapping[int, bytes]:
        """Return a tenant's rows by number."""
        return self.by_tenant.get(tenant_id, {})

    # ---- changing, into a round's batch ----

    def put(self, batch: Batch, tenant_id: int, number: int, value: bytes) -> None:
        """Write a row, new or in place of one."""
        batch.put(data_key_row(tenant_id, number), value, self._store.meta.handle)
        self.by_tenant.setdefault(tenant_id, {})[number] = value

    def drop(self, batch: Batch, tenant_id: int) -> int:
        """Delete all of a tenant's rows; return how many there were."""
        batch.delete_range(*tenant_range(tenant_id), self._store.meta.handle)
        return len(self.by_tenant.pop(tenant_id, {}))

    # ---- loading ----

    def load(self, prefix: bytes = b"") -> None:
        """Read the rows of all tenants from the store, or of the one whose keys start with ``prefix``."""
        self.add(rows_under(self._store, self._store.meta, DATA_KEY_ROW + prefix, _PAGE))

    def add(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add rows that are in the store, or will be."""
        for key, value in rows:
            tenant_id, number = _PLACE.unpack(key[len(DATA_KEY_ROW) :])
            self.by_tenant.setdefault(tenant_id, {})[number] = value
