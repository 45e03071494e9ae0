"""Envelope encryption of tenants' messages, and the data keys for it."""

from __future__ import annotations

from tenantq.vault.envelope import Kind
from tenantq.vault.settings import KeyPolicy, VaultSettings
from tenantq.vault.stored_keys import StoredDataKeys
from tenantq.vault.vault import TenantCipher, Vault, VaultHealth
from tenantq.vault.wrapped_key import DataKeyStore, WrappedKey

__all__ = [
    "DataKeyStore",
    "KeyPolicy",
    "Kind",
    "StoredDataKeys",
    "TenantCipher",
    "Vault",
    "VaultHealth",
    "VaultSettings",
    "WrappedKey",
]
