"""The pages of a report, out of its facts: plots are drawn, totals are added up, templates do the rest."""

from __future__ import annotations

from decimal import Decimal, localcontext
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from tenantq.pipeline.page import number_format
from tenantq.pipeline.page.chart import Level, Series, plot
from tenantq.pipeline.page.rendering import render
from tenantq.pipeline.report.sections import Facts, Growth, InvoiceLine, Period, Service, UsageDay, Verified

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from markupsafe import Markup

_GROWTH_NAMES: Final = {"messages_per_day": "Messages a day", "backlog": "Backlog", "stored_bytes": "Bytes stored"}
_ORDER: Final = ("item", "shared", "minimum", "credit")


def tenant_page(facts: Facts, period: Period, verified: Sequence[Verified]) -> bytes:
    """Return a tenant's report."""
    return render("tenant.html", growth=_growth(facts.growth, period), **_shared(facts, period, verified))


def platform_page(facts: Facts, period: Period, verified: Sequence[Verified], links: Sequence[tuple[str, str]], more: int) -> bytes:  # fmt: skip
    """Return the platform's report; ``links`` lead to tenants' reports, ``more`` are not listed."""
    return render(
        "platform.html", bills=_bills(facts), ahead=facts.growth, growth_names=_GROWTH_NAMES, links=links,
        hrefs=dict(links), more=more, **_shared(facts, period, verified),
    )  # fmt: skip


def empty_page(period: Period | None, why: str) -> bytes:
    """Return a page that says that there is nothing to report, and what to do."""
    return render("empty.html", period=period, why=why)


def _shared(facts: Facts, period: Period, verified: Sequence[Verified]) -> dict[str, Any]:
    days = period.days
    whole = _whole_service(facts.service_days)
    return {
        "facts": facts,
        "period": period,
        "verified": verified,
        "sound": bool(verified) and all(one.status == "pass" for one in verified),
        "usage_plots": _usage_plots(facts.usage, days),
        "service_plots": _service_plots(facts.service_days, days),
        "service": whole,
        "totals": _totals(facts.usage),
        "invoices": _invoices(facts.invoice),
        "seen": {one.severity: one.count for one in facts.seen},
        "evidence": [(name, list(rows)) for name, rows in groupby(facts.evidence, key=lambda one: one.framework)],
    }


def _totals(usage: Sequence[UsageDay]) -> dict[str, float]:
    """Return what the tiles say."""
    names = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "refused", "throttled", "denied")
    sums: dict[str, float] = {name: sum(getattr(day, name) for day in usage) for name in names}
    sums["bytes_stored"] = max((day.bytes_stored for day in usage), default=0)
    sums["peak_backlog"] = max((day.peak_backlog for day in usage), default=0)
    return sums


def _usage_plots(usage: Sequence[UsageDay], days: Sequence[str]) -> list[tuple[str, Markup]]:
    by_day = {one.date: one for one in usage}

    def values(name: str) -> list[float | None]:
        return [float(getattr(by_day[day], name)) if day in by_day else 0.0 for day in days]

    def drawn(title: str, *series: Series, unit: Callable[[float], str] = number_format.short) -> tuple[str, Markup]:
        return title, plot(title, days, series, unit=unit)

    return [
        drawn(
            "Messages a day",
            Series(name="added", values=values("messages_in"), kind="bar", colour=1),
            Series(name="delivered", values=values("messages_out"), kind="line", colour=2),
        ),
        drawn("Operations a day", Series(name="operations", values=values("operations"), kind="bar", colour=3)),
        drawn(
            "Stored at most in a day",
            Series(name="bytes stored", values=values("bytes_stored"), kind="area", colour=5),
            unit=number_format.size,
        ),
        drawn("Largest backlog of a day", Series(name="backlog", values=values("peak_backlog"), kind="area", colour=1)),
        drawn(
            "Bytes a day",
            Series(name="in", values=values("bytes_in"), kind="bar", colour=1),
            Series(name="out", values=values("bytes_out"), kind="line", colour=2),
            unit=number_format.size,
        ),
        drawn(
            "Turned away a day",
            Series(name="throttled", values=values("throttled"), kind="bar", colour=2),
            Series(name="denied", values=values("denied"), kind="bar", colour=4),
            Series(name="refused", values=values("refused"), kind="bar", colour=6),
        ),
    ]


def _whole_service(days: Sequence[Service]) -> Service | None:
    """Return all days as one."""
    if not days:
        return None
    names = ("deliveries", "acked", "slow", "dead", "expired")
    return Service(
        "", "", "", **{name: sum(getattr(day, name) for day in days) for name in names},
        target=max(day.target for day in days), oldest_age_ms=max(day.oldest_age_ms for day in days),
        wait_p99_ms=max((day.wait_p99_ms for day in days if day.wait_p99_ms is not None), default=None),
    )  # fmt: skip


def _service_plots(service: Sequence[Service], days: Sequence[str]) -> list[tuple[str, Markup]]:
    by_day = {one.date: one for one in service}
    found = [by_day.get(day) for day in days]
    kept = [one.kept if one is not None else None for one in found]
    if not any(value is not None for value in kept):
        return []
    target = max(one.target for one in service)
    known = [value for value in kept if value is not None]
    lowest = _floor(min([*known, target]))

    def times(name: str) -> list[float | None]:
        return [getattr(one, name) if one is not None else None for one in found]

    waits = [
        Series(name=f"p{p}", values=times(f"wait_p{p}_ms"), colour=colour) for p, colour in ((50, 3), (95, 1), (99, 2))
    ]
    lost = [
        Series(name=name, values=[float(getattr(one, key)) if one else 0.0 for one in found], kind="bar", colour=colour)
        for name, key, colour in (
            ("too late", "slow", 2),
            ("dead letters", "dead", 4),
            ("expired", "expired", 6),
        )
    ]
    oldest = [Series(name="age", values=times("oldest_age_ms"), kind="area", colour=5)]
    shown = [Series(name="in time and not lost", values=kept, colour=3)]
    level = [Level(name=f"target {number_format.percent(target)}", value=target)]
    titles = ("In time and not lost", "Wait of the slowest queue", "Missed a day", "Oldest message at the end of a day")
    return [
        (
            titles[0],
            plot(titles[0], days, shown, unit=number_format.percent, levels=level, lowest=lowest, highest=1.0),
        ),
        (titles[1], plot(titles[1], days, waits, unit=number_format.duration, step=number_format.duration_step)),
        (titles[2], plot(titles[2], days, lost)),
        (titles[3], plot(titles[3], days, oldest, unit=number_format.duration, step=number_format.duration_step)),
    ]


def _floor(share: float) -> float:
    """Return where an axis of shares begins, so that what is missing can be seen: a round number below."""
    for floor in (0.998, 0.99, 0.98, 0.96, 0.9, 0.8, 0.6):
        if share > floor + (1 - floor) / 10:
            return floor
    return 0.0


def _invoices(lines: Sequence[InvoiceLine]) -> list[dict[str, Any]]:
    """Return the invoice of each month, the newest first, with totals by currency that are the sums of their lines."""
    found = []
    with localcontext() as context:
        context.prec = 60
        for month, rows in groupby(lines, key=lambda line: line.period):
            mine = sorted(rows, key=lambda line: _ORDER.index(line.kind) if line.kind in _ORDER else len(_ORDER))
            totals: dict[str, Decimal] = {}
            for line in mine:
                totals[line.currency] = totals.get(line.currency, Decimal(0)) + Decimal(line.amount)
            found.append({"month": month, "lines": mine, "totals": {name: str(sum) for name, sum in totals.items()}})
    return found[::-1]


def _bills(facts: Facts) -> list[tuple[str, list[Any]]]:
    return [(month, list(rows)) for month, rows in groupby(facts.bills, key=lambda one: one.period)][::-1]


def _growth(rows: Sequence[Growth], period: Period) -> list[dict[str, Any]]:
    """Return each metric's newest trend, and a plot of the values with the trend's line and the quota."""
    found = []
    days = period.days
    for metric in _GROWTH_NAMES:
        mine = {row.date: row for row in rows if row.metric == metric}
        if not mine:
            continue
        last = mine[max(mine)]
        unit = number_format.size if metric == "stored_bytes" else number_format.short
        series = [
            Series(name="observed", values=[mine[day].last_value if day in mine else None for day in days], colour=1),
            Series(name="trend", values=_trend(mine, days), colour=2, dashed=True),
        ]
        # A quota far above would press the curve flat; the words beside the plot tell it.
        most = max(row.last_value for row in mine.values())
        near = last.quota is not None and last.quota <= 3 * max(most, 1.0)
        levels = [Level(name=f"quota {unit(last.quota)}", value=float(last.quota))] if near and last.quota else []
        title = _GROWTH_NAMES[metric]
        found.append(
            {"title": title, "plot": plot(title, days, series, unit=unit, levels=levels), "last": last, "unit": unit}
        )
    return found


def _trend(rows: Mapping[str, Growth], days: Sequence[str]) -> list[float | None]:
    """Return the newest line over the days it was fitted to; it goes through their mean at their middle."""
    last = rows[max(rows)]
    fitted = [days.index(day) for day in sorted(rows)[-last.days :]]
    if last.days < 2:
        return [None] * len(days)
    whole = len(fitted) == last.days  # else it was fitted to days before the period as well
    middle = sum(fitted) / len(fitted) if whole else fitted[-1] - (last.days - 1) / 2
    return [
        max(last.mean + last.trend_per_day * (at - middle), 0.0) if fitted[0] <= at <= fitted[-1] else None
        for at in range(len(days))
    ]
