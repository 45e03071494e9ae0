"""Delays between attempts."""

from __future__ import annotations

import random

from tenantq.runtime.backoff import Backoff


def test_delays_double_up_to_the_maximum() -> None:
    """Also after so many attempts that the power no longer fits a float."""
    assert [Backoff(100, 750).ceiling_ms(attempt) for attempt in (1, 2, 3, 4, 5_000)] == [100, 200, 400, 750, 750]
    assert [Backoff(100, 2_000, 3.0).ceiling_ms(attempt) for attempt in (1, 2, 3, 4)] == [100, 300, 900, 2_000]


def test_jitter_stays_within_its_range() -> None:
    """Full jitter starts at 0, half jitter at half the ceiling; both reach the ceiling."""
    seeded, backoff = random.Random(7), Backoff(4, 4)
    assert {backoff.full_jitter_ms(1, seeded) for _ in range(500)} == {0, 1, 2, 3, 4}
    assert {backoff.half_jitter_ms(1, seeded) for _ in range(500)} <= {2, 3, 4}


def test_a_base_of_zero_never_waits() -> None:
    """It turns the backoff off."""
    assert Backoff(0, 0).full_jitter_ms(3, random.Random(7)) == 0
