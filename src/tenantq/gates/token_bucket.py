"""A token bucket in whole numbers.

It counts in thousandths of a token: a rate per second is then the same number of thousandths per millisecond, and nothing
is ever rounded. Rate and burst come with each call, so a change of them acts at once.
"""

from __future__ import annotations

from typing import Final

import msgspec

_UNITS: Final = 1_000  # in a token


class TokenBucket(msgspec.Struct, gc=False):  # contains only numbers, so the garbage collector can skip it
    """Tokens that come back at ``rate`` a second up to ``burst``. All times are monotonic milliseconds."""

    level: int  # thousandths of a token at at_ms; below zero: debt
    at_ms: int

    @classmethod
    def full(cls, burst: int, now_ms: int) -> TokenBucket:
        return cls(burst * _UNITS, now_ms)

    def tokens(self, rate: int, burst: int, now_ms: int) -> int:
        """Return the number of whole tokens; below zero: debt."""
        return self._level_at(rate, burst, now_ms) // _UNITS

    def wait_ms(self, amount: int, rate: int, burst: int, now_ms: int) -> int:
        """Return in how many milliseconds ``amount`` tokens are available; 0: now. For amounts up to ``burst``."""
        missing = amount * _UNITS - self._level_at(rate, burst, now_ms)
        return -(-missing // rate) if missing > 0 else 0

    def has(self, amount: int, rate: int, burst: int, now_ms: int) -> bool:
        passed = now_ms - self.at_ms
        level = self.level + passed * rate if passed > 0 else self.level
        return amount * _UNITS <= level and amount <= burst

    def take(self, amount: int, rate: int, burst: int, now_ms: int) -> bool:
        """Take ``amount`` tokens and return True, or change nothing and return False."""
        if not self.has(amount, rate, burst, now_ms):
            return False
        self.charge(amount, rate, burst, now_ms)
        return True

    def charge(self, amount: int, rate: int, burst: int, now_ms: int) -> None:
        """Take ``amount`` tokens, into debt if some are missing."""
        passed = now_ms - self.at_ms
        level = self.level + passed * rate if passed > 0 else self.level
        self.level = min(level, burst * _UNITS) - amount * _UNITS
        self.at_ms = now_ms

    def refund(self, amount: int, rate: int, burst: int, now_ms: int) -> None:
        """Return unused tokens, as if they had never been taken."""
        self.level = min(burst * _UNITS, self._level_at(rate, burst, now_ms) + amount * _UNITS)
        self.at_ms = now_ms

    def is_full(self, rate: int, burst: int, now_ms: int) -> bool:
        return self._level_at(rate, burst, now_ms) >= burst * _UNITS

    def _level_at(self, rate: int, burst: int, now_ms: int) -> int:
        passed = now_ms - self.at_ms
        level = self.level + passed * rate if passed > 0 else self.level
        return min(level, burst * _UNITS)
