"""Usage events for billing services: the usage of each tenant and hour, then approved corrections of a closed month.

OpenMeter and Lago accept an event once, by its ID, and never change it. So IDs do not depend on the export, and a correction
is an event of its own, with a negative quantity if the line was too high. It counts when it was approved, because the service
has already invoiced the closed month. Lago refuses a whole request if it already has one of the events. So a request
has events of one hour or one correction, and a later export does not mix known and new events.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby, islice
from typing import Any, Final

import msgspec

from tenantq.errors import NotFound
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.lake.versions import VersionSet
from tenantq.pipeline.price_book import PriceBook

_METRICS: Final = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "byte_hours")
_OF_GB: Final = {"gb_in": "bytes_in", "gb_out": "bytes_out", "gb_hours": "byte_hours"}
"""The metric of events in which a metric of the price book is counted."""
_GB: Final = 1_000_000_000
_LAGO_EVENTS_MAX: Final = 100  # per request


class BilledUsage(msgspec.Struct, frozen=True):
    """Figures of a tenant that one event, or one per metric, reports."""

    id: str
    tenant: str
    at: datetime
    figures: dict[str, Decimal]
    corrects: str = ""  # the invoice line that it corrects


def usage_hours(lake: Lake, used: VersionSet, period: str) -> Iterator[BilledUsage]:
    """Yield the usage of each tenant and hour of a month, all queues together, by hour. Raise NotFound without usage."""
    days = [
        file
        for file in lake.tables.files("usage_hourly", used.tables.get("usage_hourly", -1))
        if file.partition.startswith(f"date={period}")
    ]
    if not days:
        raise NotFound(
            f"month {period}: has no usage in version set {used.number}. Run 'tenantq pipeline run' over the journal of that month first."
        )
    for file in sorted(days, key=lambda one: one.partition):
        hours: dict[tuple[str, str], dict[str, Decimal]] = {}
        for row in lake.tables.rows([lake.tables.local_copy(f"usage_hourly/{file.path}")]):
            known = hours.setdefault((row["hour"], row["tenant"]), dict.fromkeys(_METRICS, Decimal(0)))
            for name in _METRICS:
                known[name] += row[name]
        for (hour, tenant), figures in sorted(hours.items()):
            if tenant:
                at = datetime.fromisoformat(f"{file.partition.removeprefix('date=')}T{hour}:00:00Z")
                yield BilledUsage(f"{tenant}/{_text(at)}", tenant, at, figures)


def usage_corrections(state: LakeState, period: str, fixes: Iterable[dict[str, Any]]) -> Iterator[BilledUsage]:
    """Yield a month's approved corrections, in order of their approval.

    Shares of common costs and amounts without a quantity are no usage. If several items count one metric, the first one
    in the price book counts.
    """
    approvals = state.approvals
    approved = [one for one in fixes if one["line"] in approvals]
    for row in sorted(approved, key=lambda one: (approvals[one["line"]].at_ms, one["line"])):
        metric = _OF_GB.get(row["metric"], row["metric"])
        if not row["quantity"] or row["item"] != _counting_item(state.closed[period].book, row):
            continue
        figures = {
            **dict.fromkeys(_METRICS, Decimal(0)),
            metric: row["quantity"] * (_GB if row["metric"] in _OF_GB else 1),
        }
        at = datetime.fromtimestamp(approvals[row["line"]].at_ms // 1_000, UTC)
        yield BilledUsage(row["line"], row["tenant"], at, figures, row["corrects"])


def _counting_item(book: PriceBook, row: dict[str, Any]) -> str | None:
    """Return the first item with the metric and currency of a line."""
    names = (
        item.name
        for item in book.items
        if item.metric == row["metric"] and (item.currency or book.currency) == row["currency"]
    )
    return next(names, None)


def openmeter_lines(hours: Iterable[BilledUsage], corrections: Iterable[BilledUsage]) -> Iterator[str]:
    """Yield a CloudEvent per line, with all metrics."""
    for usage in (*hours, *corrections):
        data = {name: _number(value) for name, value in usage.figures.items()}
        event = {
            "specversion": "1.0", "id": usage.id, "source": "tenantq", "type": "tenantq.usage", "subject": usage.tenant,
            "time": _text(usage.at), "data": {**data, "corrects": usage.corrects} if usage.corrects else data,
        }  # fmt: skip
        yield msgspec.json.encode(event).decode() + "\n"


def lago_lines(hours: Iterable[BilledUsage], corrections: Iterable[BilledUsage]) -> Iterator[str]:
    """Yield a request body per line, for Lago's batch endpoint."""
    yield from _requests(hours)
    for usage in corrections:
        yield from _requests([usage])


def _requests(hours: Iterable[BilledUsage]) -> Iterator[str]:
    for _, usages in groupby(hours, key=lambda one: one.at):
        events = (event for usage in usages for event in _lago_events(usage))
        while batch := list(islice(events, _LAGO_EVENTS_MAX)):
            yield msgspec.json.encode({"events": batch}).decode() + "\n"


def _lago_events(usage: BilledUsage) -> Iterator[dict[str, Any]]:
    """Yield an event per metric that is not zero, with the metric as its code and the time in Unix seconds."""
    for name, value in usage.figures.items():
        if value:
            properties = {"value": _number(value)}
            yield {
                "transaction_id": f"{usage.id}/{name}", "external_subscription_id": usage.tenant, "code": name,
                "timestamp": int(usage.at.timestamp()),
                "properties": {**properties, "corrects": usage.corrects} if usage.corrects else properties,
            }  # fmt: skip


def _number(value: Decimal) -> str:
    """Return a number without an exponent, which not every service can read."""
    return f"{value.normalize():f}"


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
