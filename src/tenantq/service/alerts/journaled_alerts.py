"""Alerts that were active before a restart. The journal has their start but no end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, get_args

import msgspec

from tenantq.domain.alert_rules import AlertKind, Severity
from tenantq.domain.limits import DAY_MS
from tenantq.journal.record import JournalRow
from tenantq.service.alerts.active_alerts import EVENT_MS, EVENTS, Subject
from tenantq.service.audit_trail import AuditQuery, AuditTrail

EVENT_AGE_MAX_MS: Final = DAY_MS
"""Events that started earlier have ended, whether or not their end was journaled."""
ROWS_MAX: Final = 1_000
"""Rows of the journal that are read, the newest."""
_PAGES_MAX: Final = 10  # a page may have few rows, after a bounded number of segments
BEGIN: Final = "alert"
END: Final = "resolve_alert"
_KINDS: Final[frozenset[str]] = frozenset(get_args(AlertKind))
_DETAILS: Final = re.compile(
    r"(?:(?P<severity>warning|critical): )?(?:queue (?P<queue>\S+): )?(?P<text>(?:quota (?P<quota>\w+): )?.*)",
    re.DOTALL,
)


async def alert_rows(audit_trail: AuditTrail) -> list[JournalRow]:
    """Return the rows about the start and end of alerts, newest first."""
    rows: list[JournalRow] = []
    cursor = None
    for _ in range(_PAGES_MAX):
        query = AuditQuery(action=f"{BEGIN},{END}", order="newest", limit=ROWS_MAX, cursor=cursor)
        page = await audit_trail.page(query, tenant=None)
        rows += page.rows
        cursor = page.cursor
        if cursor is None or len(rows) >= ROWS_MAX:
            break
    return rows


class JournaledAlert(NamedTuple):
    """An alert whose start was journaled."""

    subject: Subject
    text: str
    severity: Severity
    since: int
    last_at: int  # of an event, which is reported again while it lasts


def active_alerts(rows: Iterable[JournalRow], shard: str, now: int) -> Iterator[JournaledAlert]:
    """Yield the alerts that have started and not ended. ``rows`` are those of one shard, newest first."""
    ended: set[Subject] = set()
    found: dict[Subject, JournaledAlert] = {}
    for row in rows:
        details = _DETAILS.fullmatch(row.details)
        if row.outcome not in _KINDS or details is None:
            continue
        kind = msgspec.convert(row.outcome, AlertKind)
        subject = _subject(kind, row, details, shard)
        if subject in ended:
            continue
        known = found.get(subject)
        if row.op == END or (kind in EVENTS and row.ts < now - EVENT_AGE_MAX_MS):
            ended.add(subject)
        elif known is None:
            severity: Severity = "critical" if details["severity"] == "critical" else "warning"
            found[subject] = JournaledAlert(subject, details["text"], severity, row.ts, row.ts)
        elif kind in EVENTS and known.since - row.ts <= EVENT_MS:
            found[subject] = known._replace(since=row.ts)
    yield from found.values()


def _subject(kind: AlertKind, row: JournalRow, details: re.Match[str], shard: str) -> Subject:
    if kind in EVENTS:
        return Subject.of_event(kind, row.tenant, row.principal, details["text"])
    detail = shard if kind == "journal_lag" else details["quota"] or ""
    return Subject(kind, row.tenant, details["queue"] or "", detail)
