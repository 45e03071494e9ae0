"""The pages of reports: arranges data and draws charts; the templates do the rest."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal, localcontext
from itertools import groupby
from typing import Any, Final

from markupsafe import Markup

from tenantq.pipeline.page import number_format
from tenantq.pipeline.page.chart import ReferenceLine, Series, draw_chart
from tenantq.pipeline.page.renderer import render
from tenantq.pipeline.report.data import Period, ReportData, ReportRow, service_level

_GROWTH_NAMES: Final = {"messages_per_day": "Messages per day", "backlog": "Backlog", "stored_bytes": "Bytes stored"}
_ORDER: Final = ("item", "shared", "minimum", "credit")
_REJECTED: Final = ("refused", "throttled", "denied")
_SUMS: Final = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", *_REJECTED)
_USAGE: Final = {True: "usage_hours", False: "usage"}
_USAGE_CHARTS: Final[tuple[tuple[str, Any, tuple[tuple[str, str, Any, int], ...]], ...]] = (
    ("Messages {each}", number_format.short, (("added", "messages_in", "bar", 1), ("delivered", "messages_out", "line", 2))),
    ("Operations {each}", number_format.short, (("operations", "operations", "bar", 3),)),
    ("Bytes stored", number_format.size, (("bytes stored", "bytes_stored", "area", 5),)),
    ("Peak backlog", number_format.short, (("backlog", "peak_backlog", "area", 1),)),
    ("Bytes {each}", number_format.size, (("in", "bytes_in", "bar", 1), ("out", "bytes_out", "line", 2))),
    ("Rejected {each}", number_format.short, (("throttled", "throttled", "bar", 2), ("denied", "denied", "bar", 4), ("refused", "refused", "bar", 6))),
)  # fmt: skip
"""Title, unit, and the series: name, column, kind, colour."""


def tenant_page(data: ReportData, period: Period, verified: Sequence[ReportRow]) -> bytes:
    """Return a tenant's report."""
    return render("tenant.html", growth=_growth(data.sections["growth"], period), **_common(data, period, verified))


def platform_page(data: ReportData, period: Period, verified: Sequence[ReportRow], links: Sequence[tuple[str, str]], more: int) -> bytes:  # fmt: skip
    """Return the platform's report. ``links`` lead to tenants' reports; ``more`` of them are not listed."""
    bills = [(month, list(rows)) for month, rows in groupby(data.sections["bills"], key=lambda one: one["period"])]
    return render(
        "platform.html", bills=bills[::-1], ahead=data.sections["growth"], growth_names=_GROWTH_NAMES,
        growth_unit=_growth_unit, links=links, hrefs=dict(links), more=more, **_common(data, period, verified),
    )  # fmt: skip


def empty_page(why: str) -> bytes:
    """Return a page that says why there is nothing to report, and what to do."""
    return render("empty.html", why=why)


def _common(data: ReportData, period: Period, verified: Sequence[ReportRow]) -> dict[str, Any]:
    """Return the values that both templates use."""
    rows, days = data.sections, period.days
    totals = {name: sum(row[name] for row in rows["usage"]) for name in _SUMS}
    peaks = {name: max((row[name] for row in rows["usage"]), default=0) for name in ("bytes_stored", "peak_backlog")}
    usage = {
        f"{row['date']} {row['hour']}:00" if period.is_short else row["date"]: row
        for row in rows[_USAGE[period.is_short]]
    }
    places = _hours(sorted(usage)) if period.is_short else days
    axis: dict[str, Any] = {"label": lambda place: place[11:], "what": "hours"} if period.is_short else {}
    each = "per hour" if period.is_short else "per day"
    return {
        "changes": _changes(usage, places, rows["service_days"], each),
        "facts": rows | {"subject": data.subject},
        "period": period,
        "verified": verified,
        "sound": bool(verified) and all(row["status"] == "pass" for row in verified),
        "usage_plots": [
            (
                title.format(each=each),
                draw_chart(
                    title.format(each=each), places, [_series(usage, places, *one) for one in series], unit=unit, **axis
                ),
            )
            for title, unit, series in _USAGE_CHARTS
        ],
        "service_plots": _service_plots(rows["service_days"], days),
        "service": _whole_service(rows["service_days"]),
        "totals": totals | peaks,
        "invoices": _invoices(rows["invoice"]),
        "seen": {row["severity"]: row["count"] for row in rows["seen"]},
        "evidence": [
            (name, list(found)) for name, found in groupby(rows["evidence"], key=lambda one: one["framework"])
        ],
    }


def _series(
    rows: Mapping[str, ReportRow], days: Sequence[str], name: str, column: str, kind: Any, colour: int
) -> Series:
    """Return a column by day; days without a row count as 0."""
    values = [float(rows[day][column]) if day in rows else 0.0 for day in days]
    return Series(name=name, values=values, kind=kind, colour=colour)


def _hours(known: Sequence[str]) -> list[str]:
    """Return every hour from the first to the last known one."""
    if not known:
        return []
    start, end = (datetime.fromisoformat(one) for one in (known[0], known[-1]))
    return [
        f"{start + timedelta(hours=at):%Y-%m-%d %H:00}" for at in range(int((end - start) / timedelta(hours=1)) + 1)
    ]


def _changes(
    usage: Mapping[str, ReportRow], places: Sequence[str], service: Sequence[ReportRow], each: str
) -> dict[str, Any] | None:
    """Compare the second half of a report with its first half; None if that is too short."""
    half = len(places) // 2
    if not half:
        return None
    parts = places[:half], places[-half:]

    def means(*columns: str) -> tuple[float, ...]:
        return tuple(
            sum(usage[place][name] for place in part if place in usage for name in columns) / half for part in parts
        )

    figures = {
        f"Operations {each}": means("operations"), f"Messages added {each}": means("messages_in"),
        f"Rejected {each}": means(*_REJECTED),
    }  # fmt: skip
    if parts[0][-1][:10] == parts[1][0][:10]:
        service = []  # it is known by day, and the two halves share a day
    kept = [_whole_service([row for row in service if part[0][:10] <= row["date"] <= part[-1][:10]]) for part in parts]
    return {"from": parts[1][0], "to": parts[1][-1], "figures": figures, "kept": [one and one["kept"] for one in kept]}


def _whole_service(days: Sequence[ReportRow]) -> ReportRow | None:
    """Return all days as one row."""
    if not days:
        return None
    sums: ReportRow = {
        name: sum(day[name] for day in days) for name in ("deliveries", "acked", "slow", "dead", "expired")
    }
    sums["target"] = max(day["target"] for day in days)
    return sums | service_level(sums)


def _service_plots(service: Sequence[ReportRow], days: Sequence[str]) -> list[tuple[str, Markup]]:
    by_day = {row["date"]: row for row in service}
    known = [row["kept"] for row in service if row["kept"] is not None]
    if not known:
        return []
    target = max(row["target"] for row in service)

    def values(column: str) -> list[float | None]:
        return [by_day[day][column] if day in by_day else None for day in days]

    waits = [Series(name=f"p{p}", values=values(f"wait_p{p}_ms"), colour=c) for p, c in ((50, 3), (95, 1), (99, 2))]
    names = (("too late", "slow", 2), ("dead letters", "dead", 4), ("expired", "expired", 6))
    lost = [_series(by_day, days, name, column, "bar", colour) for name, column, colour in names]
    oldest = [Series(name="age", values=values("oldest_age_ms"), kind="area", colour=5)]
    shown = [Series(name="in time and not lost", values=values("kept"), colour=3)]
    level = [ReferenceLine(name=f"target {number_format.percent(target)}", value=target)]
    times: dict[str, Any] = {"unit": number_format.duration, "step": number_format.duration_step}
    shares = {"unit": number_format.percent, "levels": level, "lowest": _floor(min([*known, target])), "highest": 1.0}
    charts: list[tuple[str, list[Series], dict[str, Any]]] = [
        ("In time and not lost", shown, shares),
        ("Wait of the slowest queue", waits, times),
        ("Missed per day", lost, {}),
        ("Oldest message at the end of the day", oldest, times),
    ]
    return [(title, draw_chart(title, days, series, **how)) for title, series, how in charts]


def _floor(share: float) -> float:
    """Return a round start for an axis of shares, near enough that the missing share is visible."""
    for floor in (0.998, 0.99, 0.98, 0.96, 0.9, 0.8, 0.6):
        if share > floor + (1 - floor) / 10:
            return floor
    return 0.0


def _invoices(lines: Sequence[ReportRow]) -> list[dict[str, Any]]:
    """Return the invoice of each month, the newest first, with totals by currency that are the sums of their lines."""
    found = []
    with localcontext() as context:
        context.prec = 60
        for month, rows in groupby(lines, key=lambda line: line["period"]):
            mine = sorted(rows, key=lambda line: (*_ORDER, line["kind"]).index(line["kind"]))
            totals: dict[str, Decimal] = {}
            for line in mine:
                totals[line["currency"]] = totals.get(line["currency"], Decimal(0)) + Decimal(line["amount"])
            found.append({"month": month, "lines": mine, "totals": {name: str(sum) for name, sum in totals.items()}})
    return found[::-1]


def _growth_unit(metric: str) -> Callable[[float], str]:
    return number_format.size if metric == "stored_bytes" else number_format.short


def _growth(rows: Sequence[ReportRow], period: Period) -> list[dict[str, Any]]:
    """Return the newest trend of each metric, and a chart of the values with the trend and the quota."""
    found = []
    days = period.days
    for metric, title in _GROWTH_NAMES.items():
        mine = {row["date"]: row for row in rows if row["metric"] == metric}
        if not mine:
            continue
        last = mine[max(mine)]
        unit = _growth_unit(metric)
        observed = [mine[day]["last_value"] if day in mine else None for day in days]
        series = [
            Series(name="observed", values=observed, colour=1),
            Series(name="trend", values=_trend(mine, days), colour=2, dashed=True),
        ]
        # A quota far above would flatten the curve; the table next to the chart has it.
        near = last["quota"] and last["quota"] <= 3 * max(1.0, *(row["last_value"] for row in mine.values()))
        levels = [ReferenceLine(name=f"quota {unit(last['quota'])}", value=float(last["quota"]))] if near else []
        chart = draw_chart(title, days, series, unit=unit, levels=levels)
        found.append({"title": title, "plot": chart, "last": last, "unit": unit})
    return found


def _trend(rows: Mapping[str, ReportRow], days: Sequence[str]) -> list[float | None]:
    """Return the newest trend line over the days it was fitted to. It passes through their mean at their middle."""
    last = rows[max(rows)]
    count = last["days"]
    if count < 2:
        return [None] * len(days)
    fitted = [days.index(day) for day in sorted(rows)[-count:]]
    whole = len(fitted) == count  # otherwise it was fitted to days before the period as well
    middle = sum(fitted) / len(fitted) if whole else fitted[-1] - (count - 1) / 2
    return [
        max(last["mean"] + last["trend_per_day"] * (at - middle), 0.0) if fitted[0] <= at <= fitted[-1] else None
        for at in range(len(days))
    ]
