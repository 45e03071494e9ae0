"""How long things took: counts in bins that double, so that one addition is all that a measurement costs."""

from __future__ import annotations

from typing import Final

FIRST_BITS: Final = 6
"""The first bin ends at 2^6 microseconds ..."""
BINS: Final = 20
"""... and the last one that ends, at 2^25, about half a minute; one more takes everything beyond."""


class Histogram:
    """Counts of durations. It only ever grows. One thread at a time may count; any may read."""

    __slots__ = ("_bins", "sum_us")

    def __init__(self) -> None:
        self._bins = [0] * (BINS + 1)
        self.sum_us = 0

    def count(self, us: int) -> None:
        """Count one duration; a clock that went back counts as none."""
        us = max(us, 1)
        self.sum_us += us
        at = (us - 1).bit_length() - FIRST_BITS
        self._bins[0 if at < 0 else min(BINS, at)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """Return, for each bin, its end in seconds and how many lasted at most so long, as Prometheus reads it."""
        found: list[tuple[str, float]] = []
        total = 0
        for at, count in enumerate(self._bins):
            total += count
            found.append((str((1 << (FIRST_BITS + at)) / 1_000_000) if at < BINS else "+Inf", total))
        return found
