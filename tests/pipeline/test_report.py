"""Reports: complete and readable in a browser, exact, reproducible, and without data of other tenants."""

from __future__ import annotations

import hashlib
import json
import re
from decimal import Decimal
from html.parser import HTMLParser
from itertools import product
from typing import TYPE_CHECKING

import pytest

from tenantq.cli.command_line import run as command_line
from tenantq.errors import Invalid, NotFound
from tenantq.pipeline.bronze.segments import SEGMENTS
from tenantq.pipeline.gold.compliance_evidence import COMPLIANCE
from tenantq.pipeline.gold.usage_hourly import USAGE_HOURLY
from tenantq.pipeline.report.compliance import STANDARDS, compliance_page
from tenantq.pipeline.report.data import Period, ReportData
from tenantq.pipeline.report.pages import platform_page
from tenantq.pipeline.report.queries import verification
from tenantq.pipeline.report.writer import file_name, write_reports
from tests.pipeline.chromium import Chromium
from tests.pipeline.platform_journal import HOSTILE_QUEUE, HOSTILE_TENANT, TENANTS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tenantq.pipeline.lake.lake import Lake


class Elements(HTMLParser):
    """The elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: set[str] = set()
        self.values: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in {"href", "src"}:
                self.links.add(value or "")
            if (tag, name) == ("data", "value"):
                self.values.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def reports(spark: SparkSession, busy_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the reports of the busy lake."""
    out = tmp_path_factory.mktemp("reports")
    written = write_reports(spark, busy_lake, out)
    assert (written.tenants, written.first_day, written.last_day) == (len(TENANTS), "2026-01-01", "2026-01-03")
    return out


def test_pages_work_on_phone_desktop_and_paper(reports: Path) -> None:
    """No page is wider than its window, makes a network request, runs a script or logs an error."""
    pages = [reports / "index.html", *[reports / "tenants" / file_name(name) for name in ("globex", HOSTILE_TENANT)]]
    with Chromium() as browser:
        for page in pages:
            for width, dark in ((390, False), (768, True), (1280, False)):
                seen = browser.open(page, width, dark=dark)
                assert browser.read("document.documentElement.scrollWidth") == width, (page.name, width)
                assert (seen.requests, seen.complaints) == ([], [])
                assert browser.read("document.scripts.length + document.images.length") == 0
                assert browser.read("document.querySelectorAll('svg.plot').length") >= 10
            browser.open(page, 760, media="print")
            assert browser.read("document.documentElement.scrollWidth") == 760, page.name
            assert len(re.findall(rb"/Type\s*/Page\b", browser.pdf())) >= 3


def test_auditors_get_one_page_per_standard(spark: SparkSession, busy_lake: Lake, reports: Path) -> None:
    """For the platform and each tenant: every row of evidence of that standard about the subject, and of no other."""
    for stem, table, other in (
        ("soc2", "compliance_soc2", "30.1."),
        ("gdpr-art30", "compliance_gdpr_art30", "CC6."),
    ):
        rows = [row.asDict() for row in busy_lake.read(spark, table).collect()]
        for subject, page in (
            ("", reports / f"{stem}.html"),
            *((name, reports / "tenants" / file_name(name, stem)) for name in TENANTS),
        ):
            text = Elements(page.read_text()).text
            wanted = [row for row in rows if subject in {"", row["tenant"]}]
            assert wanted
            for row in wanted:
                assert row["evidence"] in text, (page.name, row)
                assert row["control"] in text
            assert other not in text
        assert {f"tenants/{file_name(name, stem)}" for name in TENANTS} <= Elements(
            (reports / f"{stem}.html").read_text()
        ).links


def test_pages_for_auditors_work_on_phone_desktop_and_paper(reports: Path) -> None:
    """No page is wider than its window, and nothing is loaded or logged."""
    pages = [reports / "soc2.html", reports / "gdpr-art30.html", reports / "tenants" / file_name("globex", "soc2")]
    with Chromium() as browser:
        for page in pages:
            for width in (390, 1280):
                seen = browser.open(page, width)
                assert browser.read("document.documentElement.scrollWidth") == width, (page.name, width)
                assert (seen.requests, seen.complaints) == ([], [])
            browser.open(page, 760, media="print")
            assert re.findall(rb"/Type\s*/Page\b", browser.pdf())


def test_quotas_ahead_have_units() -> None:
    """Stored bytes are shown as sizes, messages as plain numbers."""
    data = ReportData("")
    row = {"tenant": "acme", "last_value": 1_200_000_000.0, "trend_per_day": 3_000_000.0, "quota": 2_000_000_000}
    for metric in ("stored_bytes", "backlog"):
        data.add("growth", json.dumps({**row, "metric": metric, "quota_hit_on": "2026-09-01"}))
    page = platform_page(data, Period("2026-01-01", "2026-01-03"), [], [], 0).decode()
    cells = re.findall(r'data-label="(?:Now|Trend per day|Quota)">([^<]*)<', page)
    assert cells == ["1.2 GB", "+3 MB", "2 GB", "1.2G", "+3M", "2G"]


def test_a_failed_control_is_not_a_failed_verification(spark: SparkSession, lake: Lake) -> None:
    """Whether the journal could be verified is what the pipeline found, not what a server's self-check has said."""
    row = {"control": "PI1.4", "title": "What", "tenant": "", "count": 1, "date": "2026-01-01"}
    rows = [
        {**row, "evidence": "audit_chain: 1 of 1 failed, such as audit_integrity: never run", "status": "fail"},
        {**row, "evidence": "segments verified against manifest", "status": "pass"},
    ]
    with lake.locked():
        lake.stage(spark.createDataFrame(rows, COMPLIANCE), "compliance_soc2")
        lake.commit()
    found = verification(spark, lake, Period("2026-01-01", "2026-01-01"))
    assert [(one["evidence"], one["status"]) for one in found] == [("segments verified against manifest", "pass")]


def test_a_control_that_failed_once_counts_as_failed() -> None:
    """The tiles of a page count controls by their worst result in the period."""
    data = ReportData("acme")
    for control, status, day in (
        ("CC6.1", "pass", 1), ("CC6.1", "fail", 2), ("CC6.2", "pass", 1), ("CC7.1", "not_applicable", 1),
        ("CC8.1", "recorded", 1),
    ):  # fmt: skip
        date = f"2026-01-0{day}"
        data.sections["evidence"].append(
            {"framework": "SOC 2", "control": control, "title": "What", "evidence": f"{status} {day}", "status": status,
             "count": 1, "first": date, "last": date}
        )  # fmt: skip
    page = compliance_page(STANDARDS[0], data, Period("2026-01-01", "2026-01-02"), [])
    tiles = re.findall(r"<dt>(.*?)</dt><dd>(\d+)", page.decode())
    assert tiles == [("Failed", "1"), ("Passed", "1"), ("Not applicable", "1"), ("Records of activity", "1")]


def test_markup_in_the_journal_is_escaped(reports: Path) -> None:
    """Names and details are shown as text, and an invalid tenant name becomes a harmless file name."""
    assert re.fullmatch(r"[a-z0-9-]+\.[0-9a-f]{16}\.html", file_name(HOSTILE_TENANT))
    assert file_name("../../etc/passwd") not in {"", "../../etc/passwd.html"}
    assert "/" not in file_name("../../etc/passwd")
    for page in reports.rglob("*.html"):
        found = Elements(page.read_text())
        assert not found.tags & {"script", "img", "iframe", "object", "b", "i", "form"}
        assert all(link.startswith(("#", "tenants/", "data:,")) for link in found.links), found.links
    hostile = Elements((reports / "tenants" / file_name(HOSTILE_TENANT)).read_text()).text
    assert HOSTILE_TENANT in hostile
    assert HOSTILE_QUEUE in hostile
    assert "{{ 7*7 }}" in Elements((reports / "index.html").read_text()).text


def test_a_tenants_report_has_nothing_of_another_tenant(reports: Path) -> None:
    """No name, queue, key or figure of another tenant. The platform's report is separate, and no report links to it."""
    marks = {name: {name, name[:4].strip("<") + "1"} for name in TENANTS}
    marks[HOSTILE_TENANT] = {HOSTILE_TENANT, HOSTILE_QUEUE, "key:scr1"}
    for name, stem in product(TENANTS, ("", "soc2", "gdpr-art30")):
        page = (reports / "tenants" / file_name(name, stem)).read_text()
        found = Elements(page)
        assert name in found.text
        for other in set(TENANTS) - {name}:
            for mark in marks[other]:
                assert mark not in found.text, (name, mark)
                assert mark not in page
        assert "probing" not in found.text  # it names the probed tenants
        assert all(link.startswith(("#", "data:,")) for link in found.links)


def test_invoices_match_the_table_to_the_last_digit(spark: SparkSession, busy_lake: Lake, reports: Path) -> None:
    """Every quantity and amount is on the page, and the total is their sum."""
    rows = busy_lake.read(spark, "invoice_lines").where("tenant = 'globex'").collect()
    assert len(rows) >= 4
    values = Elements((reports / "tenants" / "globex.html").read_text()).values
    for row in rows:
        assert str(row["amount"]) in values
        assert not row["metric"] or f"{row['quantity']:f}" in values
    assert str(sum((row["amount"] for row in rows), Decimal(0))) == values[-1]


def test_a_short_report_shows_hours_and_each_report_says_what_changed(
    spark: SparkSession, busy_lake: Lake, reports: Path, tmp_path: Path
) -> None:
    """Fewer than three days are drawn by the hour; the platform's page shows each tenant's usage and waiting times."""
    write_reports(spark, busy_lake, tmp_path, from_date="2026-01-02", to_date="2026-01-03", tenant="globex")
    short = Elements((tmp_path / "tenants" / "globex.html").read_text()).text
    assert "Operations per hour" in short
    assert re.search(r"\d\d:00", short)
    assert "compared with the preceding period" in short
    assert re.findall(r"Service level [^ ]+ % *\([^)]* before\)", short) == []  # the halves share a day
    whole = Elements((reports / "tenants" / "globex.html").read_text()).text
    assert "Operations per day" in whole
    assert "2026-01-03 to 2026-01-03, compared with the preceding period" in whole
    assert "B-hours" in whole
    assert "tenantq pipeline" not in whole
    platform = Elements((reports / "index.html").read_text()).text
    assert "Share of work, and who waited" in platform


def test_reports_of_the_same_lake_are_the_same_bytes(busy_lake: Lake, reports: Path, tmp_path: Path) -> None:
    """Also when the command creates them."""
    assert command_line(["pipeline", "report", "--lake", str(busy_lake.path), "--out", str(tmp_path)]) == 0
    assert _digests(tmp_path) == _digests(reports)


def test_missing_data_is_reported(spark: SparkSession, busy_lake: Lake, lake: Lake, tmp_path: Path) -> None:
    """A missing lake, tenant or day is a typed error; an empty lake gives a page that says so."""
    with pytest.raises(NotFound, match="run tenantq pipeline run first"):
        write_reports(spark, lake, tmp_path)
    assert command_line(["pipeline", "report", "--lake", str(lake.path), "--out", str(tmp_path)]) == 3
    assert not lake.path.exists()
    with pytest.raises(NotFound, match="nothing of tenant 'nobody'"):
        write_reports(spark, busy_lake, tmp_path, tenant="nobody")
    with pytest.raises(Invalid, match="contains no day"):
        write_reports(spark, busy_lake, tmp_path, from_date="2026-01-04", to_date="2026-01-01")
    with pytest.raises(Invalid, match="longer than 366 days"):
        write_reports(spark, busy_lake, tmp_path, from_date="2020-01-01")
    with lake.locked():
        lake.stage(spark.createDataFrame([], SEGMENTS), "segments")
        lake.commit()
    assert write_reports(spark, lake, tmp_path).tenants == 0
    assert "Nothing to report yet" in (tmp_path / "index.html").read_text()


def test_reports_stay_small_with_many_tenants_and_queues(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """With a thousand tenants, one of them with a hundred queues, unlisted ones are counted."""
    zero = {name: 0 for name in USAGE_HOURLY.names if name not in {"byte_hours", "byte_ms"}}
    names = [("tenant-0000", f"queue-{at:03d}") for at in range(100)] + [(f"tenant-{at:04d}", "q") for at in range(1, 1_000)]  # fmt: skip
    usage = [{**zero, "tenant": tenant, "queue": queue, "operations": 1_000 - place % 100, "byte_hours": Decimal(1), "byte_ms": Decimal(1), "hour": "00", "date": "2026-01-01"} for place, (tenant, queue) in enumerate(names)]  # fmt: skip
    with lake.locked():
        lake.stage(spark.createDataFrame([], SEGMENTS), "segments")
        lake.stage(spark.createDataFrame(usage, USAGE_HOURLY), "usage_hourly")
        lake.commit()
    assert write_reports(spark, lake, tmp_path).tenants == 1_000
    sizes = [page.stat().st_size for page in tmp_path.glob("tenants/*.html")]
    assert len(sizes) == 3 * 1_000
    assert max(sizes) < 120_000
    assert (tmp_path / "index.html").stat().st_size < 400_000
    platform, giant = ((tmp_path / page).read_text() for page in ("index.html", "tenants/tenant-0000.html"))
    assert "980 more" in platform
    assert "80 more" in giant
    assert "Not verified" in giant
    write_reports(spark, lake, tmp_path / "one", tenant="tenant-0000")
    mine = [f"tenants/tenant-0000{tail}.html" for tail in ("", ".soc2", ".gdpr-art30")]
    whole = _digests(tmp_path)
    assert _digests(tmp_path / "one") == {page: whole[page] for page in mine}


def _digests(root: Path) -> dict[str, str]:
    return {
        page.relative_to(root).as_posix(): hashlib.sha256(page.read_bytes()).hexdigest()
        for page in root.rglob("*.html")
    }
