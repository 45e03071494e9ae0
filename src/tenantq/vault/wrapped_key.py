"""Wrapped keys, and the interface of their store."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from tenantq.kms.interface import KeyRef


class WrappedKey(msgspec.Struct, frozen=True):
    """One key as it is stored. Only the key management system can unwrap it."""

    number: int  # 0: the tenant's secret; data keys count from 1
    key: KeyRef  # the key that unwraps it
    wrapped: bytes
    created_at: int  # wall clock
    uses: int = 0  # reserved so far, by all processes


class DataKeyStore(Protocol):
    """Stores wrapped keys. Every completed call is durable."""

    async def list(self, tenant_id: int) -> Mapping[int, WrappedKey]:
        """Return all of a tenant's keys by number."""

    def next_number(self, tenant_id: int) -> int:
        """Return the lowest number that was never used; 0: the tenant never had a key."""

    async def put(self, tenant_id: int, key: WrappedKey) -> bool:
        """Store a new key. Returns False, and changes nothing, if the number exists."""

    async def replace(self, tenant_id: int, old: WrappedKey, new: WrappedKey) -> bool:
        """Replace ``old`` by ``new`` of the same number. Returns False if the stored key is not ``old``."""

    async def drop_all(self, tenant_id: int) -> int:
        """Destroy all of a tenant's keys and return how many."""
