"""Settings of the vault: rotation of data keys, and how long they stay in memory."""

from typing import Annotated, Final

import msgspec

from tenantq.domain.limits import DAY_MS, RotationMs
from tenantq.domain.validation import about, between
from tenantq.kms.interface import KeyRef

USES_MAX: Final = 1 << 32
"""More random nonces under one key could repeat (NIST SP 800-38D, section 8.3)."""

_Uses = Annotated[int, between(10_000, USES_MAX)]


class KeyPolicy(msgspec.Struct, frozen=True):
    """Which key wraps a tenant's data keys, and when a new data key is due."""

    key: KeyRef
    rotate_every_ms: RotationMs = 30 * DAY_MS


class VaultSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the use and caching of data keys."""

    key_age_max_ms: Annotated[int, between(10_000, DAY_MS, "How long an unwrapped data key stays in memory.")] = (
        3_600_000
    )
    uses_max: Annotated[_Uses, about("Records encrypted with one data key, in all processes together.")] = 1 << 30
    uses_reserved: Annotated[
        _Uses, about("Uses reserved in the store at a time; a restart forfeits the rest of them.")
    ] = 1 << 20
    cached_keys_max: Annotated[int, between(16, 10_000_000, "Data keys in memory, of all tenants.")] = 100_000
