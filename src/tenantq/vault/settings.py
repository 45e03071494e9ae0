"""Settings of data keys: wrapping, rotation and time in memory."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.domain.message import check_int
from tenantq.kms.interface import KeyRef

DAY_MS: Final = 86_400_000
USES_MAX: Final = 1 << 32
"""Maximum number of random nonces per key (NIST SP 800-38D, section 8.3)."""


class KeyPolicy(msgspec.Struct, frozen=True):
    """The key that wraps a tenant's data keys, and the rotation interval."""

    key: KeyRef
    rotate_every_ms: int = 30 * DAY_MS


class VaultSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of data keys."""

    key_age_max_ms: int = 3_600_000  # how long an unwrapped data key may be used
    uses_max: int = 1 << 30  # records encrypted with one data key, in all processes and runs together
    uses_reserved: int = 1 << 20  # uses reserved in the store at a time; a restart forfeits the rest
    cached_keys_max: int = 100_000  # data keys in memory, of all tenants


_RANGES: dict[str, tuple[int, int]] = {
    "key_age_max_ms": (10_000, DAY_MS),
    "uses_max": (10_000, USES_MAX),
    "uses_reserved": (10_000, USES_MAX),
    "cached_keys_max": (16, 10_000_000),
}


def check_vault(settings: VaultSettings) -> VaultSettings:
    """Return ``settings``. Raises Invalid if one is out of range."""
    for field, (low, high) in _RANGES.items():
        check_int(f"vault.{field}", getattr(settings, field), low, high)
    return settings


def check_policy(policy: KeyPolicy) -> KeyPolicy:
    """Return ``policy``. Raises Invalid if it is out of range. Does not check its key."""
    check_int("encryption.rotate_every_ms", policy.rotate_every_ms, 3_600_000, 3_660 * DAY_MS)
    return policy
