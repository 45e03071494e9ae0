"""The price book: what is charged for. It is read from TOML and checked before anything is computed with it.

currency = "EUR"                      # of tenants that are not listed below
minimum = "5.00"                      # of a tenant's month, before credits, in this currency

[[items]]
name = "Operations"
metric = "operations"                 # operations, messages_in, messages_out, gb_in, gb_out, gb_hours
unit = "1000"                         # the price is for this many
tiers = [{ from = "0", upto = "1000000", price = "0" }, { from = "1000000", price = "0.40" }]
currency = "EUR"                      # default: the book's; tenants pay items in their own currency
since = "2030-01"                     # first month; another item of the same name may apply before
before = "2031-01"                    # first month in which it no longer applies

[[tenants]]
name = "initech"
currency = "USD"
minimum = "6.00"

[[credits]]
tenant = "acme"
period = "2030-01"
amount = "10.00"
reason = "outage of 3 January"

[[shared]]
name = "Platform"
period = "2030-01"
amount = "100.00"
by = "operations"                     # each tenant's share of this
"""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from tenantq.errors import Invalid
from tenantq.runtime.toml_files import read_toml

METRICS: Final = ("operations", "messages_in", "messages_out", "gb_in", "gb_out", "gb_hours")


class Tier(msgspec.Struct, frozen=True, rename={"start": "from"}, forbid_unknown_fields=True):
    """The price of the part of a month's quantity between two bounds."""

    price: str
    start: str = "0"
    upto: str | None = None


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that is charged by quantity."""

    name: str
    metric: str
    tiers: list[Tier]
    unit: str = "1"
    currency: str = ""  # empty: the book's
    since: str = ""  # months; empty: without bound
    before: str = ""

    def holds_in(self, period: str) -> bool:
        """Return whether it applies to a month."""
        return self.since <= period and (not self.before or period < self.before)


class TenantTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What differs for a tenant."""

    name: str
    currency: str = ""  # empty: the book's
    minimum: str | None = None  # None: the book's, if the currency is the book's


class Credit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A credit to a tenant, in its currency."""

    tenant: str
    period: str
    amount: str
    reason: str = ""


class SharedCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cost that all tenants share by a metric."""

    name: str
    amount: str
    by: str
    period: str | None = None  # None: every month
    currency: str = ""  # empty: the book's; tenants of this currency share it


class PriceBook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All prices."""

    currency: str = "EUR"
    minimum: str = "0"
    items: list[Item] = []
    credits: list[Credit] = []
    shared: list[SharedCost] = []
    tenants: list[TenantTerms] = []

    def currency_of(self, tenant: str) -> str:
        """Return the currency in which a tenant pays."""
        return next((one.currency for one in self.tenants if one.name == tenant and one.currency), self.currency)

    def minimum_of(self, tenant: str) -> str:
        """Return the least that a tenant pays for a month."""
        given = next((one.minimum for one in self.tenants if one.name == tenant and one.minimum is not None), None)
        return given if given is not None else self.minimum if self.currency_of(tenant) == self.currency else "0"

    def in_period(self, period: str) -> PriceBook:
        """Return what the book says about one month."""
        return msgspec.structs.replace(
            self,
            items=[item for item in self.items if item.holds_in(period)],
            credits=[credit for credit in self.credits if credit.period == period],
            shared=[shared for shared in self.shared if shared.period in {None, period}],
        )

    def digest(self, period: str) -> str:
        """Return a hash of what the book says about a month. If it changes, the month is computed again."""
        return hashlib.sha256(msgspec.json.encode(self.in_period(period), order="sorted")).hexdigest()


DEFAULT: Final = PriceBook(
    items=[
        Item("Operations", "operations", [Tier("0.40")], "1000000"),
        Item("Storage", "gb_hours", [Tier("0.0001")]),
    ]
)
"""The default, which gives new users some lines to look at."""


def load_price_book(file: Path | None) -> PriceBook:
    """Read and check a book. Raises Invalid."""
    if file is None:
        return check_price_book(DEFAULT, "the default price book")
    return check_price_book(read_toml(file, PriceBook, "price book"), f"price book {file}")


def check_price_book(book: PriceBook, where: str) -> PriceBook:
    """Return ``book`` if tiers and months have neither gaps nor overlaps and all numbers are valid, else raise Invalid."""
    _number(f"{where}: minimum", book.minimum, places=2)
    named = [(item.name, item.currency or book.currency) for item in book.items]
    names = [*dict.fromkeys(named), *((shared.name, shared.currency or book.currency) for shared in book.shared)]
    for name, currency in names:
        if not name or names.count((name, currency)) > 1 or "/" in name:
            raise Invalid(f"{where}: item {name!r}: names must be unique, not empty, and without '/'")
        if name == "Minimum" or re.fullmatch(r"Credit \d+", name):
            raise Invalid(
                f"{where}: item {name!r}: the name is reserved for minimums and credits. Choose another name."
            )
        same = [item for item, known in zip(book.items, named, strict=True) if known == (name, currency)]
        _check_times(f"{where}: item {name!r}", same)
    _check_currencies(where, book)
    for item in book.items:
        place = f"{where}: item {item.name!r}"
        _metric(place, item.metric)
        if _number(f"{place}: unit", item.unit) <= 0:
            raise Invalid(f"{place}: unit must be more than 0")
        _check_tiers(place, item.tiers)
    for credit in book.credits:
        place = f"{where}: credit of {credit.tenant!r}"
        _period(f"{place}: period", credit.period)
        _number(place, credit.amount, places=2)
    for shared in book.shared:
        place = f"{where}: shared {shared.name!r}"
        if shared.period is not None:
            _period(f"{place}: period", shared.period)
        _metric(place, shared.by)
        _number(place, shared.amount, places=2)
    return book


def _check_currencies(where: str, book: PriceBook) -> None:
    terms = [one.name for one in book.tenants]
    for one in book.tenants:
        place = f"{where}: tenant {one.name!r}"
        if not one.name or terms.count(one.name) > 1:
            raise Invalid(f"{place}: names must be unique and not empty")
        if one.minimum is not None:
            _number(f"{place}: minimum", one.minimum, places=2)
    given: list[str] = [one.currency for one in book.items]
    given += [one.currency for one in book.shared] + [one.currency for one in book.tenants]
    for currency in [book.currency, *filter(None, given)]:
        if not re.fullmatch(r"[A-Z]{3}", currency):
            raise Invalid(f"{where}: currency: {currency!r} must be three capital letters such as EUR")


def _check_times(place: str, items: list[Item]) -> None:
    """Raise Invalid if months of items with one name overlap or leave a gap."""
    for item in items:
        for name, month in (("since", item.since), ("before", item.before)):
            if month:
                _period(f"{place}: {name}", month)
        if item.before and item.before <= item.since:
            raise Invalid(f"{place}: since {item.since} and before {item.before} contain no month")
    ordered = sorted(items, key=lambda item: item.since)
    for one, other in pairwise(ordered):
        if not one.before or one.before > other.since:
            raise Invalid(f"{place}: an overlap: two prices apply in {other.since or one.since or 'every month'}")
        if one.before < other.since:
            raise Invalid(f"{place}: a gap: no price applies from {one.before} to {other.since}")


def _check_tiers(place: str, tiers: list[Tier]) -> None:
    if not tiers:
        raise Invalid(f"{place}: needs at least one tier")
    reached = Decimal(0)
    for position, tier in enumerate(tiers):
        start = _number(f"{place}: from", tier.start)
        _number(f"{place}: price", tier.price)
        if start != reached:
            what = "a gap" if start > reached else "an overlap"
            raise Invalid(f"{place}: {what} between {reached} and {start}: a tier begins where the one before ends")
        last = position == len(tiers) - 1
        if (tier.upto is None) != last:
            raise Invalid(f"{place}: every tier but the last needs upto, and the last has none: else there is a gap")
        if tier.upto is not None:
            reached = _number(f"{place}: upto", tier.upto)
            if reached <= start:
                raise Invalid(f"{place}: a tier from {start} upto {reached} is empty")


def _metric(place: str, metric: str) -> None:
    if metric not in METRICS:
        raise Invalid(f"{place}: unknown metric {metric!r}; must be one of {', '.join(METRICS)}")


def _period(place: str, text: str) -> None:
    if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", text):
        raise Invalid(f"{place}: {text!r} must be a month such as 2030-01")


def _number(place: str, text: str, places: int = 10) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise Invalid(f"{place}: {text!r} must be a number") from error
    exponent = number.as_tuple().exponent
    if not number.is_finite() or number < 0 or not isinstance(exponent, int) or -exponent > places:
        raise Invalid(f"{place}: {text} must be 0 or more, with at most {places} places")
    return number
