"""Latency percentiles compared with sorted lists."""

from __future__ import annotations

import math
import random

import pytest

from tenantq.load.latencies import Latencies

PERCENTS = (0.1, 50, 90, 99, 99.9, 100)


def _recorded(times: list[float], exact_max: int) -> Latencies:
    latencies = Latencies(exact_max)
    for seconds in times:
        latencies.record(seconds)
    return latencies


def _expected(times: list[float]) -> list[float]:
    ordered = sorted(times)
    return [ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] for percent in PERCENTS]


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_exact_up_to_the_bound(seed: int) -> None:
    """Each is the recorded time of its rank."""
    source = random.Random(seed)
    times = [source.lognormvariate(-6, 1.5) for _ in range(source.randint(1, 2_000))]
    assert _recorded(times, len(times)).percentiles(*PERCENTS) == _expected(times)


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_beyond_the_bound_are_at_most_0_8_percent_too_high(seed: int) -> None:
    """They are never too low, and the maximum stays exact."""
    source = random.Random(seed)
    times = [source.lognormvariate(-6, 2.5) for _ in range(3_000)]
    got = _recorded(times, source.choice([1, 100, 2_999])).percentiles(*PERCENTS)
    for told, true in zip(got, _expected(times), strict=True):
        assert told is not None
        assert true <= told <= true * (1 + 1 / 128) + 2e-6
    assert got[-1] == max(times)


def test_extreme_times_take_no_more_memory() -> None:
    """The number of bins is fixed, and times of zero or of days fit into them."""
    latencies = _recorded([1.0, 0.0, 1e9, -1e-9, 0.000_256], 1)
    assert latencies._counts is not None
    assert len(latencies._counts) < 5_000
    assert sum(latencies._counts) == 4
    assert latencies.percentiles(50) == [0.000_257]  # the upper end of its bin
    assert latencies.count == 5


def test_an_empty_recording_has_no_percentile() -> None:
    """None, not zero."""
    assert Latencies().percentiles(50, 100) == [None, None]
