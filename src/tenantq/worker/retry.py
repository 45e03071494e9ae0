"""Retry delays of failed messages."""

import math
from collections.abc import Callable

import msgspec

from tenantq.client.received import Received
from tenantq.domain import limits
from tenantq.domain.validation import check_field
from tenantq.errors import Invalid
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.randomness import Randomness

RetryRule = Callable[[Received, Exception], int | None]
"""Returns the retry delay in milliseconds for a message and its error; None: the queue's backoff."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential delays: ``base_ms`` after the first attempt, ``factor`` times as long after each further one, up to ``max_ms``.

    A random part of up to one half is subtracted, so that messages that failed together are not retried together.
    The queue's ``max_attempts``, or the message's own, limits the number of attempts.
    """

    base_ms: int = 1_000
    max_ms: int = 600_000
    factor: float = 2.0

    def __post_init__(self) -> None:
        check_field("base_ms", self.base_ms, limits.DelayMs)
        check_field("max_ms", self.max_ms, limits.DelayMs)
        if type(self.factor) not in (int, float) or not 1 <= self.factor < math.inf:
            raise Invalid(f"factor: must be a number of at least 1 (got {self.factor!r})")

    def delay_ms(self, attempt: int, randomness: Randomness) -> int:
        """Return the delay after attempt number ``attempt``, from 1."""
        return Backoff(self.base_ms, self.max_ms, self.factor).half_jitter_ms(attempt, randomness)
