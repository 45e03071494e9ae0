"""The configurable limits of data keys."""

from __future__ import annotations

import msgspec
import pytest

from tenantq.domain.validation import validated
from tenantq.errors import Invalid
from tenantq.vault.settings import KeyPolicy, VaultSettings
from tests.unit.vault.doubles import DAY_MS, REF


def test_the_defaults_are_in_range() -> None:
    """One hour in memory, 2^30 uses, a new key every 30 days."""
    settings = validated(VaultSettings())
    assert (settings.key_age_max_ms, settings.uses_max) == (3_600_000, 1 << 30)
    assert validated(KeyPolicy(REF)).rotate_every_ms == 30 * DAY_MS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key_age_max_ms", 0),
        ("key_age_max_ms", 2 * DAY_MS),
        ("uses_max", (1 << 32) + 1),
        ("uses_max", 0),
        ("uses_reserved", 0),
        ("cached_keys_max", 0),
    ],
)
def test_limits_out_of_range_are_refused(field: str, value: int) -> None:
    """The error names the setting and its range."""
    with pytest.raises(Invalid, match=rf"^vault\.{field}: "):
        validated(msgspec.structs.replace(VaultSettings(), **{field: value}), "vault.")


@pytest.mark.parametrize("value", [0, -1, 1_000, 11 * 366 * DAY_MS])
def test_rotation_periods_out_of_range_are_refused(value: int) -> None:
    """The range is one hour to ten years."""
    with pytest.raises(Invalid, match=r"^encryption\.rotate_every_ms"):
        validated(KeyPolicy(REF, value), "encryption.")
