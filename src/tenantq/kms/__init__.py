"""Key management systems that wrap tenants' data keys: one interface, four providers."""

from __future__ import annotations

from tenantq.kms.interface import Context, KeyHealth, KeyRef, KeyWrapper, Kms
from tenantq.kms.providers import open_kms
from tenantq.kms.resilient import ResilientKms
from tenantq.kms.settings import KmsSettings, RetrySettings

__all__ = [
    "Context",
    "KeyHealth",
    "KeyRef",
    "KeyWrapper",
    "Kms",
    "KmsSettings",
    "ResilientKms",
    "RetrySettings",
    "open_kms",
]
