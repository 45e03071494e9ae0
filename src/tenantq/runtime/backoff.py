"""Exponential backoff: how long to wait before the next attempt."""

from typing import NamedTuple

from tenantq.runtime.randomness import Randomness


class Backoff(NamedTuple):
    """Delays that start at ``base_ms``, grow by ``factor`` with every failed attempt and stop growing at ``max_ms``.

    Attempts count from 1. Jitter keeps callers that failed together from retrying together.
    """

    base_ms: int
    max_ms: int
    factor: float = 2.0

    def ceiling_ms(self, attempt: int) -> float:
        """Return the delay after failed attempt number ``attempt``, without jitter."""
        try:
            return min(self.max_ms, self.base_ms * float(self.factor) ** max(0, attempt - 1))
        except OverflowError:
            return self.max_ms

    def full_jitter_ms(self, attempt: int, randomness: Randomness) -> int:
        """Return a random delay from 0 to the ceiling."""
        return int(randomness.random() * (self.ceiling_ms(attempt) + 1))

    def half_jitter_ms(self, attempt: int, randomness: Randomness) -> int:
        """Return a random delay from half the ceiling to the ceiling."""
        ceiling_ms = self.ceiling_ms(attempt)
        return int(ceiling_ms - ceiling_ms / 2 * randomness.random())
