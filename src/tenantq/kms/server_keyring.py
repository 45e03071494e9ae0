"""The keyring that a server manages itself, in its data directory, next to the master key that unlocks it.

It is as safe as the directory: a copy of the whole directory includes the keys. A backup of the store alone does not.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tenantq.errors import Conflict, Invalid, KmsUnavailable, NotFound
from tenantq.kms.interface import KeyRef
from tenantq.kms.keyring import KEY_BYTES, KeyringFile, Unlock
from tenantq.kms.local import NAME
from tenantq.kms.settings import LocalSettings
from tenantq.runtime.clock import Clock
from tenantq.runtime.durable_files import write_durably

KEYRING: Final = "keyring.json"
MASTER_KEY: Final = "keyring.key"
PREFIX: Final = "tenant-"


def default_keyring(data_dir: Path, *, in_use: bool) -> LocalSettings:
    """Return the settings of a data directory's keyring, created if missing.

    ``in_use``: the store has data keys that the keyring wrapped. Then a missing keyring raises Invalid instead.
    """
    keyring, master_key = data_dir / KEYRING, data_dir / MASTER_KEY
    if not keyring.exists():
        if in_use:
            raise Invalid(
                f"{keyring}: the keyring is missing, and encrypted messages need its keys. Restore it from a backup. Without one"
                " those messages are lost; 'tenantq keyring create' creates a new keyring."
            )
        create_keyring(keyring, master_key)
    return LocalSettings(keyring=str(keyring), master_key_file=str(master_key))


def create_keyring(keyring: Path, master_key: Path) -> None:
    """Create an empty keyring, and a random master key if missing. Raises Invalid or Conflict."""
    try:
        secret = master_key.read_bytes() if master_key.exists() else os.urandom(KEY_BYTES)
        if not master_key.exists():
            write_durably(master_key, secret, 0o600, new=True)
    except OSError as error:
        raise Invalid(f"{master_key}: {error.strerror}") from None
    KeyringFile(keyring, Unlock("master_key", secret)).create()


class ServerManagedKeys:
    """A keyring with one key per tenant, for tenants that name none. The provider ``local`` detects changes of the file."""

    def __init__(self, ring: KeyringFile, clock: Clock) -> None:
        self._ring = ring
        self._clock = clock

    def ref(self, tenant: str) -> KeyRef:
        """Return the reference of a tenant's key."""
        return KeyRef(NAME, PREFIX + tenant)

    async def make(self, tenant: str) -> None:
        """Add a tenant's key unless it exists. Raises KmsUnavailable."""
        now = self._clock.wall_ms()
        await _change(lambda: self._ring.add_key(PREFIX + tenant, now))

    async def destroy(self, tenant: str) -> None:
        """Destroy a tenant's key if it exists. Raises KmsUnavailable."""
        await _change(lambda: self._ring.remove_key(PREFIX + tenant))


async def _change(change: Callable[[], None]) -> None:
    try:
        await asyncio.to_thread(change)
    except (Conflict, NotFound):
        pass  # already done
    except Invalid as error:
        raise KmsUnavailable(f"local: cannot change the keyring: {error.message}") from None
