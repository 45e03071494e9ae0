"""Histograms of durations: each duration is counted once, in its bin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenantq.runtime.histogram import Histogram


@given(st.lists(st.integers(-5, 1 << 28)))
def test_each_bin_counts_the_durations_up_to_its_bound(durations: list[int]) -> None:
    """Bounds are inclusive, the last bin is unbounded, and a negative duration counts as one microsecond."""
    times = Histogram()
    for us in durations:
        times.count(us)
    counted = [max(us, 1) for us in durations]
    for end, count in times.cumulative():
        assert count == sum(us <= float(end) * 1_000_000 for us in counted)
    assert times.cumulative()[0][0] == "6.4e-05"
    assert [float(end) for end, _ in times.cumulative()] == sorted(float(end) for end, _ in times.cumulative())
    assert times.cumulative()[-1] == ("+Inf", len(durations))
    assert times.sum_us == sum(counted)
