"""Write reports: ``index.html`` for the platform, ``tenants/<name>.html`` for each tenant."""

from __future__ import annotations

import hashlib
import re
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.domain.names import check_tenant_name
from tenantq.errors import Invalid, NotFound
from tenantq.pipeline.page.rendering import write_page
from tenantq.pipeline.report.pages import empty_page, platform_page, tenant_page
from tenantq.pipeline.report.queries import PLATFORM, gathered, verification
from tenantq.pipeline.report.sections import Facts, Period

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tenantq.pipeline.lake.lake import Lake

DAYS: Final = 30
"""What a report covers where nothing else is said: so many days up to the newest in the lake."""
DAYS_MAX: Final = 366
LINKS_MAX: Final = 2_000
"""Tenants that the platform's report links to."""


class Written(msgspec.Struct):
    """What was written."""

    first_day: str
    last_day: str
    platform: str  # the platform's report; empty: only a tenant's was asked for
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
) -> Written:
    """Write the reports of all tenants and the platform, or of one tenant. The same lake gives the same bytes.

    NotFound: no run made this lake, or the tenant is not in it. Invalid: the period is none, or too long.
    """
    lake.need(spark, "segments")
    with lake.locked():  # a run that is under way must not change tables between two looks
        period = _period(lake, from_date, to_date)
        if period is None:
            return _write_empty(out, tenant)
        verified = verification(spark, lake, period)
        progress("gathering")
        names: list[str] = []
        platform = Facts(PLATFORM)
        for facts in gathered(spark, lake, period, tenant):
            if facts.subject == PLATFORM:
                platform = facts
                continue
            write_page(out / "tenants" / file_name(facts.subject), tenant_page(facts, period, verified))
            names.append(facts.subject)
            progress(f"tenants {len(names)}")
    if tenant is not None:
        if not names:
            raise NotFound(f"lake {lake.path}: has nothing of tenant {tenant!r} from {period.first} to {period.last}", tenant=tenant)  # fmt: skip
        return Written(period.first, period.last, "", 1, str(out / "tenants"))
    links = [(name, f"tenants/{file_name(name)}") for name in sorted(names)[:LINKS_MAX]]
    write_page(out / "index.html", platform_page(platform, period, verified, links, len(names) - len(links)))
    return Written(period.first, period.last, str(out / "index.html"), len(names), str(out / "tenants"))


def file_name(tenant: str) -> str:
    """Return the name of a tenant's file. What is no tenant's name, which a lake of unknown origin may hold, is hashed."""
    try:
        return f"{check_tenant_name(tenant)}.html"
    except Invalid:
        stem = re.sub(r"[^a-z0-9-]", "", tenant)[:32]
        return f"{stem}.{hashlib.sha256(tenant.encode(errors='surrogatepass')).hexdigest()[:16]}.html"


def _period(lake: Lake, from_date: str, to_date: str) -> Period | None:
    """Return the days to report on; None: the lake has none."""
    tables = ("usage_hourly", "slo_daily", "anomalies", "compliance_soc2")
    known = sorted(_day(name) for table in tables for name in lake.partitions(table, staged=False))
    if not known:
        return None
    last = to_date or max(known[-1], from_date)
    first = from_date or max(known[0], (date.fromisoformat(last) - timedelta(days=DAYS - 1)).isoformat())
    first = min(first, last) if not from_date else first
    if first > last:
        raise Invalid(f"period: from {first} to {last} holds no day")
    if (date.fromisoformat(last) - date.fromisoformat(first)).days >= DAYS_MAX:
        raise Invalid(f"period: from {first} to {last} is longer than {DAYS_MAX} days; ask for less")
    return Period(first, last)


def _day(partition: str) -> str:
    return partition.removeprefix("date=")[:10]


def _write_empty(out: Path, tenant: str | None) -> Written:
    if tenant is not None:
        raise NotFound(f"the lake holds no day yet, so nothing of tenant {tenant!r}", tenant=tenant)
    why = "The lake holds no day yet: the journal that was processed had no rows, or all of it is in quarantine."
    write_page(out / "index.html", empty_page(None, why))
    return Written("", "", str(out / "index.html"), 0, str(out / "tenants"))
