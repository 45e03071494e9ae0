"""Writes reports: ``index.html`` for the platform, ``tenants/<name>.html`` for each tenant.

Next to each is one page per standard for auditors, such as ``soc2.html`` and ``tenants/<name>.soc2.html``.
"""

import hashlib
import re
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from tenantq.domain.names import check_tenant_name
from tenantq.errors import Invalid, NotFound
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.page.renderer import write_page
from tenantq.pipeline.report.compliance import STANDARDS, compliance_page
from tenantq.pipeline.report.data import Period, ReportData
from tenantq.pipeline.report.pages import empty_page, platform_page, tenant_page
from tenantq.pipeline.report.queries import PLATFORM, report_data, verification
from tenantq.pipeline.tables import TABLES, day_of

DAYS: Final = 30
"""The length of a report by default, up to the newest day in the lake."""
DAYS_MAX: Final = 366
LINKS_MAX: Final = 2_000
"""Tenants that the platform's report links to."""


class WrittenReports(msgspec.Struct):
    """The pages that were written."""

    first_day: str
    last_day: str
    platform: str  # the platform's report; empty if only a tenant's was requested
    tenants: int
    directory: str


def write_reports(
    spark: SparkSession,
    lake: Lake,
    out: Path,
    *,
    tenant: str | None = None,
    from_date: str = "",
    to_date: str = "",
    progress: Callable[[str], None] = lambda _: None,
) -> WrittenReports:
    """Write the reports of all tenants and the platform, or of one tenant. The same lake gives the same bytes.

    Raise NotFound if no run created this lake or the tenant is not in it, Invalid if the period is empty or too long.
    """
    lake.need(spark, "segments")
    with lake.locked():  # no run may change tables between two queries
        period = _period(lake, from_date, to_date)
        if period is None:
            return _write_empty(out, tenant)
        verified = verification(spark, lake, period)
        progress("gathering")
        names: list[str] = []
        platform = ReportData(PLATFORM)
        for data in report_data(spark, lake, period, tenant):
            if data.subject == PLATFORM:
                platform = data
                continue
            write_page(out / "tenants" / file_name(data.subject), tenant_page(data, period, verified))
            for standard in STANDARDS:
                page = compliance_page(standard, data, period, verified)
                write_page(out / "tenants" / file_name(data.subject, standard.stem), page)
            names.append(data.subject)
            progress(f"tenants {len(names)}")
    if tenant is not None:
        if not names:
            raise NotFound(f"lake {lake.name}: has nothing of tenant {tenant!r} from {period.first} to {period.last}", tenant=tenant)  # fmt: skip
        return WrittenReports(period.first, period.last, "", 1, str(out / "tenants"))
    listed = sorted(names)[:LINKS_MAX]
    links, more = [(name, f"tenants/{file_name(name)}") for name in listed], len(names) - len(listed)
    write_page(out / "index.html", platform_page(platform, period, verified, links, more))
    for standard in STANDARDS:
        links = [(name, f"tenants/{file_name(name, standard.stem)}") for name in listed]
        page = compliance_page(standard, platform, period, verified, links, more)
        write_page(out / f"{standard.stem}.html", page)
    return WrittenReports(period.first, period.last, str(out / "index.html"), len(names), str(out / "tenants"))


def file_name(tenant: str, standard: str = "") -> str:
    """Return the name of a tenant's file, or of that for a standard.

    Invalid tenant names, which a lake of unknown origin may have, are hashed.
    """
    tail = f".{standard}.html" if standard else ".html"
    try:
        return check_tenant_name(tenant) + tail
    except Invalid:
        stem = re.sub(r"[^a-z0-9-]", "", tenant)[:32]
        return f"{stem}.{hashlib.sha256(tenant.encode(errors='surrogatepass')).hexdigest()[:16]}{tail}"


def _period(lake: Lake, from_date: str, to_date: str) -> Period | None:
    """Return the days to report on; None if the lake has no day."""
    tables = [table.name for table in TABLES.values() if table.layer == "gold" and table.partitions == ("date",)]
    known = sorted(day_of(name) for table in tables for name in lake.partitions(table))
    if not known:
        return None
    last = to_date or max(known[-1], from_date)
    first = from_date or min(last, max(known[0], f"{date.fromisoformat(last) - timedelta(days=DAYS - 1)}"))
    if first > last:
        raise Invalid(f"period: from {first} to {last} contains no day")
    if (date.fromisoformat(last) - date.fromisoformat(first)).days >= DAYS_MAX:
        raise Invalid(f"period: from {first} to {last} is longer than {DAYS_MAX} days; ask for less")
    return Period(first, last)


def _write_empty(out: Path, tenant: str | None) -> WrittenReports:
    if tenant is not None:
        raise NotFound(f"tenant {tenant!r}: the lake has no days yet", tenant=tenant)
    why = "The lake has no days yet: the processed journal had no rows, or all of them are in quarantine."
    write_page(out / "index.html", empty_page(why))
    return WrittenReports("", "", str(out / "index.html"), 0, str(out / "tenants"))
