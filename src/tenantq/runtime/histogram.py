"""A histogram of durations with bins that double, so that counting is cheap."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

FIRST_BITS: Final = 6
"""The first bin ends at 2^6 microseconds."""
BINS: Final = 20
"""The last of these bins ends at 2^25 microseconds, about half a minute. One more bin holds longer durations."""
BOUNDS: Final = (*(str((1 << (FIRST_BITS + at)) / 1_000_000) for at in range(BINS)), "+Inf")
"""The end of each bin in seconds."""


class Histogram:
    """Counts of durations. Counts only grow. Only one thread may count; any thread may read."""

    __slots__ = ("_bins", "sum_us")

    def __init__(self) -> None:
        self._bins = [0] * (BINS + 1)
        self.sum_us = 0

    @property
    def total(self) -> int:
        """How many durations it has counted."""
        return sum(self._bins)

    def count(self, us: int, times: int = 1) -> None:
        """Count a duration once or several times. A negative one counts as one microsecond."""
        if us < 1:  # noqa: PLR1730  # max() and min() would double the cost
            us = 1
        at = (us - 1 >> FIRST_BITS).bit_length()
        self._bins[at if at < BINS else BINS] += times  # noqa: FURB136  # as above
        self.sum_us += us * times

    def merge(self, other: Histogram, sign: int = 1) -> None:
        """Add the counts of ``other``; subtract them if ``sign`` is -1."""
        self._bins = [mine + sign * theirs for mine, theirs in zip(self._bins, other._bins, strict=True)]
        self.sum_us += sign * other.sum_us

    def assign(self, other: Histogram) -> None:
        """Become equal to ``other``."""
        self._bins[:] = other._bins
        self.sum_us = other.sum_us

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the end of each bin in seconds and the number of durations up to it, as Prometheus expects."""
        return list(zip(BOUNDS, accumulate(self._bins), strict=True))
