"""Sets up the encryption of a server: key management, vault and message encryption."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tenantq.engine.shard import Shard
from tenantq.kms.keyring import KeyringFile
from tenantq.kms.local import unlock_of
from tenantq.kms.providers import open_kms
from tenantq.kms.server_keyring import KEYRING, ServerManagedKeys, default_keyring
from tenantq.kms.settings import KmsSettings
from tenantq.runtime.clock import Clock
from tenantq.runtime.randomness import system_randomness
from tenantq.service.encryption import MessageEncryption
from tenantq.vault.settings import VaultSettings
from tenantq.vault.stored_keys import StoredDataKeys
from tenantq.vault.vault import Vault


def open_encryption(
    shard: Shard,
    data_dir: Path,
    clock: Clock,
    kms: KmsSettings | None = None,
    vault: VaultSettings | None = None,
    environment: Mapping[str, str] = os.environ,
) -> MessageEncryption:
    """Return the message encryption of an open shard, with a keyring in ``data_dir`` if none is configured. Raises Invalid."""
    kms = kms or KmsSettings()
    book = StoredDataKeys(shard)
    local = kms.local
    if local is None and (kms.default_key is None or (data_dir / KEYRING).exists()):
        data_keys = (key for id in shard.state.data_keys.by_tenant for key in book.known(id).values())
        in_use = any(key.key.provider == "local" for key in data_keys)
        local = default_keyring(data_dir, in_use=in_use)
    own_keys = None
    if kms.default_key is None and local is not None:
        own_keys = ServerManagedKeys(KeyringFile(Path(local.keyring), unlock_of(local, environment)), clock)
    providers = open_kms(msgspec.structs.replace(kms, local=local), clock, system_randomness(), environment)
    return MessageEncryption(
        shard,
        Vault(book, providers, clock, settings=vault),
        book,
        clock,
        providers=providers,
        default_key=kms.default_key,
        own_keys=own_keys,
    )
