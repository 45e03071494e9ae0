"""Rows of one kind in the meta family, by tenant and name: read once, cached, changed only by rounds."""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from tenantq.store.interface import Batch, Store
from tenantq.store.keys import after, tenant_prefix
from tenantq.store.row_pages import rows_under

_S = TypeVar("_S", bound=msgspec.Struct)

_encode = msgspec.msgpack.Encoder().encode


class StoredRows(Generic[_S]):
    """Values by tenant id, 0 for the platform, and name."""

    def __init__(self, store: Store, kind: bytes, value: type[_S]) -> None:
        self._store, self._kind = store, kind
        self._decode = msgspec.msgpack.Decoder(value).decode
        self._values: dict[int, dict[str, _S]] = {}
        self.load(b"")

    def load(self, prefix: bytes) -> None:
        """Read the rows of a tenant by its prefix, or all."""
        self.add(rows_under(self._store, self._store.meta, self._kind + prefix))

    def add(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add rows that are in the store, or will be."""
        at = len(self._kind)
        for key, value in rows:
            self._values.setdefault(int.from_bytes(key[at : at + 4]), {})[key[at + 4 :].decode()] = self._decode(value)

    def of(self, tenant_id: int) -> Mapping[str, _S]:
        """Return the values of a tenant by name."""
        return self._values.get(tenant_id, {})

    def put(self, batch: Batch, tenant_id: int, name: str, value: _S) -> None:
        """Store a value, replacing an earlier one."""
        batch.put(self._kind + tenant_prefix(tenant_id) + name.encode(), _encode(value), self._store.meta.handle)
        self._values.setdefault(tenant_id, {})[name] = value

    def drop(self, batch: Batch, tenant_id: int, name: str) -> None:
        """Delete a value that exists."""
        del self._values[tenant_id][name]
        batch.delete(self._kind + tenant_prefix(tenant_id) + name.encode(), self._store.meta.handle)

    def drop_tenant(self, batch: Batch, tenant_id: int) -> None:
        """Delete all values of a tenant."""
        self._values.pop(tenant_id, None)
        prefix = tenant_prefix(tenant_id)
        batch.delete_range(self._kind + prefix, self._kind + after(prefix), self._store.meta.handle)
