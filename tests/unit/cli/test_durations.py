"""Durations and times as users type and read them."""

from __future__ import annotations

import click
import pytest

from tenantq.cli.options import duration, time_ago, time_ahead
from tenantq.domain.formatting import parse_duration, show_duration, show_time
from tenantq.runtime.clock import SystemClock


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0), ("250", 250), ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("2d", 172_800_000),
        ("1h30m", 5_400_000), ("1.5s", 1_500), (" 30S ", 30_000), ("1m30s500ms", 90_500), ("1w", 604_800_000), ("1w1d", 691_200_000),
    ],
)  # fmt: skip
def test_durations_are_parsed(text: str, ms: int) -> None:
    """With one or several units, or as plain milliseconds."""
    assert parse_duration(text) == duration(text) == ms


@pytest.mark.parametrize("text", ["", "s", "5 m", "-5s", "5x", "5m!", "1e3s", "٣s", "9" * 41])
def test_invalid_durations_are_refused(text: str) -> None:
    """The error shows valid examples."""
    assert parse_duration(text) is None
    with pytest.raises(click.BadParameter, match="30s, 5m"):
        duration(text)


@pytest.mark.parametrize("ms", [0, 1, 999, 1_000, 61_000, 90_500, 3_600_000, 86_400_000, 90_061_001])
def test_formatted_durations_parse_back(ms: int) -> None:
    """To the millisecond."""
    assert parse_duration(show_duration(ms)) == ms


def test_times_are_parsed() -> None:
    """ISO 8601 without a time zone is UTC; a duration counts from now."""
    assert time_ago("2030-01-31") == time_ahead("2030-01-31T00:00:00Z") == 1_896_048_000_000
    assert time_ago("2030-01-31T01:00:00+01:00") == 1_896_048_000_000
    assert show_time(1_896_048_000_123) == "2030-01-31T00:00:00.123Z"
    now = SystemClock().wall_ms()
    assert now - 3_600_000 - 60_000 < time_ago("1h") <= now - 3_600_000 + 60_000
    assert now + 86_400_000 - 60_000 < time_ahead("1d") < now + 86_400_000 + 60_000
    with pytest.raises(click.BadParameter, match="from now"):
        time_ahead("tomorrow")
