"""Wrapped keys as they are stored, and what the vault needs of whoever stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from tenantq.kms.interface import KeyRef

if TYPE_CHECKING:
    from collections.abc import Mapping


class WrappedKey(msgspec.Struct, frozen=True):
    """One key as it is stored. It says nothing without the key management's help."""

    number: int  # 0: the tenant's secret; data keys count from 1
    key: KeyRef  # what unwraps it
    wrapped: bytes
    created_at: int  # wall clock
    uses: int = 0  # reserved so far, by all processes; never more than the bound


class DataKeyStore(Protocol):
    """Where wrapped keys are stored. What a call has confirmed is durable."""

    async def list(self, tenant_id: int) -> Mapping[int, WrappedKey]:
        """Return all of a tenant's keys by number."""

    async def put(self, tenant_id: int, key: WrappedKey) -> bool:
        """Store a new key; False: there is one of this number already, and it is left as it is."""

    async def replace(self, tenant_id: int, old: WrappedKey, new: WrappedKey) -> bool:
        """Store ``new`` in place of ``old``, which has the same number; False: what is stored is not ``old`` (any more)."""

    async def drop_all(self, tenant_id: int) -> int:
        """Destroy all of a tenant's keys for ever, and return how many."""
