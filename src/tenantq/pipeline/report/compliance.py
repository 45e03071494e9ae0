"""Reports for auditors: one page per standard, about a tenant or the platform."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tenantq.pipeline.page.renderer import render
from tenantq.pipeline.report.data import Period, ReportData, ReportRow

_STATES: Final = ("fail", "pass", "not_applicable", "recorded")  # the first that a control has counts


class Standard(msgspec.Struct, frozen=True):
    """A standard that reports are about."""

    framework: str  # as rows of evidence name it
    stem: str  # of file names
    title: str
    purpose: str
    integrity: str  # the control that the verification of the journal belongs to


STANDARDS: Final = (
    Standard(
        "SOC 2", "soc2", "SOC 2 report",
        "Evidence for the trust services criteria: results of controls, and the operations that show how they work.",
        "PI1.4",
    ),
    Standard(
        "GDPR Art. 30", "gdpr-art30", "GDPR Art. 30 record of processing",
        "Processing, disclosure, erasure and security measures, by paragraph of article 30.",
        "30.1.g",
    ),
)  # fmt: skip


def compliance_page(
    standard: Standard, data: ReportData, period: Period, verified: Sequence[ReportRow],
    links: Sequence[tuple[str, str]] = (), more: int = 0,
) -> bytes:  # fmt: skip
    """Return the page of a standard. ``links`` lead to those of tenants; ``more`` of them are not listed."""
    rows = [row for row in data.sections["evidence"] if row["framework"] == standard.framework]
    results = [row for row in rows if row["status"] != "recorded"]
    records = [row for row in rows if row["status"] == "recorded"]
    return render(
        "compliance.html", standard=standard, subject=data.subject, period=period, verified=verified, links=links, more=more,
        sound=bool(verified) and all(row["status"] == "pass" for row in verified), counts=_counts(rows),
        results=[("Controls", results)] if results else [], records=[("Operations", records)] if records else [],
    )  # fmt: skip


def _counts(rows: Sequence[ReportRow]) -> Mapping[str, int]:
    """Return how many controls failed, passed, did not apply, or have only records."""
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        key, state = (row["control"], row["title"]), _STATES.index(row["status"])
        found[key] = min(state, found.get(key, state))
    return {state: list(found.values()).count(at) for at, state in enumerate(_STATES)}
