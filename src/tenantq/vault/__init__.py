"""Envelope encryption: what a tenant's messages are sealed with, and who keeps the keys."""

from __future__ import annotations

from tenantq.vault.envelope import Kind, is_sealed
from tenantq.vault.key_store import DataKeyStore, WrappedKey
from tenantq.vault.settings import KeyPolicy, VaultSettings, check_policy, check_vault
from tenantq.vault.stored_keys import StoredDataKeys
from tenantq.vault.vault import Sealer, Vault, VaultHealth

__all__ = [
    "DataKeyStore",
    "KeyPolicy",
    "Kind",
    "Sealer",
    "StoredDataKeys",
    "Vault",
    "VaultHealth",
    "VaultSettings",
    "WrappedKey",
    "check_policy",
    "check_vault",
    "is_sealed",
]
