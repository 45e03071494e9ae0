"""Gold ``invoice_lines``: what each tenant owes for a month. Each line is rounded to cents, so totals are exact."""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from tenantq.pipeline.price_book import Item, PriceBook
from tenantq.pipeline.schemas import MONEY, PRICE, TEXT, table_columns

INVOICE_LINES: Final = table_columns(
    line=TEXT, tenant=TEXT, item=TEXT, kind=TEXT, metric=TEXT, quantity=PRICE, unit=PRICE, amount=MONEY,
    currency=TEXT, details=TEXT, period=TEXT,
)  # fmt: skip


_CENT: Final = Decimal("0.01")
_GB: Final = Decimal(1_000_000_000)
_HOUR_MS: Final = Decimal(3_600_000)
_KEPT: Final = Decimal("0.0000000001")
_SCHEMA: Final = to_arrow_schema(INVOICE_LINES)
SUMS: Final = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "byte_ms")


def month_sums(usage: DataFrame) -> DataFrame:
    """Return the usage of each tenant and month. ``usage`` (usage_hourly) must have whole months."""
    months = usage.where(f.col("tenant") != "").groupBy(f.substring("date", 1, 7).alias("period"), "tenant")
    return months.agg(*[f.sum(name).cast("decimal(38,0)").alias(name) for name in SUMS])


def invoice_lines(usage: DataFrame, prices: PriceBook, erased_usage: Sequence[dict[str, Any]] = ()) -> DataFrame:
    """Return rows of INVOICE_LINES. ``usage`` (usage_hourly) must have whole months, and ``prices`` must be checked.

    ``erased_usage`` are the monthly sums of erased tenants. They get no lines, and others do not bear their shares.
    The sums are few and a month's shares depend on all of them, so lines are computed in this process.
    """
    found = [
        line
        for period, tenants in sorted(months_of(usage).items())
        for line in month_lines(tenants, prices, [one for one in erased_usage if one["period"] == period])
    ]
    return usage.sparkSession.createDataFrame(pa.Table.from_pylist(found, schema=_SCHEMA), INVOICE_LINES)


def months_of(usage: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return the sums of all tenants by month."""
    months: dict[str, list[dict[str, Any]]] = {}
    for row in month_sums(usage).toArrow().to_pylist():
        months.setdefault(row["period"], []).append(row)
    return months


def month_lines(
    tenants: Sequence[dict[str, Any]], book: PriceBook, erased: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the lines of one month from the sums of its ``tenants``. All arithmetic is decimal."""
    if not tenants:
        return []
    book = book.in_period(tenants[0]["period"])
    with localcontext() as context:
        context.prec = 60
        found: list[dict[str, Any]] = []
        ordered = sorted(tenants, key=lambda one: str(one["tenant"]))
        for currency in dict.fromkeys(book.currency_of(one["tenant"]) for one in ordered):
            payers = [one for one in ordered if book.currency_of(one["tenant"]) == currency]
            found += _currency_lines(payers, book, currency, erased if currency == book.currency else ())
        return sorted(found, key=lambda line: str(line["tenant"]))


def _currency_lines(
    payers: Sequence[dict[str, Any]], book: PriceBook, currency: str, erased: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the lines of the tenants that pay in a currency. Shared costs in it are divided among them."""
    found: list[dict[str, Any]] = []
    shared = [one for one in book.shared if (one.currency or book.currency) == currency]
    shares = {one.name: _allocate([*payers, *erased], one.by, Decimal(one.amount)) for one in shared}
    for position, sums in enumerate(payers):
        mine = [_item_line(sums, item, currency) for item in book.items if (item.currency or book.currency) == currency]
        for one in shared:
            details = f"share of {one.amount} by {one.by}"
            amount, quantity = shares[one.name][position], _quantity(sums, one.by)
            mine.append(_line(sums, currency, one.name, "shared", one.by, amount, details, quantity))
        found += [*mine, *_minimum_and_credits(sums, mine, book, currency)]
    return found


def _minimum_and_credits(
    sums: dict[str, Any], mine: list[dict[str, Any]], book: PriceBook, currency: str
) -> list[dict[str, Any]]:
    extra: list[dict[str, Any]] = []
    total = sum((line["amount"] for line in mine), Decimal(0))
    minimum = book.minimum_of(sums["tenant"])
    missing = Decimal(minimum).quantize(_CENT) - total
    if missing > 0:
        extra.append(_line(sums, currency, "Minimum", "minimum", "", missing, f"up to {minimum}"))
        total += missing
    for number, credit in enumerate(book.credits, 1):
        if credit.tenant == sums["tenant"] and credit.period == sums["period"]:
            given = min(total, Decimal(credit.amount))
            total -= given
            extra.append(_line(sums, currency, f"Credit {number}", "credit", "", -given, credit.reason))
    return extra


def _item_line(sums: dict[str, Any], item: Item, currency: str) -> dict[str, Any]:
    quantity, unit = _quantity(sums, item.metric), Decimal(item.unit)
    exact, parts = Decimal(0), []
    for tier in item.tiers:
        start = Decimal(tier.start)
        end = Decimal(tier.upto) if tier.upto is not None else quantity
        inside = max(Decimal(0), min(quantity, end) - start)
        if inside:
            exact += inside * Decimal(tier.price) / unit
            parts.append(f"{inside.quantize(_KEPT).normalize():f} at {tier.price}")
    amount = exact.quantize(_CENT, ROUND_HALF_EVEN)
    return _line(sums, currency, item.name, "item", item.metric, amount, "; ".join(parts), quantity, unit)


def _quantity(sums: dict[str, Any], metric: str) -> Decimal:
    if metric == "gb_hours":
        return Decimal(sums["byte_ms"]) / _HOUR_MS / _GB
    if metric in {"gb_in", "gb_out"}:
        return Decimal(sums[metric.replace("gb", "bytes")]) / _GB
    return Decimal(sums[metric])


def _allocate(tenants: Sequence[dict[str, Any]], metric: str, amount: Decimal) -> list[Decimal]:
    """Divide ``amount`` into cents that add up to it: the largest remainders get the cents that are left over."""
    weights = [_quantity(sums, metric) for sums in tenants]
    whole = sum(weights, Decimal(0))
    if whole == 0:
        weights, whole = [Decimal(1)] * len(tenants), Decimal(len(tenants))
    exact = [amount * 100 * weight / whole for weight in weights]
    cents = [int(one) for one in exact]
    left = int(amount * 100) - sum(cents)
    for position in sorted(range(len(exact)), key=lambda at: (cents[at] - exact[at], at))[:left]:
        cents[position] += 1
    return [Decimal(one) * _CENT for one in cents]


def _line(
    sums: dict[str, Any], currency: str, item: str, kind: str, metric: str, amount: Decimal, details: str,
    quantity: Decimal = Decimal(0), unit: Decimal = Decimal(1),
) -> dict[str, Any]:  # fmt: skip
    return {
        "line": f"{sums['period']}/{sums['tenant']}/{item}", "tenant": sums["tenant"], "item": item, "kind": kind,
        "metric": metric, "quantity": quantity.quantize(_KEPT), "unit": unit.quantize(_KEPT), "amount": amount,
        "currency": currency, "details": details, "period": sums["period"],
    }  # fmt: skip
