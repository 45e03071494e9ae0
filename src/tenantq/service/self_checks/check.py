"""What a self-check is, what it says, and how much it may cost."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from tenantq.domain.message import check_int


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the server checks itself, and how much of itself at a time."""

    enabled: bool = True
    every_ms: int = 600_000  # from the end of one run to the next
    tenants: int = 50  # whose counters are recounted in one run
    rows: int = 200_000  # messages and leases counted in one run
    records: int = 50_000  # journal records verified in one run


_RANGES: Final[dict[str, tuple[int, int]]] = {
    "every_ms": (1_000, 7 * 86_400_000),
    "tenants": (1, 1_000_000),
    "rows": (1, 1 << 40),
    "records": (1, 1 << 40),
}


def check_checks(settings: CheckSettings) -> CheckSettings:
    """Return ``settings`` if each is in its range, else raise Invalid."""
    for field, (low, high) in _RANGES.items():
        check_int(f"checks.{field}", getattr(settings, field), low, high)
    return settings


class CheckResult(msgspec.Struct, frozen=True):
    """How a check went."""

    ok: bool
    text: str  # one sentence: what was looked at, or what is wrong


class SelfCheck(Protocol):
    """One check. It changes nothing but what is its own, and does a bounded amount of work."""

    name: str

    async def run(self) -> CheckResult:
        """Check once. Whatever it raises counts as a failure of the check."""
