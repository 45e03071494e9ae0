"""Cells, columns and short numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.console.message_rows import MESSAGE_COLUMNS
from tenantq.console.rate_history import RateHistory, show_rate, sparkline
from tenantq.console.table import PADDING, Cell, Column, fitting, shortened, show_count
from tenantq.console.tenant_rows import TENANT_COLUMNS
from tenantq.domain.formatting import show_size

A, B, C = Column("a", "a", 10, 1, Cell), Column("b", "b", 4, 0, Cell, width_max=9), Column("c", "c", 6, 2, Cell)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (3, [("b", 4)]),
        (8, [("b", 6)]),
        (18, [("a", 10), ("b", 4)]),
        (26, [("a", 10), ("b", 4), ("c", 6)]),
        (40, [("a", 10), ("b", 9), ("c", 6)]),
    ],
)
def test_the_most_important_columns_that_fit_are_shown(width: int, shown: list[tuple[str, int]]) -> None:
    """In their own order; columns that can use it get the remaining width."""
    assert [(column.key, wide) for column, wide in fitting((A, B, C), width)] == shown


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(min_value=20, max_value=300))
def test_columns_never_exceed_the_width(width: int) -> None:
    """A wider table shows more of them."""
    shown = fitting(TENANT_COLUMNS, width)
    assert sum(wide + PADDING for _, wide in shown) <= width
    assert len(shown) <= len(fitting(TENANT_COLUMNS, width + 1))


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(min_value=0, max_value=10**15 - 10**12))
def test_a_short_count_is_short_and_close(count: int) -> None:
    """At most five characters, and with a unit at most five percent off."""
    text = show_count(count)
    assert len(text) <= 5
    units = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    value = float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)
    assert abs(value - count) <= count * 0.05


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (200 << 20, "200 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_have_binary_units(count: int, text: str) -> None:
    """Powers of 1,024."""
    assert show_size(count) == text


def test_rates_are_computed_from_consecutive_totals() -> None:
    """The first reading has no rate, a smaller total was reset, and removed names are forgotten."""
    rates = RateHistory()
    rates.read({"a": 100, "b": 0}, 1_000)
    assert rates.last("a") is None
    rates.read({"a": 120, "b": 0}, 3_000)
    assert (rates.last("a"), rates.last("b")) == (10.0, 0.0)
    rates.read({"a": 5}, 5_000)
    assert (rates.all("a"), rates.last("b")) == ((10.0,), None)
    rates.read({"a": 7}, 5_000)  # no time passed, so there is no rate
    rates.read({"a": 9}, 6_000)
    assert rates.all("a") == (10.0, 4.0)


def test_a_sparkline_is_scaled_to_its_highest_value() -> None:
    """The latest values, one block each."""
    assert sparkline([0, 5, 10], 8) == "▁▅█"
    assert sparkline([0, 0], 8) == "▁▁"
    assert sparkline(range(100), 3) == "███"
    assert sparkline([], 8) == ""


@pytest.mark.parametrize(("rate", "text"), [(None, "-"), (0.0, "0"), (2.46, "2.5"), (40.2, "40"), (123_456.0, "123k")])
def test_a_rate_is_short(rate: float | None, text: str) -> None:
    """A dash after a single reading."""
    assert show_rate(rate) == text


def test_ids_that_differ_only_at_the_end_stay_different_in_a_narrow_column() -> None:
    """The first characters of an ID are its time, which many messages share."""
    ids = [f"0197f3a2-1b2c-7def-8123-00000000000{end}" for end in "12"]
    assert [shortened(id, MESSAGE_COLUMNS[0], 13) for id in ids] == ["…000000000001", "…000000000002"]
    assert shortened(ids[0], MESSAGE_COLUMNS[0], 36) == ids[0]
    assert shortened("a long body", MESSAGE_COLUMNS[-1], 7) == "a long…"
