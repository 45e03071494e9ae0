"""Counters of the work of queues and tenants, which the metrics read.

Each counts where the work happens, as a plain integer, so that counting costs next to nothing. All of them only grow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import add, sub
from typing import Final

from tenantq.errors import QuotaExceeded, TenantqError
from tenantq.runtime.histogram import Histogram

TOTALS: Final = (
    "added", "added_bytes", "delivered", "acked", "nacked", "lease_expired", "dead", "expired", "removed", "healed",
)  # fmt: skip
ADDED, ADDED_BYTES, DELIVERED, ACKED, NACKED, LEASE_EXPIRED, DEAD, EXPIRED, REMOVED, HEALED = range(len(TOTALS))

TIME_BOUNDS_MS: Final = tuple(4**power for power in range(12))
"""The ends of the bins of message times: from 1 ms to 70 minutes. One more bin holds longer times."""
_BINS: Final = len(TIME_BOUNDS_MS) + 1
_BIN_OF_BITS: Final = tuple(min(_BINS - 1, (bits + 1) >> 1) for bits in range(128))
WAITS: Final = slice(0, _BINS + 1)
"""Where the list of message times has the bins of waiting times, followed by their sum."""
PROCESSING: Final = slice(_BINS + 1, 2 * _BINS + 2)
"""Where it has those of processing times."""
_NO_TIMES: Final = [0] * (2 * _BINS + 2)


class WorkSums:
    """Totals and message times of one queue, or of several together."""

    __slots__ = ("times", "totals")

    def __init__(self) -> None:
        self.totals = [0] * len(TOTALS)
        self.times: list[int] = []  # empty until the first time is counted: most queues are idle

    def count_times(self, part: slice, times_ms: Sequence[int]) -> None:
        """Count message times: ``part`` is WAITS or PROCESSING."""
        times = self.times
        if not times:
            times = self.times = _NO_TIMES.copy()
        first, some_ms, count = part.start, times_ms[0], len(times_ms)
        if times_ms.count(some_ms) == count:  # as in most batches
            times[first + _BIN_OF_BITS[some_ms.bit_length()]] += count
            times[part.stop - 1] += some_ms * count
            return
        for ms in times_ms:
            times[first + _BIN_OF_BITS[ms.bit_length()]] += 1
        times[part.stop - 1] += sum(times_ms)

    @classmethod
    def total(cls, parts: Sequence[WorkSums]) -> WorkSums:
        """Return the sums of several together."""
        found = cls()
        if parts:
            found.totals = list(map(sum, zip(*[one.totals for one in parts], strict=True)))
        if times := [one.times for one in parts if one.times]:
            found.times = list(map(sum, zip(*times, strict=True)))
        return found

    def merge(self, other: WorkSums, sign: int = 1) -> None:
        """Add the sums of ``other``; subtract them if ``sign`` is -1."""
        change = add if sign > 0 else sub
        self.totals = list(map(change, self.totals, other.totals))
        if other.times:
            self.times = list(map(change, self.times or _NO_TIMES, other.times))

    def assign(self, other: WorkSums) -> None:
        """Become equal to ``other``."""
        self.totals[:] = other.totals
        self.times[:] = other.times


class TenantCounters:
    """What happened to the calls of one tenant since the server started, or of several tenants together."""

    __slots__ = (
        "calls", "cross_tenant", "decrypted", "encrypted", "quotas_refused", "rate_allowed", "rate_waited", "refused",
        "throttled", "turns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls: defaultdict[str, Histogram] = defaultdict(Histogram)  # durations by action, without waits
        self.refused: Counter[str] = Counter()  # calls by error code
        self.quotas_refused: Counter[str] = Counter()  # by quota
        self.turns = Histogram()  # time that operations waited for their turn
        self.throttled = 0  # calls refused by a limit
        self.rate_allowed = 0  # calls that the rate limits admitted ...
        self.rate_waited = 0  # ... after they had waited
        self.cross_tenant = 0  # calls of this tenant's credentials to tenants without a grant
        self.encrypted = 0  # records
        self.decrypted = 0

    def count_refusal(self, error: TenantqError) -> None:
        """Count a refused call."""
        self.refused[error.code] += 1
        self.count_quota(error)

    def count_quota(self, error: TenantqError) -> None:
        """Count a message, or a call, if a quota refused it."""
        if isinstance(error, QuotaExceeded) and error.quota:
            self.quotas_refused[error.quota] += 1

    def merge(self, other: TenantCounters, sign: int = 1) -> None:
        """Add the counters of ``other``; subtract them if ``sign`` is -1."""
        for action, times in other.calls.items():
            self.calls[action].merge(times, sign)
        for mine, theirs in ((self.refused, other.refused), (self.quotas_refused, other.quotas_refused)):
            for name, count in theirs.items():
                mine[name] += sign * count
        self.turns.merge(other.turns, sign)
        self.throttled += sign * other.throttled
        self.rate_allowed += sign * other.rate_allowed
        self.rate_waited += sign * other.rate_waited
        self.cross_tenant += sign * other.cross_tenant
        self.encrypted += sign * other.encrypted
        self.decrypted += sign * other.decrypted

    def assign(self, other: TenantCounters) -> None:
        """Become equal to ``other``, which was counted up from these counters."""
        for action, times in other.calls.items():
            self.calls[action].assign(times)
        self.refused |= other.refused
        self.quotas_refused |= other.quotas_refused
        self.turns.assign(other.turns)
        self.throttled = other.throttled
        self.rate_allowed, self.rate_waited = other.rate_allowed, other.rate_waited
        self.cross_tenant = other.cross_tenant
        self.encrypted, self.decrypted = other.encrypted, other.decrypted


class TenantSums:
    """The work and the calls of one tenant, or of several together."""

    __slots__ = ("counters", "work")

    def __init__(self) -> None:
        self.work = WorkSums()
        self.counters = TenantCounters()

    def merge(self, other: TenantSums, sign: int = 1) -> None:
        """Add the sums of ``other``; subtract them if ``sign`` is -1."""
        self.work.merge(other.work, sign)
        self.counters.merge(other.counters, sign)

    def assign(self, other: TenantSums) -> None:
        """Become equal to ``other``."""
        self.work.assign(other.work)
        self.counters.assign(other.counters)
