"""Prices: a price book is validated as a whole, and lines add up to the cent."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.errors import Invalid
from tenantq.pipeline.gold.invoice_lines import month_lines
from tenantq.pipeline.price_book import (
    Credit,
    Item,
    PriceBook,
    SharedCost,
    TenantTerms,
    Tier,
    check_price_book,
    load_price_book,
)

if TYPE_CHECKING:
    from pathlib import Path


def sums(tenant: str, **figures: int) -> dict[str, object]:
    """Return a tenant's month."""
    names = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "byte_ms")
    return {"tenant": tenant, "period": "2030-01", **{name: Decimal(figures.get(name, 0)) for name in names}}


def test_tiers_minimum_and_credit_add_up_to_the_total() -> None:
    """Each part of a quantity has the price of its tier; the minimum adds the difference, and a credit subtracts."""
    book = PriceBook(
        minimum="5.00",
        items=[Item("Operations", "operations", [Tier("0", "0", "1000"), Tier("0.40", "1000")], "1000")],
        credits=[Credit("acme", "2030-01", "1.50", "outage")],
    )
    lines = {line["item"]: line["amount"] for line in month_lines([sums("acme", operations=3_500)], book)}
    assert lines == {"Operations": Decimal("1.00"), "Minimum": Decimal("4.00"), "Credit 1": Decimal("-1.50")}


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12), st.integers(0, 10**7))
def test_shared_cost_is_allocated_to_the_last_cent(weights: list[int], cents: int) -> None:
    """The shares add up to the cost, and each is less than a cent off its exact part."""
    amount = Decimal(cents) / 100
    book = PriceBook(shared=[SharedCost("Platform", str(amount), "operations")])
    lines = month_lines([sums(f"t{at:02d}", operations=weight) for at, weight in enumerate(weights)], book)
    assert sum(line["amount"] for line in lines) == amount
    whole = sum(weights)
    if whole:
        for line, weight in zip(lines, weights, strict=True):
            assert abs(line["amount"] - amount * weight / whole) < Decimal("0.01")


@given(
    quantity=st.integers(0, 10**7),
    bounds=st.lists(st.integers(1, 10**6), max_size=4, unique=True).map(sorted),
    prices=st.lists(st.integers(0, 10**6), min_size=5, max_size=5),
    unit=st.sampled_from(("1", "7", "1000")),
    minimum=st.integers(0, 10**5),
    credit=st.integers(0, 10**6),
)
def test_a_month_matches_exact_fractions(
    quantity: int, bounds: list[int], prices: list[int], unit: str, minimum: int, credit: int
) -> None:
    """Each unit has the price of its tier, each line is rounded once, and the minimum comes before the credit, never below zero."""
    edges = [0, *bounds]
    tiers = [
        Tier(str(Decimal(prices[at]) / 10_000), str(start), str(edges[at + 1]) if at + 1 < len(edges) else None)
        for at, start in enumerate(edges)
    ]
    book = check_price_book(
        PriceBook(
            minimum=str(Decimal(minimum) / 100),
            items=[Item("Operations", "operations", tiers, unit)],
            credits=[Credit("acme", "2030-01", str(Decimal(credit) / 100)), Credit("acme", "2030-02", "9.00")],
        ),
        "book",
    )
    lines = {line["item"]: line["amount"] for line in month_lines([sums("acme", operations=quantity)], book)}
    exact = Fraction(0)
    for at, start in enumerate(edges):
        end = edges[at + 1] if at + 1 < len(edges) else max(quantity, start)
        exact += Fraction(max(0, min(quantity, end) - start) * prices[at], 10_000 * int(unit))
    cents = round(exact * 100)  # half to even, as the book's rounding is
    assert lines["Operations"] == Decimal(cents) / 100
    due = max(cents, minimum)
    assert sum(lines.values()) == Decimal(max(0, due - credit)) / 100
    assert "Credit 2" not in lines


def test_tenants_pay_in_their_own_currency() -> None:
    """Items, minimums and shared costs of a currency apply to the tenants that pay in it."""
    book = check_price_book(
        PriceBook(
            minimum="1.00",
            items=[
                Item("Operations", "operations", [Tier("2")]),
                Item("Operations", "operations", [Tier("3")], currency="USD"),
            ],
            shared=[SharedCost("Platform", "10.00", "operations", currency="USD")],
            tenants=[TenantTerms("initech", "USD", "40.00"), TenantTerms("umbrella", "USD")],
        ),
        "book",
    )
    lines = month_lines([sums(name, operations=5) for name in ("acme", "initech", "umbrella")], book)
    assert [(line["tenant"], line["item"], line["amount"], line["currency"]) for line in lines] == [
        ("acme", "Operations", Decimal(10), "EUR"),
        ("initech", "Operations", Decimal(15), "USD"),
        ("initech", "Platform", Decimal(5), "USD"),
        ("initech", "Minimum", Decimal(20), "USD"),
        ("umbrella", "Operations", Decimal(15), "USD"),
        ("umbrella", "Platform", Decimal(5), "USD"),
    ]
    for wrong in (PriceBook(currency="euro"), PriceBook(tenants=[TenantTerms("a"), TenantTerms("a")])):
        with pytest.raises(Invalid):
            check_price_book(wrong, "book")


def test_prices_apply_to_the_months_that_they_name() -> None:
    """An item may follow another of its name, months without a price have no line, and only changed months have a new digest."""
    old = Item("Operations", "operations", [Tier("1")], before="2030-02")
    new = Item("Operations", "operations", [Tier("2")], since="2030-02")
    book = check_price_book(PriceBook(items=[new, old]), "book")
    january, february = sums("acme", operations=5), {**sums("acme", operations=5), "period": "2030-02"}
    assert [line["amount"] for line in month_lines([january], book)] == [Decimal(5)]
    assert [line["amount"] for line in month_lines([february], book)] == [Decimal(10)]
    raised = PriceBook(items=[msgspec.structs.replace(new, tiers=[Tier("3")]), old])
    assert raised.digest("2030-01") == book.digest("2030-01")
    assert raised.digest("2030-02") != book.digest("2030-02")


@pytest.mark.parametrize(
    ("times", "what"),
    [
        ([("", "2030-02"), ("2030-03", "")], "a gap: no price applies from 2030-02 to 2030-03"),
        ([("", "2030-03"), ("2030-02", "")], "an overlap: two prices apply in 2030-02"),
        ([("", ""), ("", "")], "an overlap"),
        ([("2030-03", "2030-03")], "contain no month"),
        ([("2030-13", "")], "must be a month"),
    ],
)
def test_a_price_book_with_gaps_or_overlaps_in_time_is_refused(times: list[tuple[str, str]], what: str) -> None:
    """Items with one name must follow each other month by month."""
    items = [Item("Storage", "gb_hours", [Tier("1")], since=since, before=before) for since, before in times]
    with pytest.raises(Invalid, match=what):
        check_price_book(PriceBook(items=items), "book")


def test_the_share_of_an_erased_tenant_is_not_charged_to_others() -> None:
    """Its usage still counts, without a name and without a line."""
    book = PriceBook(shared=[SharedCost("Platform", "90.00", "operations")])
    lines = month_lines([sums("acme", operations=100)], book, [sums("", operations=200)])
    assert [(line["tenant"], line["amount"]) for line in lines] == [("acme", Decimal("30.00"))]


@pytest.mark.parametrize(
    ("tiers", "what"),
    [
        ([Tier("1", "0", "10"), Tier("1", "20")], "a gap between 10 and 20"),
        ([Tier("1", "0", "10"), Tier("1", "5")], "an overlap between 10 and 5"),
        ([Tier("1", "0", "10")], "the last has none"),
        ([Tier("1", "5")], "a gap between 0 and 5"),
        ([Tier("-1")], "must be 0 or more"),
        ([Tier("NaN")], "must be 0 or more"),
        ([Tier("Infinity")], "must be 0 or more"),
        ([Tier("cheap")], "must be a number"),
        ([], "at least one tier"),
    ],
)
def test_a_price_book_with_gaps_or_overlaps_in_tiers_is_refused(tiers: list[Tier], what: str) -> None:
    """The error names the item."""
    with pytest.raises(Invalid, match=what):
        check_price_book(PriceBook(items=[Item("Storage", "gb_hours", tiers)]), "book")


def test_a_price_book_is_read_from_toml(tmp_path: Path) -> None:
    """Unknown fields are refused."""
    file = tmp_path / "prices.toml"
    file.write_text('[[items]]\nname = "Ops"\nmetric = "operations"\ntiers = [{ from = "0", price = "0.1" }]\n')
    assert load_price_book(file).items[0].tiers[0].price == "0.1"
    file.write_text("colour = 3\n")
    with pytest.raises(Invalid, match="colour"):
        load_price_book(file)
