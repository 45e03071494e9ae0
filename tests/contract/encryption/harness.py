"""A harness whose tenants can be encrypted: a real keyring, whose provider a test can make fail."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

from tenantq.kms.keyring import KeyringFile
from tenantq.kms.local import LocalKms, unlock_of
from tenantq.kms.resilient import ResilientKms
from tenantq.kms.server_keyring import ServerManagedKeys, default_keyring
from tenantq.kms.settings import RetrySettings
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption
from tenantq.service.service import Service
from tenantq.vault.settings import VaultSettings
from tenantq.vault.stored_keys import StoredDataKeys
from tenantq.vault.vault import Vault
from tests.contract.gates.harness import ServiceHarness

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.engine.shard import Shard
    from tenantq.errors import TenantqError
    from tenantq.kms.interface import Context
    from tenantq.runtime.clock import ManualClock

PLAINTEXT = "the-plaintext-that-nobody-may-find"


def files_with(text: str, *directories: Path) -> list[str]:
    """Return all files that contain a text."""
    return [
        str(path)
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


class FailingKms(LocalKms):
    """The real provider ``local``, until ``failure`` is set."""

    failure: TenantqError | None = None

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        if self.failure is not None:
            raise self.failure
        return await super().wrap(key, plaintext, context)

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        if self.failure is not None:
            raise self.failure
        return await super().unwrap(key, wrapped, context)


class EncryptedHarness(ServiceHarness):
    """A shard with gates, a vault on a keyring of the data directory, and a service."""

    def __init__(self, shard: Shard, clock: ManualClock, directory: Path) -> None:
        super().__init__(shard, clock)
        settings = default_keyring(directory, in_use=False)
        self.ring = KeyringFile(directory / "keyring.json", unlock_of(settings, os.environ))
        self.provider = FailingKms(settings)
        once = RetrySettings(attempts=1, rest_ms=0)
        self.kms = ResilientKms("local", self.provider, clock, random.Random(3), once)
        self.book = StoredDataKeys(shard)
        self.vault = Vault(self.book, {"local": self.kms}, clock, settings=VaultSettings())
        own_keys = ServerManagedKeys(self.ring, clock)
        self.encryption = MessageEncryption(
            shard, self.vault, self.book, clock, providers={"local": self.kms}, own_keys=own_keys
        )
        self.service = Service(shard, self.admission, clock, self.encryption)

    async def close(self) -> None:
        await super().close()
        await self.encryption.close()

    async def encrypted(self, tenant: str = "acme", **encryption: Any) -> Call:
        """Create an encrypted tenant, and return a call of its administrator."""
        await self.tenant(tenant, encryption={"enabled": True, **encryption})
        return await self.key(tenant)

    def forget_keys(self) -> None:
        """Make the vault unwrap every key again, as after a restart."""
        for tenant in [*self.vault._tenants]:
            self.vault.forget(tenant)
