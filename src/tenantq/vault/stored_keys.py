"""Wrapped keys in a shard's store. Every change is an operation of a round, journaled and synced with it."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tenantq.domain.message import SYSTEM
from tenantq.engine.ops.data_keys import PutDataKey, ReplaceDataKey
from tenantq.engine.queue_state import TenantState, is_home
from tenantq.engine.shard import Shard
from tenantq.kms.interface import KeyRef
from tenantq.vault.settings import USES_MAX
from tenantq.vault.wrapped_key import WrappedKey

DAMAGED: Final = "damaged"
"""Provider of a key whose row is unreadable. Restore it from the data key file next to the backups."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WrappedKey).decode


def _decoded(row: bytes) -> WrappedKey | None:
    try:
        return _decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_key(row: bytes) -> bool:
    """Return whether a stored row is a readable wrapped key."""
    return _decoded(row) is not None


def _key_of(number: int, row: bytes) -> WrappedKey:
    """Return a stored key. A damaged one gets the provider DAMAGED, so that only its tenant's calls fail."""
    return _decoded(row) or WrappedKey(number, KeyRef(DAMAGED, f"data-key-{number}"), b"", 0, USES_MAX)


def used_up(row: bytes) -> bytes:
    """Return a row with all uses taken, so that the next message is encrypted with a new key. Unreadable rows stay as they are."""
    key = _decoded(row)
    return _encode(msgspec.structs.replace(key, uses=max(key.uses, USES_MAX))) if key and key.number else row


def wrapped_by(rows: Iterable[bytes]) -> tuple[str, ...]:
    """Return the names of the keys that wrap these rows, sorted. Unreadable rows are left out."""
    return tuple(sorted({str(key.key) for row in rows if (key := _decoded(row)) is not None}))


class StoredDataKeys:
    """A ``DataKeyStore`` on the ``datakey/`` rows of the store."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def list(self, tenant_id: int) -> Mapping[int, WrappedKey]:
        return self.known(tenant_id)

    def known(self, tenant_id: int) -> dict[int, WrappedKey]:
        """Return the same without waiting."""
        return {number: _key_of(number, row) for number, row in self._shard.state.data_keys.of(tenant_id).items()}

    def next_number(self, tenant_id: int) -> int:
        return self._tenant(tenant_id).next_data_key

    async def put(self, tenant_id: int, key: WrappedKey) -> bool:
        details, tenant, home = f"wrapped by {key.key}", self._tenant(tenant_id), self._shard.state.home_keys
        if home is not None and not is_home(tenant):
            return await home.put_data_key(tenant, key.number, _encode(key), details)
        return await self._shard.submit(PutDataKey(tenant, SYSTEM, key.number, _encode(key), details))

    async def replace(self, tenant_id: int, old: WrappedKey, new: WrappedKey) -> bool:
        row = self._shard.state.data_keys.of(tenant_id).get(old.number)
        if row is None or _key_of(old.number, row) != old:
            return False
        details = f"{new.uses} uses reserved" if new.wrapped == old.wrapped else f"rewrapped by {new.key}"
        tenant, home = self._tenant(tenant_id), self._shard.state.home_keys
        if home is not None and not is_home(tenant):
            return await home.replace_data_key(tenant, old.number, row, _encode(new), details)
        return await self._shard.submit(ReplaceDataKey(tenant, SYSTEM, old.number, row, _encode(new), details))

    def _tenant(self, tenant_id: int) -> TenantState:
        return self._shard.state.catalog.tenant_by_id(tenant_id)

    async def drop_all(self, tenant_id: int) -> int:
        return await self._shard.erasure.drop_data_keys(tenant_id, reason="the tenant is erased")
