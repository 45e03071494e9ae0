"""Latencies in bounded memory: exact for the first million calls, then in a histogram."""

import itertools
import math
from array import array
from typing import Final

EXACT_MAX: Final = 1_000_000
"""Number of exact times; 8 MB."""
_FINE_BITS: Final = 7
"""Each doubling of time has 2^7 buckets, so the width of a bucket is at most 1/128 of its time."""
_US_MAX: Final = (1 << 36) - 1  # 19 hours
_EXACT_US: Final = 2 << _FINE_BITS
_BUCKETS: Final = _EXACT_US + ((_US_MAX.bit_length() - _FINE_BITS - 1) << _FINE_BITS)


class Latencies:
    """Times in seconds. Percentiles are exact for up to ``exact_max`` times, then at most 0.8 % too high."""

    __slots__ = ("_counts", "_exact", "_exact_max", "_longest_s", "count")

    def __init__(self, exact_max: int = EXACT_MAX) -> None:
        self.count = 0
        self._exact = array("d")
        self._exact_max = exact_max
        self._counts: list[int] | None = None  # of times after the exact ones
        self._longest_s = 0.0  # of times after the exact ones

    def record(self, seconds: float) -> None:
        """Record the time of one call."""
        if self.count < self._exact_max:
            self._exact.append(seconds)
        else:
            if self._counts is None:
                self._counts = [0] * _BUCKETS
            self._counts[_bucket(seconds)] += 1
            self._longest_s = max(self._longest_s, seconds)
        self.count += 1

    def percentiles(self, *percents: float) -> list[float | None]:
        """Return the percentiles of all times, or None for each if there are no times."""
        if not self.count:
            return [None for _ in percents]
        ranks = [max(1, math.ceil(self.count * percent / 100)) for percent in percents]
        if self._counts is None:
            ordered = sorted(self._exact)
            return [ordered[rank - 1] for rank in ranks]
        counts = self._counts.copy()
        for seconds in self._exact:
            counts[_bucket(seconds)] += 1
        longest_s = max(self._longest_s, *self._exact)
        return [min(_ranked_s(counts, rank), longest_s) for rank in ranks]


def _bucket(seconds: float) -> int:
    """Return the bucket of a time. Times below 256 µs have one bucket per microsecond."""
    us = min(max(0, math.ceil(seconds * 1e6)), _US_MAX)
    if us < _EXACT_US:
        return us
    shift = us.bit_length() - _FINE_BITS - 1
    return (shift << _FINE_BITS) + (us >> shift)


def _ranked_s(counts: list[int], rank: int) -> float:
    """Return the longest time in the bucket of the ``rank``-th shortest."""
    seen = itertools.accumulate(counts)
    bucket = next(bucket for bucket, count in enumerate(seen) if count >= rank)
    if bucket < _EXACT_US:
        return bucket / 1e6
    shift = (bucket >> _FINE_BITS) - 1
    return (((bucket - (shift << _FINE_BITS) + 1) << shift) - 1) / 1e6
