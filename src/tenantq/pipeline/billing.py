"""Billing: closes months, approves corrections, and exports invoice lines."""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec

from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.pipeline.gold.invoice_lines import INVOICE_LINES
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import Approval, ClosedMonth
from tenantq.pipeline.lake.versions import VersionSet
from tenantq.pipeline.price_book import PriceBook
from tenantq.pipeline.usage_events import lago_lines, openmeter_lines, usage_corrections, usage_hours

Format = Literal["csv", "openmeter", "lago"]


def close_month(lake: Lake, period: str, book: PriceBook, by: str, now_ms: int) -> VersionSet:
    """Close a month and return the version set that keeps its tables. Its lines do not change any more.

    Raise NotFound if it has no lines, Conflict if it is closed, Invalid if it has not ended (in UTC) or if its lines were
    computed with other prices.
    """
    today = datetime.fromtimestamp(now_ms / 1_000, UTC).date()
    with lake.locked():
        state = lake.state()
        if period in state.closed:
            raise Conflict(f"month {period}: is already closed")
        if f"period={period}" not in lake.partitions("invoice_lines"):
            raise NotFound(f"month {period}: has no invoice lines in lake {lake.name}")
        if period >= f"{today:%Y-%m}":
            raise Invalid(f"month {period}: has not ended (today is {today}, UTC). Close it after its last day.")
        if state.prices.get(period) != book.digest(period):
            raise Invalid(
                f"month {period}: its lines were computed with another price book. Run the pipeline with this one first."
            )
        number = lake.tables.newest.number + 1
        lake.stage_state(state.with_closed(period, ClosedMonth(by, now_ms, book.in_period(period), number=number)))
        lake.commit()
        return lake.tables.pin(number, f"invoices of {period}")


def corrections(lake: Lake, period: str = "") -> list[dict[str, Any]]:
    """Return the corrections of closed months, or of one. Approvals count at once, also before the next run."""
    lake.settle()
    return _corrections(lake, lake.tables.newest, period)


def approve(lake: Lake, line: str, by: str, now_ms: int) -> dict[str, Any]:
    """Approve a pending correction, and return it. Raise NotFound if no such correction is pending."""
    with lake.locked():
        found = next((one for one in corrections(lake) if one["line"] == line and one["status"] == "pending"), None)
        if found is None:
            raise NotFound(
                f"correction {line}: is not pending. List corrections with tenantq pipeline invoices corrections."
            )
        month = lake.state().closed[found["period"]]
        approval = Approval(found["corrects"], str(found["quantity"]), str(found["amount"]), by, now_ms)
        month = msgspec.structs.replace(month, approvals=[*month.approvals, approval])
        lake.stage_state(lake.state().with_closed(found["period"], month))
        lake.commit()
        return {**found, "status": "approved", "approved_by": by}


def export(lake: Lake, period: str, kind: Format, number: int | None = None) -> Iterator[str]:
    """Yield a month as CSV lines, or as usage events, as of a version set (default: the newest). Raise NotFound."""
    lake.settle()
    used = lake.tables.newest if number is None else lake.tables.find(number)
    if kind == "csv":
        yield from _csv(_rows(lake, used, "invoice_lines", period), _corrections(lake, used, period))
    else:
        fixes = _corrections(lake, used, period) if period in used.state.closed else []
        yield from (openmeter_lines if kind == "openmeter" else lago_lines)(
            usage_hours(lake, _billed_set(lake, used, period, corrected=bool(fixes)), period),
            usage_corrections(used.state, period, fixes),
        )


def _billed_set(lake: Lake, used: VersionSet, period: str, *, corrected: bool) -> VersionSet:
    """Return the version set with the usage of a month's lines. Usage that arrived later is in corrections instead.

    Raise NotFound if the set no longer exists and the month has corrections.
    """
    month = used.state.closed.get(period)
    known = [one for one in lake.tables.sets if month is not None and one.number == month.number]
    if month is None or (not known and not corrected):
        return used
    if not known:
        raise NotFound(
            f"month {period}: version set {month.number}, with which it was closed, no longer exists, because it was "
            "unpinned or a tenant was erased. Its usage events cannot be exported again."
        )
    return known[0]


def _corrections(lake: Lake, used: VersionSet, period: str) -> list[dict[str, Any]]:
    approved = used.state.approvals
    return [
        row if row["line"] not in approved else {**row, "status": "approved", "approved_by": approved[row["line"]].by}
        for row in _rows(lake, used, "invoice_corrections", period)
    ]


def _rows(lake: Lake, used: VersionSet, table: str, period: str) -> list[dict[str, Any]]:
    """Return the rows of a table that is partitioned by month."""
    found: list[dict[str, Any]] = []
    for file in lake.tables.files(table, used.tables.get(table, -1)):
        month = file.partition.removeprefix("period=")
        if not period or month == period:
            rows = lake.tables.rows([lake.tables.local_copy(f"{table}/{file.path}")])
            found += [{**row, "period": month} for row in rows]
    if table == "invoice_lines" and not found:
        raise NotFound(f"month {period}: has no invoice lines in version set {used.number}")
    return found


def _csv(lines: list[dict[str, Any]], fixes: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines, then approved corrections as lines of kind ``correction``."""
    columns = INVOICE_LINES.names
    approved = [
        {
            **one,
            "kind": "correction",
            "unit": "",
            "details": f"corrects {one['corrects']}, approved by {one['approved_by']}",
        }
        for one in fixes
        if one["status"] == "approved"
    ]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in (*lines, *approved):
        writer.writerow({name: f"{value:f}" if isinstance(value, Decimal) else value for name, value in row.items()})
    yield from buffer.getvalue().splitlines(keepends=True)
