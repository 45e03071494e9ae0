"""Billing: closes months, approves corrections, and exports invoice lines and usage events."""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import Approval, ClosedMonth
from tenantq.pipeline.lake.versions import VersionSet
from tenantq.pipeline.price_book import PriceBook
from tenantq.pipeline.schemas import INVOICE_LINES

Format = Literal["csv", "openmeter", "lago"]
_METRICS: Final = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "byte_hours")
_LAGO_EVENTS_MAX: Final = 100  # of a request


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
        lake.stage_state(state.with_closed(period, ClosedMonth(by, now_ms, book.in_period(period))))
        lake.commit()
        return lake.tables.pin(lake.tables.newest.number, f"invoices of {period}")


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
    elif kind == "openmeter":
        yield from (msgspec.json.encode(_cloud_event(one)).decode() + "\n" for one in _hours(lake, used, period))
    else:
        events = (event for one in _hours(lake, used, period) for event in _lago_events(one))
        while batch := list(islice(events, _LAGO_EVENTS_MAX)):
            yield msgspec.json.encode({"events": batch}).decode() + "\n"


def _corrections(lake: Lake, used: VersionSet, period: str) -> list[dict[str, Any]]:
    approved = used.state.approvers
    return [
        row if row["line"] not in approved else {**row, "status": "approved", "approved_by": approved[row["line"]]}
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


def _hours(lake: Lake, used: VersionSet, period: str) -> Iterator[dict[str, Any]]:
    """Yield the usage of each tenant and hour of a month, all queues together."""
    days = [
        file
        for file in lake.tables.files("usage_hourly", used.tables.get("usage_hourly", -1))
        if file.partition.startswith(f"date={period}")
    ]
    if not days:
        raise NotFound(f"month {period}: has no usage in version set {used.number}")
    for file in sorted(days, key=lambda one: one.partition):
        hours: dict[tuple[str, str], dict[str, Any]] = {}
        for row in lake.tables.rows([lake.tables.local_copy(f"usage_hourly/{file.path}")]):
            known = hours.setdefault((row["tenant"], row["hour"]), dict.fromkeys(_METRICS, 0))
            for name in _METRICS:
                known[name] += row[name]
        for (tenant, hour), figures in sorted(hours.items()):
            if tenant:
                yield {"tenant": tenant, "at": f"{file.partition.removeprefix('date=')}T{hour}:00:00Z", **figures}


def _cloud_event(hour: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenMeter event. Its ID is the same each time, so an event that is sent twice counts once."""
    return {
        "specversion": "1.0", "id": f"{hour['tenant']}/{hour['at']}", "source": "tenantq", "type": "tenantq.usage",
        "subject": hour["tenant"], "time": hour["at"], "data": {name: str(hour[name]) for name in _METRICS},
    }  # fmt: skip


def _lago_events(hour: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a Lago event per metric that is not zero, with the metric as its code and the time in Unix seconds."""
    at = int(datetime.fromisoformat(hour["at"]).timestamp())
    for name in _METRICS:
        if hour[name]:
            yield {
                "transaction_id": f"{hour['tenant']}/{hour['at']}/{name}", "external_subscription_id": hour["tenant"],
                "code": name, "timestamp": at, "properties": {"value": f"{hour[name]:f}" if name == "byte_hours" else str(hour[name])},
            }  # fmt: skip
