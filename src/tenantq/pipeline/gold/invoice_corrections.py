"""Gold ``invoice_corrections``: how late data would change the invoice lines of closed months, and what was approved."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from tenantq.pipeline.gold.invoice_lines import month_lines, months_of
from tenantq.pipeline.lake.state import ClosedMonth
from tenantq.pipeline.schemas import MONEY, PRICE, TEXT, table_columns

INVOICE_CORRECTIONS: Final = table_columns(
    line=TEXT, corrects=TEXT, tenant=TEXT, item=TEXT, metric=TEXT, quantity=PRICE, amount=MONEY, currency=TEXT,
    status=TEXT, approved_by=TEXT, period=TEXT,
)  # fmt: skip


_SCHEMA: Final = to_arrow_schema(INVOICE_CORRECTIONS)


def invoice_corrections(
    usage: DataFrame, lines: DataFrame, closed: Mapping[str, ClosedMonth], erased_usage: Sequence[dict[str, Any]] = ()
) -> DataFrame:
    """Return rows of INVOICE_CORRECTIONS. ``usage`` and ``lines`` must have whole months; only ``closed`` ones count."""
    billed = lines.toArrow().to_pylist()
    usages = months_of(usage)
    found = [
        row
        for period, month in sorted(closed.items())
        for row in month_corrections(
            month, usages.get(period, []), [line for line in billed if line["period"] == period],
            [one for one in erased_usage if one["period"] == period],
        )
    ]  # fmt: skip
    return usage.sparkSession.createDataFrame(pa.Table.from_pylist(found, schema=_SCHEMA), INVOICE_CORRECTIONS)


def month_corrections(
    month: ClosedMonth, tenants: Sequence[dict[str, Any]], billed: Sequence[dict[str, Any]],
    erased: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the corrections of a month: approved ones, and per line the difference that is left, if any.

    A line is what was ``billed`` and its approved corrections. It should be what the month's usage says now.
    """
    before, now = (
        {line["line"]: line for line in given} for given in (billed, month_lines(tenants, month.book, erased))
    )
    found: list[dict[str, Any]] = []
    for line in sorted({*before, *now, *(one.line for one in month.approvals)}):
        known = before.get(line) or now.get(line)
        if known is None:
            continue  # of a tenant that was erased
        approved = [one for one in month.approvals if one.line == line]
        for number, one in enumerate(approved, 1):
            found.append(_row(known, number, Decimal(one.quantity), Decimal(one.amount), one.by))
        quantity, amount = (
            (now[line][name] if line in now else Decimal(0))
            - (before[line][name] if line in before else Decimal(0))
            - sum((Decimal(getattr(one, name)) for one in approved), Decimal(0))
            for name in ("quantity", "amount")
        )
        if amount or quantity:
            found.append(_row(known, len(approved) + 1, quantity, amount, ""))
    return found


def _row(line: Mapping[str, Any], number: int, quantity: Decimal, amount: Decimal, by: str) -> dict[str, Any]:
    return {
        "line": f"{line['line']}/{number}", "corrects": line["line"], "quantity": quantity, "amount": amount,
        **{name: line[name] for name in ("tenant", "item", "metric", "currency", "period")},
        "status": "approved" if by else "pending", "approved_by": by,
    }  # fmt: skip
