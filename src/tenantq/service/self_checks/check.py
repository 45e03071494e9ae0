"""The interface, result and settings of self-checks."""

from typing import Annotated, Protocol

import msgspec

from tenantq.domain.limits import DAY_MS
from tenantq.domain.validation import about, between


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the server checks itself, and how much in one run."""

    enabled: Annotated[bool, about("Run the self-checks.")] = True
    every_ms: Annotated[int, between(1_000, 7 * DAY_MS, "From the end of one run to the next.")] = 600_000
    tenants: Annotated[int, between(1, 1_000_000, "Tenants whose counters are recounted in one run.")] = 50
    rows: Annotated[int, between(1, 1 << 40, "Messages and leases counted in one run.")] = 200_000
    records: Annotated[int, between(1, 1 << 40, "Journal records verified in one run.")] = 50_000


class CheckResult(msgspec.Struct, frozen=True):
    """The result of a check."""

    ok: bool
    text: str  # one sentence: what was checked, or what is wrong


class SelfCheck(Protocol):
    """One check. It changes only its own data, and does a bounded amount of work."""

    name: str

    async def run(self) -> CheckResult:
        """Check once. Any exception counts as a failed check."""
