"""Reports as Markdown, from what the server knows without the pipeline: usage of a tenant, its compliance, access of a principal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tenantq.console.not_granted import known
from tenantq.console.queue_rows import QUOTA_COLUMNS, bar, encryption_line, facts_line, quota_rows
from tenantq.console.reader import Permission, SecurityView, TenantView
from tenantq.console.security_rows import CONTROL_STATES, GRANT_COLUMNS, KEY_COLUMNS, grant_rows, key_rows
from tenantq.console.table import Cell, Column, Row, count_cell, minute_of, row_of, second_of
from tenantq.domain.formatting import plural, printable, show_age, show_size
from tenantq.wire.compliance import ComplianceReply

HOUR_MS: Final = 3_600_000
HOURS: Final = 24
_BAR: Final = 20
_SPECIAL: Final = re.compile(r"([|`*<>\[\]\\])")


class UsageHour(msgspec.Struct):
    """The work of a tenant in one hour."""

    start_ms: int
    added: int = 0
    bytes: int = 0
    acked: int = 0
    refused: int = 0  # by rate limits and quotas


USAGE_COLUMNS: Final = (
    Column("hour", "hour (UTC)", 16, 0, lambda one, _: Cell(minute_of(one.start_ms))),
    Column("added", "added", 8, 1, lambda one, _: count_cell(one.added), right=True),
    Column("bytes", "bytes", 9, 2, lambda one, _: count_cell(one.bytes, show=show_size), right=True),
    Column("acked", "completed", 9, 3, lambda one, _: count_cell(one.acked), right=True),
    Column("refused", "refused", 8, 4, lambda one, _: count_cell(one.refused, "warning"), right=True),
    Column("trend", "", _BAR, 5, lambda one, most: Cell(bar(one.added * 100 // most, _BAR))),
)
DENIED_COLUMNS: Final = (
    Column("principal", "principal", 20, 0, lambda who, *_: Cell(printable(who))),
    Column("tenant", "tenant", 12, 1, lambda _, tenant, *__: Cell(tenant)),
    Column("op", "action", 12, 2, lambda _, __, op, *___: Cell(op)),
    Column("count", "denied", 6, 3, lambda *about: Cell(str(about[-1])), right=True),
)


def usage_hours(rows: Iterable[Mapping[str, Any]], now_ms: int) -> list[UsageHour]:
    """Return the last 24 hours, oldest first, from journal rows about adds and acks."""
    first = now_ms // HOUR_MS - HOURS + 1
    hours = [UsageHour((first + number) * HOUR_MS) for number in range(HOURS)]
    for row in rows:
        place, count = int(row["ts"]) // HOUR_MS - first, int(row.get("count") or 1)
        if not 0 <= place < HOURS:
            continue
        hour = hours[place]
        if row.get("outcome") == "throttled":
            hour.refused += count
        elif row.get("result") != "SUCCESS":
            continue
        elif row.get("op") == "add":
            hour.added += count
            hour.bytes += int(row.get("bytes") or 0)
        else:
            hour.acked += count
    return hours


def usage_report(
    view: TenantView, security: SecurityView | None, hours: Sequence[UsageHour], *, cut: bool, now_ms: int
) -> str:
    """Return quotas, usage over time, queues and encryption of a tenant. ``cut``: not all journal rows were read."""
    most = max((one.added for one in hours), default=0) or 1
    busy = [
        row_of(USAGE_COLUMNS, str(one.start_ms), one, most) for one in hours if one.added or one.acked or one.refused
    ]
    note = "\n\nOlder rows were not read. The pipeline's reports are complete." if cut else ""
    total = sum(one.added for one in hours)
    refused = sum(one.refused for one in hours)
    queues = [
        f"- {one.name}: {one.ready:,} ready, {one.in_flight:,} leased, {one.dead:,} dead"
        + (f", oldest {show_age(one.oldest_age_ms)}" if one.oldest_age_ms else "")
        for one in known(view.queues) or ()
    ]
    return document(
        f"# Usage of {view.name}",
        f"{minute_of(now_ms)} UTC. {facts_line(view.facts)}.",
        f"{total:,} messages added and {refused:,} calls refused by limits in the last {HOURS} hours.",
        markdown_table("By hour", USAGE_COLUMNS, busy) + note,
        markdown_table("Quotas", QUOTA_COLUMNS, quota_rows(view.usage)),
        "\n".join(["## Queues", "", *(queues or ["none"])]),
        f"## Encryption\n\n{encryption_line(security.encryption if security else None)}",
    )


def controls_report(found: ComplianceReply) -> list[str]:
    """Return the controls of a tenant, or of the platform and all tenants, each with the evidence that fails."""
    lines: list[str] = []
    for control in found.controls:
        gdpr = f", GDPR Art. {control.gdpr}" if control.gdpr else ""
        lines.append(
            f"- {CONTROL_STATES[control.status]}: **{control.title}** ({control.threshold}; SOC 2 {control.soc2}{gdpr})"
        )
        failed = [one for one in control.evidence if not one.passed]
        lines += [f"    - {escaped(f'{one.tenant} {one.subject}'.strip())}: {escaped(one.text)}" for one in failed]
    title = f"# Compliance of {found.tenant or 'the platform'}"
    return [
        title,
        f"{minute_of(found.at)} UTC. {CONTROL_STATES[found.status]}.",
        "\n".join(["## Controls", "", *lines]),
    ]


def compliance_report(
    found: ComplianceReply,
    security: SecurityView,
    denied: Sequence[Mapping[str, Any]],
    changes: Sequence[Mapping[str, Any]],
    now_ms: int,
) -> str:
    """Return controls, keys, grants, denied calls and changes of a tenant."""
    keys, grants = known(security.keys) or [], known(security.grants) or []
    return document(
        *controls_report(found),
        markdown_table("Keys", KEY_COLUMNS, key_rows(keys, now_ms)),
        markdown_table("Grants", GRANT_COLUMNS[1:], grant_rows((found.tenant, one) for one in grants)),
        markdown_table("Denied calls, last 24 hours", DENIED_COLUMNS, denied_rows(denied)),
        trail("Changes", changes),
    )


def access_report(
    principal: str,
    found: Sequence[Permission],
    denied: Sequence[Mapping[str, Any]],
    changes: Sequence[Mapping[str, Any]],
    now_ms: int,
) -> str:
    """Return what a principal may do, what it was denied, and how its access was changed."""
    return document(
        f"# Access review of {escaped(principal)}",
        f"{minute_of(now_ms)} UTC. {plural(len(found), 'right')} left.",
        trail("Remediation", changes),
        markdown_table("Rights", GRANT_COLUMNS, grant_rows((one.tenant, one.grant) for one in found)),
        markdown_table("Denied calls, last 24 hours", DENIED_COLUMNS, denied_rows(denied)),
    )


def document(*parts: str) -> str:
    """Return paragraphs, headings and tables as one text."""
    return "\n\n".join(parts)


def denied_rows(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return denied calls by principal, tenant and action, the most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        where = (str(row.get("principal") or "(unknown)"), str(row.get("tenant") or "(platform)"), str(row.get("op")))
        counts[where] += int(row.get("count") or 1)
    return [row_of(DENIED_COLUMNS, " ".join(where), *where, count) for where, count in counts.most_common()]


def trail(title: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a heading and a list of rows of the audit trail."""
    lines = [
        f"- {second_of(int(row['ts']))} {row.get('tenant') or '(platform)'}: **{row.get('op')}** "
        f"by {escaped(str(row.get('principal') or ''))}. {escaped(str(row.get('details') or ''))}"
        for row in rows
    ]
    return "\n".join([f"## {title}", "", *(lines or ["none"])])


def markdown_table(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Return a heading and a Markdown table."""
    if not rows:
        return f"## {title}\n\nnone"
    lines = [
        " | ".join(column.heading.strip() for column in columns),
        " | ".join("--:" if column.right else "---" for column in columns),
        *(" | ".join(escaped(row.cells[column.key].text) for column in columns) for row in rows),
    ]
    return "\n".join([f"## {title}", "", *(f"| {line} |" for line in lines)])


def escaped(text: str) -> str:
    """Return a text of one line in which no character has a meaning in Markdown."""
    return _SPECIAL.sub(r"\\\1", " ".join(printable(text).splitlines())) or " "
