"""Alerts that were active before a restart. The journal has their begin and no end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from tenantq.domain.alert_rules import AlertKind, Severity
from tenantq.journal.record import JournalRow
from tenantq.service.alerts.book import Subject
from tenantq.service.audit_trail import AuditQuery, AuditTrail

ROWS_MAX: Final = 1_000
"""Rows of the journal that are read, the newest."""
_PAGES_MAX: Final = 10  # a page may have few rows, after a bounded number of segments
BEGIN: Final = "alert"
END: Final = "resolve_alert"
_DETAILS: Final = re.compile(
    r"(?:(?P<severity>warning|critical): )?(?:queue (?P<queue>\S+): )?(?P<text>(?:quota (?P<quota>\w+): )?.*)",
    re.DOTALL,
)


async def alert_rows(audit_trail: AuditTrail) -> list[JournalRow]:
    """Return the begins and ends of alerts, newest first."""
    rows: list[JournalRow] = []
    cursor = None
    for _ in range(_PAGES_MAX):
        query = AuditQuery(action=(BEGIN, END), order="newest", limit=ROWS_MAX, cursor=cursor)
        page = await audit_trail.page(query, tenant=None)
        rows += page.rows
        cursor = page.cursor
        if cursor is None or len(rows) >= ROWS_MAX:
            break
    return rows


class JournaledAlert(NamedTuple):
    """An alert whose begin was journaled."""

    subject: Subject
    text: str
    severity: Severity
    since: int


def active_alerts(rows: Iterable[JournalRow], kinds: frozenset[str], shard: str) -> Iterator[JournaledAlert]:
    """Yield the alerts of these kinds that have begun and not ended. ``rows`` are those of one shard, newest first."""
    seen: set[Subject] = set()
    for row in rows:
        found = _DETAILS.fullmatch(row.details)
        if row.outcome not in kinds or found is None:
            continue
        detail = shard if row.outcome == "journal_lag" else found["quota"] or ""
        subject = Subject(msgspec.convert(row.outcome, AlertKind), row.tenant, found["queue"] or "", detail)
        if subject not in seen and row.op == BEGIN:
            severity: Severity = "critical" if found["severity"] == "critical" else "warning"
            yield JournaledAlert(subject, found["text"], severity, row.ts)
        seen.add(subject)
