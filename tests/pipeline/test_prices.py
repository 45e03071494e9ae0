"""Prices: a book is checked whole, and lines add up to the cent."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.errors import Invalid
from tenantq.pipeline.gold.invoice_lines import month_lines
from tenantq.pipeline.price_book import Credit, Item, PriceBook, Shared, Tier, check_price_book, load_price_book

if TYPE_CHECKING:
    from pathlib import Path


def sums(tenant: str, **figures: int) -> dict[str, object]:
    """Return a tenant's month."""
    names = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "byte_ms")
    return {"tenant": tenant, "period": "2030-01", **{name: Decimal(figures.get(name, 0)) for name in names}}


def test_tiers_minimum_and_credit_make_the_total() -> None:
    """Each part of a quantity has the price of its tier; the minimum fills up, a credit takes off."""
    book = PriceBook(
        minimum="5.00",
        items=[Item("Operations", "operations", [Tier("0", "0", "1000"), Tier("0.40", "1000")], "1000")],
        credits=[Credit("acme", "2030-01", "1.50", "outage")],
    )
    lines = {line["item"]: line["amount"] for line in month_lines([sums("acme", operations=3_500)], book)}
    assert lines == {"Operations": Decimal("1.00"), "Minimum": Decimal("4.00"), "Credit 1": Decimal("-1.50")}


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12), st.integers(0, 10**7))
def test_shared_cost_is_allocated_to_the_last_cent(weights: list[int], cents: int) -> None:
    """The shares are the cost, none is off by a cent or more from its exact part."""
    amount = Decimal(cents) / 100
    book = PriceBook(shared=[Shared("Platform", str(amount), "operations")])
    lines = month_lines([sums(f"t{at:02d}", operations=weight) for at, weight in enumerate(weights)], book)
    assert sum(line["amount"] for line in lines) == amount
    whole = sum(weights)
    if whole:
        for line, weight in zip(lines, weights, strict=True):
            assert abs(line["amount"] - amount * weight / whole) < Decimal("0.01")


@pytest.mark.parametrize(
    ("tiers", "what"),
    [
        ([Tier("1", "0", "10"), Tier("1", "20")], "a gap between 10 and 20"),
        ([Tier("1", "0", "10"), Tier("1", "5")], "an overlap between 10 and 5"),
        ([Tier("1", "0", "10")], "the last has none"),
        ([Tier("1", "5")], "a gap between 0 and 5"),
        ([Tier("-1")], "must be 0 or more"),
        ([Tier("cheap")], "is no number"),
        ([], "at least one tier"),
    ],
)
def test_a_book_with_a_gap_or_an_overlap_is_refused(tiers: list[Tier], what: str) -> None:
    """What is wrong is named, with the item."""
    with pytest.raises(Invalid, match=what):
        check_price_book(PriceBook(items=[Item("Storage", "gb_hours", tiers)]), "book")


def test_a_book_is_read_from_toml(tmp_path: Path) -> None:
    """A file is a book; what it does not know is refused."""
    file = tmp_path / "prices.toml"
    file.write_text('[[items]]\nname = "Ops"\nmetric = "operations"\ntiers = [{ from = "0", price = "0.1" }]\n')
    assert load_price_book(file).items[0].tiers[0].price == "0.1"
    file.write_text("colour = 3\n")
    with pytest.raises(Invalid, match="colour"):
        load_price_book(file)
