"""An in-memory book, and an in-memory key management system that can be delayed, switched off and counted."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tenantq.errors import DecryptionFailed, Invalid, TenantqError
from tenantq.kms.interface import Context, KeyHealth, KeyRef, context_bytes
from tenantq.runtime.histogram import Histogram
from tenantq.vault.settings import KeyPolicy, VaultSettings
from tenantq.vault.vault import Vault
from tenantq.vault.wrapped_key import WrappedKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenantq.runtime.clock import Clock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

REF = KeyRef("local", "main")
OTHER = KeyRef("aws-kms", "alias/other")
POLICY = KeyPolicy(REF)
ID = bytes(range(16))


class MemoryBook:
    """Wrapped keys in a dictionary; every write first gives other tasks a turn, like a store."""

    def __init__(self) -> None:
        self.keys: dict[int, dict[int, WrappedKey]] = {}
        self.writes = 0
        self.hold_writes: asyncio.Event | None = None
        self.fail: TenantqError | None = None

    async def list(self, tenant_id: int) -> Mapping[int, WrappedKey]:
        return dict(self.keys.get(tenant_id, {}))

    def next_number(self, tenant_id: int) -> int:
        return max(self.keys.get(tenant_id, {}), default=-1) + 1

    async def put(self, tenant_id: int, key: WrappedKey) -> bool:
        await self._turn()
        keys = self.keys.setdefault(tenant_id, {})
        if key.number in keys:
            return False
        keys[key.number] = key
        return True

    async def replace(self, tenant_id: int, old: WrappedKey, new: WrappedKey) -> bool:
        await self._turn()
        keys = self.keys.get(tenant_id, {})
        assert old.number == new.number
        if keys.get(old.number) != old:
            return False
        keys[new.number] = new
        return True

    async def drop_all(self, tenant_id: int) -> int:
        await self._turn()
        return len(self.keys.pop(tenant_id, {}))

    async def _turn(self) -> None:
        self.writes += 1
        await asyncio.sleep(0)
        if self.hold_writes is not None:
            await self.hold_writes.wait()
        if self.fail is not None:
            raise self.fail


class MemoryKms:
    """AES-GCM with a key for each name. ``error`` makes every call fail, ``gate`` delays every call."""

    def __init__(self, name: str = "local") -> None:
        self.name = name
        self.error: TenantqError | None = None
        self.gate: asyncio.Event | None = None
        self.wraps: list[str] = []
        self.unwraps: list[str] = []
        self.seen: set[bytes] = set()  # every plaintext key that was wrapped
        self._keys: dict[str, AESGCM] = {}

    def check_key(self, key: str) -> None:
        if not key:
            raise Invalid("key: no name")

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        self.wraps.append(context["number"])
        await self._turn()
        self.seen.add(plaintext)
        nonce = os.urandom(12)
        return nonce + self._cipher(key).encrypt(nonce, plaintext, context_bytes(context))

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        self.unwraps.append(context["number"])
        await self._turn()
        try:
            return self._cipher(key).decrypt(wrapped[:12], wrapped[12:], context_bytes(context))
        except (InvalidTag, ValueError):
            raise DecryptionFailed from None

    async def check(self, key: str) -> KeyHealth:
        return KeyHealth(self.name, key, "ok" if self.error is None else "unavailable")

    took = Histogram()
    failed = 0

    def health(self) -> list[KeyHealth]:
        return [KeyHealth(self.name, key, "ok" if self.error is None else "unavailable") for key in self._keys]

    def forget_health(self, key: str) -> None:
        self._keys.pop(key, None)

    async def close(self) -> None:
        pass

    def _cipher(self, key: str) -> AESGCM:
        if key not in self._keys:
            self._keys[key] = AESGCM(os.urandom(32))
        return self._keys[key]

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error


class VaultEnvironment:
    """A vault with its clock, book and key management systems."""

    def __init__(self, clock: Clock, settings: VaultSettings | None = None) -> None:
        self.clock = clock
        self.book = MemoryBook()
        self.kms = MemoryKms("local")
        self.other = MemoryKms("aws-kms")
        self.settings = settings or VaultSettings()
        self.vault = self.restarted()

    def restarted(self) -> Vault:
        """Return a vault with an empty cache on the same book and key management systems."""
        return Vault(self.book, {"local": self.kms, "aws-kms": self.other}, self.clock, os.urandom, self.settings)


async def settle() -> None:
    """Let all background work that can continue do so."""
    for _ in range(60):
        await asyncio.sleep(0)


async def decrypted(vault: Vault, blob: bytes, tenant_id: int = 7) -> bytes:
    """Decrypt a body of the queue ``q``, loading its keys first."""
    reader = vault.reader(tenant_id)
    await reader.load([blob])
    return reader.decrypt("q", ID, "body", blob)
