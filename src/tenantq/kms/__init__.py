"""Key management: where the keys live that wrap a tenant's data keys. One small interface, four providers."""

from __future__ import annotations

from tenantq.kms.interface import Context, KeyHealth, KeyRef, KeyWrapper, Kms
from tenantq.kms.opening import open_kms
from tenantq.kms.settings import KmsSettings, RetrySettings, check_kms
from tenantq.kms.steady import SteadyKms

__all__ = [
    "Context",
    "KeyHealth",
    "KeyRef",
    "KeyWrapper",
    "Kms",
    "KmsSettings",
    "RetrySettings",
    "SteadyKms",
    "check_kms",
    "open_kms",
]
