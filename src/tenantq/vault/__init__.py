"""Envelope encryption: what a tenant's messages are sealed with, and who keeps the keys."""

from __future__ import annotations

from tenantq.vault.book import DataKeyBook, WrappedKey
from tenantq.vault.sealed import Kind, is_sealed
from tenantq.vault.settings import KeyPolicy, VaultSettings, check_policy, check_vault
from tenantq.vault.stored_book import StoredBook
from tenantq.vault.vault import Sealer, Vault, VaultHealth

__all__ = [
    "DataKeyBook",
    "KeyPolicy",
    "Kind",
    "Sealer",
    "StoredBook",
    "Vault",
    "VaultHealth",
    "VaultSettings",
    "WrappedKey",
    "check_policy",
    "check_vault",
    "is_sealed",
]
