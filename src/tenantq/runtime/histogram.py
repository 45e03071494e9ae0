"""A histogram of durations with bins that double, so that counting is cheap."""

from __future__ import annotations

from typing import Final

FIRST_BITS: Final = 6
"""The first bin ends at 2^6 microseconds."""
BINS: Final = 20
"""The last of these bins ends at 2^25 microseconds, about half a minute. One more bin holds longer durations."""


class Histogram:
    """Counts of durations. Counts only grow. Only one thread may count; any thread may read."""

    __slots__ = ("_bins", "sum_us")

    def __init__(self) -> None:
        self._bins = [0] * (BINS + 1)
        self.sum_us = 0

    def count(self, us: int) -> None:
        """Count one duration. A negative one counts as zero."""
        us = max(us, 1)
        self.sum_us += us
        at = (us - 1).bit_length() - FIRST_BITS
        self._bins[0 if at < 0 else min(BINS, at)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the end of each bin in seconds and the number of durations up to it, as Prometheus expects."""
        found: list[tuple[str, float]] = []
        total = 0
        for at, count in enumerate(self._bins):
            total += count
            found.append((str((1 << (FIRST_BITS + at)) / 1_000_000) if at < BINS else "+Inf", total))
        return found
