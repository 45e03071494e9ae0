"""How a tenant's data keys are wrapped and rotated, and how long they stay in memory."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.domain.message import check_int
from tenantq.kms.interface import KeyRef

DAY_MS: Final = 86_400_000
USES_MAX: Final = 1 << 32
"""More random nonces under one key than this, and two of them might be the same (NIST SP 800-38D, section 8.3)."""


class KeyPolicy(msgspec.Struct, frozen=True):
    """Which key of which key management wraps a tenant's data keys, and when a new data key is due."""

    key: KeyRef
    rotate_every_ms: int = 30 * DAY_MS


class VaultSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what is kept of data keys."""

    key_age_max_ms: int = 3_600_000  # a data key is used so long after it was unwrapped, and then forgotten
    uses_max: int = 1 << 30  # what is sealed with one data key, in all processes and runs together
    uses_reserved: int = (
        1 << 20
    )  # so many uses are reserved in the store at a time; a restart forfeits the rest of them
    cached_keys_max: int = 100_000  # data keys in memory, of all tenants


_RANGES: dict[str, tuple[int, int]] = {
    "key_age_max_ms": (10_000, DAY_MS),
    "uses_max": (10_000, USES_MAX),
    "uses_reserved": (10_000, USES_MAX),
    "cached_keys_max": (16, 10_000_000),
}


def check_vault(settings: VaultSettings) -> VaultSettings:
    """Return ``settings`` if each is in its range, else raise Invalid."""
    for field, (low, high) in _RANGES.items():
        check_int(f"vault.{field}", getattr(settings, field), low, high)
    return settings


def check_policy(policy: KeyPolicy) -> KeyPolicy:
    """Return ``policy`` if it is in range, else raise Invalid. Whether its key can be used, the vault tells."""
    check_int("encryption.rotate_every_ms", policy.rotate_every_ms, 3_600_000, 3_660 * DAY_MS)
    return policy
