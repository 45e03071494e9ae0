"""Rows of the audit trail, keys, grants and compliance controls, and filters of the audit trail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

import msgspec

from tenantq.console.table import Cell, Column, Row, Tone, count_cell, minute_of, row_of
from tenantq.domain.access import AuditResult
from tenantq.domain.compliance import ControlStatus
from tenantq.domain.formatting import parse_duration, printable, show_time
from tenantq.errors import Invalid
from tenantq.wire.access import GrantItem, KeyItem
from tenantq.wire.compliance import ControlItem

AUDIT_COLUMNS: Final = (
    Column("time", "UTC time", 8, 0, lambda row, now_ms: Cell(_audit_time(int(row.get("ts") or 0), now_ms))),
    Column("tenant", "tenant", 12, 5, lambda row, _: Cell(str(row.get("tenant") or "(platform)")), width_max=20),
    Column("outcome", "outcome", 10, 3, lambda row, _: _outcome_cell(row), width_max=14),
    Column("op", "action", 13, 1, lambda row, _: _fact(row, "op"), width_max=16),
    Column("who", "principal", 20, 2, lambda row, _: _fact(row, "principal"), width_max=40),
    Column("queue", "queue", 8, 4, lambda row, _: _fact(row, "queue"), width_max=20),
    Column("code", "code", 12, 6, lambda row, _: _fact(row, "error_code"), width_max=16),
    Column("remote", "address", 12, 7, lambda row, _: _fact(row, "remote", "dim"), width_max=20),
    Column("details", "details", 12, 8, lambda row, _: _fact(row, "details", "dim"), width_max=60),
)
TENANT_AUDIT_COLUMNS: Final = tuple(column for column in AUDIT_COLUMNS if column.key != "tenant")
KEY_COLUMNS: Final = (
    Column("state", "state", 7, 1, lambda _, state: Cell(state, "good" if state == "valid" else "dim")),
    Column("name", "name", 10, 0, lambda key, _: Cell(printable(key.name)), width_max=24),
    Column("may", "rights", 12, 2, lambda key, _: Cell(_rights(key)), width_max=28),
    Column("id", "key", 12, 4, lambda key, _: Cell(key.key_id), width_max=20),
    Column("queues", "queues", 6, 3, lambda key, _: Cell(", ".join(key.queues)), width_max=20),
    Column("used", "last used", 16, 5, lambda key, _: _minute(key.last_used_at)),
    Column("expires", "expires", 16, 6, lambda key, _: _minute(key.expires_at)),
)
GRANT_COLUMNS: Final = (
    Column("tenant", "tenant", 10, 3, lambda tenant, _: Cell(tenant), width_max=20),
    Column("principal", "principal", 14, 0, lambda _, grant: Cell(printable(grant.principal)), width_max=40),
    Column("may", "rights", 12, 1, lambda _, grant: Cell(_rights(grant)), width_max=28),
    Column("queues", "queues", 6, 2, lambda _, grant: Cell(", ".join(grant.queues)), width_max=20),
    Column("expires", "expires", 16, 4, lambda _, grant: _minute(grant.expires_at)),
)
CONTROL_COLUMNS: Final = (
    Column("status", "status", 14, 0, lambda one: Cell(CONTROL_STATES[one.status], _CONTROL_TONES[one.status])),
    Column("title", "control", 30, 1, lambda one: Cell(one.title), width_max=72),
    Column("failed", "failed", 6, 2, lambda one: count_cell(one.failed, "critical"), right=True),
    Column("threshold", "threshold", 20, 3, lambda one: Cell(one.threshold, "dim"), width_max=40),
    Column("soc2", "SOC 2", 5, 4, lambda one: Cell(one.soc2, "dim"), width_max=8),
)
_TONES: Final[dict[str, Tone]] = {
    "ok": "good",
    "denied": "critical",
    "throttled": "warning",
    "refused": "warning",
    "failed": "critical",
}
CONTROL_STATES: Final[dict[ControlStatus, str]] = {
    "fail": "■ fail",
    "pass": "● pass",
    "not_applicable": "does not apply",
}
"""Texts of the states of a control, the most important first."""
_CONTROL_TONES: Final[dict[ControlStatus, Tone]] = {"fail": "critical", "pass": "good", "not_applicable": "dim"}
KEY_PRINCIPAL: Final = "key:"
CHANGES: Final = (
    "create_tenant,configure_tenant,delete_tenant,suspend_tenant,resume_tenant,hold_tenant,release_hold,"
    "create_key,revoke_key,put_grant,delete_grant,revoke_token,put_data_key,drop_data_keys,"
    "create_queue,configure_queue,pause_queue,resume_queue,delete_queue,purge"
)
"""Actions that change a tenant, its queues, or access to it."""

ACCESS_CHANGES: Final = "create_key,revoke_key,put_grant,delete_grant,revoke_token"
_DAY_MS: Final = 86_400_000


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on rows of the trail. None means any value."""

    result: AuditResult | None = None
    principal: str | None = None
    action: str | None = None
    queue: str | None = None
    back_ms: int | None = None  # how far back
    platform: bool = False  # of all tenants and the platform itself

    def asked(self, now_ms: int) -> dict[str, Any]:
        """Return the arguments of the SDK's audit query, without limit and cursor."""
        given = {name: getattr(self, name) for name in ("result", "principal", "action", "queue")}
        start = None if self.back_ms is None else max(0, now_ms - self.back_ms)
        return {**given, "start": start, "order": "newest"}

    def shown_back(self) -> str:
        """Return the time range as the user types it, or an empty text for no limit."""
        if not self.back_ms:
            return ""
        return f"{self.back_ms // 3_600_000}h" if self.back_ms >= 3_600_000 else f"{self.back_ms // 60_000}m"

    def described(self) -> str:
        """Return the filter as text."""
        action = "changes" if self.action == CHANGES else self.action
        parts = [text for text in (self.result, self.principal, action, self.queue) if text]
        if self.back_ms is not None:
            hours = self.back_ms / 3_600_000
            parts.append(f"last {hours:g} h" if hours >= 1 else f"last {self.back_ms // 60_000} min")
        return ", ".join(parts) or "everything"


FILTERS: Final = (
    AuditFilter(result="DENIED", back_ms=_DAY_MS),
    AuditFilter(action=CHANGES),
    AuditFilter(result="ERROR", back_ms=_DAY_MS),
    AuditFilter(),
)
"""Predefined filters that a key cycles through: denied or throttled calls, changes, failures, everything."""


def next_filter(now: AuditFilter) -> AuditFilter:
    """Return the next predefined filter, for the same scope."""
    plain = msgspec.structs.replace(now, platform=False)
    place = FILTERS.index(plain) if plain in FILTERS else -1
    return msgspec.structs.replace(FILTERS[(place + 1) % len(FILTERS)], platform=now.platform)


def parse_filter(typed: Mapping[str, str], *, platform: bool) -> AuditFilter:
    """Return the filter of the typed fields. Raises Invalid with the name of the field."""
    text = {name: value.strip() for name, value in typed.items()}
    result = text.get("result", "").upper()
    if result and result not in get_args(AuditResult):
        raise Invalid(f"result: must be {', '.join(get_args(AuditResult))} or empty")
    back = text.get("back", "")
    back_ms = parse_duration(back) if back else None
    if back and (back_ms is None or back.isdigit()):
        raise Invalid("time range: must be a duration such as 15m, 24h or 7d, or empty")
    given: dict[str, Any] = {name: text.get(name) or None for name in ("principal", "action", "queue")}
    return AuditFilter(**given | {"result": result or None}, back_ms=back_ms, platform=platform)


def audit_rows(rows: Iterable[Mapping[str, Any]], now_ms: int) -> list[Row]:
    """Return the rows of the trail. A coalesced row shows its count."""
    return [row_of(AUDIT_COLUMNS, audit_key(row), row, now_ms) for row in rows]


def key_rows(keys: Iterable[KeyItem], now_ms: int) -> list[Row]:
    """Return the rows of keys, valid ones first."""
    shown = sorted(keys, key=lambda key: (key_state(key, now_ms) != "valid", key.name, key.key_id))
    return [row_of(KEY_COLUMNS, key.key_id, key, key_state(key, now_ms)) for key in shown]


def grant_rows(grants: Iterable[tuple[str, GrantItem]]) -> list[Row]:
    """Return the rows of grants, identified by tenant and principal."""
    return [row_of(GRANT_COLUMNS, f"{tenant} {grant.principal}", tenant, grant) for tenant, grant in grants]


def control_rows(controls: Iterable[ControlItem]) -> list[Row]:
    """Return the rows of controls, failed ones first."""
    order = list(CONTROL_STATES)
    shown = sorted(controls, key=lambda one: order.index(one.status))
    return [row_of(CONTROL_COLUMNS, one.control, one) for one in shown]


def audit_key(row: Mapping[str, Any]) -> str:
    """Return the identity of a row of the trail."""
    return f"{row.get('shard')}/{row.get('seq')}/{row.get('n')}"


def _audit_time(ms: int, now_ms: int) -> str:
    """Return the time of day, or the date if it was not today."""
    time = show_time(ms)
    return time[11:19] if show_time(now_ms)[:10] == time[:10] else time[5:10]


def _outcome_cell(row: Mapping[str, Any]) -> Cell:
    outcome, count = str(row.get("outcome") or ""), int(row.get("count") or 1)
    return Cell(f"{outcome} x{count}" if count > 1 else outcome, _TONES.get(outcome, "warning"))


def _fact(row: Mapping[str, Any], name: str, tone: Tone = "") -> Cell:
    return Cell(printable(str(row.get(name) or "")), tone)


def key_state(key: KeyItem, now_ms: int) -> str:
    """Return whether a key is valid, expired, revoked or suspended."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now_ms:
        return "expired"
    return "suspended" if (key.suspended_until or 0) > now_ms else "valid"


def _rights(one: KeyItem | GrantItem) -> str:
    return ", ".join([*([one.role] if one.role else []), *one.actions])


def _minute(ms: int | None) -> Cell:
    return Cell("never", "dim") if ms is None else Cell(minute_of(ms))
