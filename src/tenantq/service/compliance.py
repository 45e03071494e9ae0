"""Compliance: evaluates the controls from facts of the server, and journals the results for the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from tenantq.backup.backups import Backups
from tenantq.domain.compliance import CONTROLS, ComplianceSettings, ControlStatus
from tenantq.domain.limits import DAY_MS, HOUR_MS
from tenantq.domain.names import PROBE_TENANTS
from tenantq.domain.validation import projected
from tenantq.engine.access_store import PLATFORM
from tenantq.engine.queue_state import TenantState, is_home
from tenantq.engine.shard import Shard
from tenantq.journal.record import JournalEntry
from tenantq.runtime.clock import Clock
from tenantq.runtime.periodic import Periodic
from tenantq.service.access import key_items
from tenantq.service.admission import Admission
from tenantq.service.alerts.active_alerts import ActiveAlert
from tenantq.service.alerts.watch import AlertWatch
from tenantq.service.audit_trail import AuditQuery, AuditTrail
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption
from tenantq.service.other_shards import OtherShards
from tenantq.service.self_checks.runner import SelfChecks
from tenantq.wire.compliance import ComplianceReply, ControlItem, EvidenceItem

COMPLIANCE: Final = ComplianceSettings()
EVIDENCE_MAX: Final = 100
"""Evidence of one control in a reply."""
SLICE: Final = 50
"""Tenants that are evaluated in one turn of the event loop, and journaled in one record."""
_FIRST_MS: Final = 60_000
_CHAIN_CHECK: Final = "audit_integrity"
_CHECK_ROWS: Final = 20
_TEXT_CHARS_MAX: Final = 300

Evidence = tuple[str, EvidenceItem]  # with its control


class Compliance:
    """Answers whether the controls of a tenant, or of the platform, pass."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        clock: Clock,
        encryption: MessageEncryption,
        other_shards: OtherShards,
        audit_trail: AuditTrail,
        watch: AlertWatch,
        checks: Callable[[], SelfChecks | None],
        backups: Backups | None,
        settings: ComplianceSettings,
    ) -> None:
        self._shard, self._admission, self._clock, self._encryption = shard, admission, clock, encryption
        self._other_shards, self._audit_trail, self._watch, self._checks = other_shards, audit_trail, watch, checks
        self._backups, self._settings = backups, settings
        self.journaling = Periodic(clock, settings.every_ms, admission.in_background, self.journal_now)

    async def platform(self, call: Call) -> ComplianceReply:
        """Return the controls of the platform and of all tenants together."""
        caller = await self._admission.admit_platform(call, "audit_platform")
        self._admission.notes.note_view(caller, "", "audit_platform", "compliance")
        own = await self.list_local()
        others = (await self._other_shards.ask("compliance.list_local")).values()
        return self._reply("", merged(own, *others) if others else own)

    async def tenant(self, call: Call, tenant: str | None) -> ComplianceReply:
        """Return the controls of a tenant."""
        with await self._admission.admit(call, tenant, "audit") as admitted:
            self._admission.notes.note_view(admitted.caller, admitted.tenant, "audit", "compliance")
            return self._reply(admitted.tenant, self._controls(self._of_tenant(admitted.state, self._alerts())))

    async def list_local(self) -> Sequence[ControlItem]:
        """Return the controls of this shard and its tenants, for a caller that was authorized."""
        found = [one async for _, evidence in self._of_tenants() for one in evidence]
        return self._controls([*found, *await self._of_shard()])

    # ---- journaling ----

    def start(self) -> None:
        """Journal the results soon, and then periodically."""
        self.journaling.start(min(_FIRST_MS, self._settings.every_ms))

    async def journal_now(self) -> None:
        """Journal one row for each tenant and one for the shard, with the result of each control."""
        entries = [self._entry("", await self._of_shard())]
        async for tenant, evidence in self._of_tenants():
            entries.append(self._entry(tenant, evidence))
            if len(entries) >= SLICE:
                await self._shard.journal.note(entries)
                entries = []
        if entries:
            await self._shard.journal.note(entries)

    def _entry(self, tenant: str, evidence: list[Evidence]) -> JournalEntry:
        controls = self._controls(evidence)
        details = msgspec.json.encode({one.control: _shown(one) for one in controls}).decode()
        outcome = "ok" if _status(controls) != "fail" else "failed"
        return JournalEntry("compliance", tenant, "", "system", outcome=outcome, details=details)

    # ---- facts ----

    async def _of_tenants(self) -> AsyncIterator[tuple[str, list[Evidence]]]:
        """Yield the evidence of each tenant. Yields to the event loop between slices."""
        alerts = self._alerts()
        for number, tenant in enumerate(list(self._shard.state.catalog.tenants.values()), 1):
            if tenant.name and tenant.name not in PROBE_TENANTS and not tenant.gone and is_home(tenant):
                yield tenant.name, list(self._of_tenant(tenant, alerts))
            if number % SLICE == 0:
                await asyncio.sleep(0)

    def _alerts(self) -> Mapping[str, list[ActiveAlert]]:
        """Return the active alerts by tenant."""
        found: dict[str, list[ActiveAlert]] = {}
        for one in self._watch.alerts.active:
            found.setdefault(one.subject.tenant, []).append(one)
        return found

    def _of_tenant(self, tenant: TenantState, alerts: Mapping[str, list[ActiveAlert]]) -> Iterator[Evidence]:
        settings, name = self._settings, tenant.name
        yield from self._of_encryption(tenant)
        access = self._shard.state.access
        for principal in access.grants_in(name):
            at = access.reviewed_at(name, principal)
            yield self._aged("grants_reviewed", name, principal, "reviewed", at, settings.grant_review_days * DAY_MS)
        yield from self._of_keys(name, tenant.id)
        yield from self._of_alerts(alerts.get(name, ()))

    def _of_encryption(self, tenant: TenantState) -> Iterator[Evidence]:
        name, wanted = tenant.name, tenant.config.encryption
        if not wanted.enabled:
            if self._settings.encryption_required:
                yield _evidence("encryption", name, "encryption", "messages are stored as plaintext", passed=False)
            return
        health, key = self._encryption.health_of(tenant), self._encryption.key_of(name, wanted)
        is_usable = health is None or health.state in {"ok", "unknown"}
        text = "messages are encrypted" if health is None or is_usable else f"the key is {health.state}: {health.text}"
        yield _evidence("encryption", name, str(key), text, passed=is_usable)
        if keys := self._encryption.data_keys(tenant):
            newest, limit_ms = keys[-1], self._settings.key_rotation_days * DAY_MS
            yield self._aged("key_rotation", name, f"data key {newest.number}", "created", newest.created_at, limit_ms)

    def _of_keys(self, tenant: str, owner_id: int) -> Iterator[Evidence]:
        now, limit_ms = self._clock.wall_ms(), self._settings.key_unused_days * DAY_MS
        for key in key_items(self._shard, self._admission, owner_id):
            if key.revoked_at is None and (key.expires_at is None or key.expires_at > now):
                at, what = (key.last_used_at, "used") if key.last_used_at is not None else (key.created_at, "created")
                yield self._aged("keys_used", tenant, f"{key.key_id} {key.name}", what, at, limit_ms)

    def _of_alerts(self, alerts: Sequence[ActiveAlert]) -> Iterator[Evidence]:
        now, limit_ms = self._clock.wall_ms(), self._settings.alert_hours * HOUR_MS
        for one in alerts:
            subject = one.subject
            name = " ".join(filter(None, (subject.kind, subject.queue, subject.detail)))
            is_silenced = now < one.finding.silenced_until
            state = "silenced, started" if is_silenced else "active, started"
            control, item = self._aged("alert_response", subject.tenant, name, state, one.since, limit_ms)
            yield control, msgspec.structs.replace(item, passed=item.passed or is_silenced)

    async def _of_shard(self) -> list[Evidence]:
        found = [*self._of_keys("", PLATFORM), *self._of_alerts(self._alerts().get("", ())), *await self._of_checks()]
        return [*found, *await self._of_backups()]

    async def _of_checks(self) -> list[Evidence]:
        """Return the last result of each self-check, from the journal if it has not run since the start."""
        checks, limit_ms = self._checks(), self._settings.check_hours * HOUR_MS
        states = {name: (one.status == "ok", one.at, one.text) for name, one in checks.states.items()} if checks else {}
        if any(at is None for _, at, _ in states.values()):
            query = AuditQuery(action="self_check", order="newest", limit=_CHECK_ROWS)
            for row in (await self._audit_trail.page(query, tenant=None)).rows:
                name, _, text = row.details.partition(": ")
                if name in states and states[name][1] is None:
                    states[name] = (row.outcome == "ok", row.ts, text)
        found = []
        for name, (is_ok, at, text) in states.items():
            control = "audit_chain" if name == _CHAIN_CHECK else "self_checks"
            _, item = self._aged(control, "", name, "run", at, limit_ms)
            if at is not None and not is_ok:
                item = msgspec.structs.replace(item, passed=False, text=f"failed: {text}")
            found.append((control, item))
        return found

    async def _of_backups(self) -> list[Evidence]:
        if self._backups is None or self._backups.store_backs_up:
            return []
        settings = self._settings
        complete = [one for one in await self._backups.listed() if one.created_at is not None]
        newest = max(complete, key=lambda one: one.created_at or 0, default=None)
        name, at = (newest.name, newest.created_at) if newest is not None else ("no backup", None)
        found = [self._aged("backup", "", name, "created", at, settings.backup_hours * HOUR_MS)]
        if self._other_shards.number:
            return found  # the first shard restores the parts of all shards
        test = await self._backups.last_test()
        limit_ms = settings.restore_test_days * DAY_MS
        if test is None or test.ok:
            subject, at = (test.name, test.at) if test is not None else ("no restore test", None)
            return [*found, self._aged("restore_test", "", subject, "restored", at, limit_ms)]
        return [*found, _evidence("restore_test", "", test.name, f"failed: {test.text}", passed=False, at=test.at)]

    def _aged(self, control: str, tenant: str, subject: str, what: str, at: int | None, limit_ms: int) -> Evidence:
        """Return evidence that passes if it is recent enough."""
        if at is None:
            return _evidence(control, tenant, subject, f"never {what}", passed=False)
        age_ms = max(0, self._clock.wall_ms() - at)
        shown = f"{age_ms // DAY_MS} d" if age_ms >= 2 * DAY_MS else f"{age_ms // HOUR_MS} h"
        return _evidence(control, tenant, subject, f"{what} {shown} ago", passed=age_ms <= limit_ms, at=at)

    # ---- results ----

    def _controls(self, evidence: Iterable[Evidence]) -> list[ControlItem]:
        by_control: dict[str, list[EvidenceItem]] = {name: [] for name in CONTROLS}
        for control, item in evidence:
            by_control[control].append(item)
        return [_control(name, self._settings.threshold_of(name), items) for name, items in by_control.items()]

    def _reply(self, tenant: str, controls: Sequence[ControlItem]) -> ComplianceReply:
        status, at = _status(controls), self._clock.wall_ms()
        return ComplianceReply(tenant=tenant, at=at, status=status, controls=list(controls))


def merged(*parts: Sequence[ControlItem]) -> list[ControlItem]:
    """Return the controls of several shards as one."""
    return [
        msgspec.structs.replace(
            same[0],
            passed=(passed := sum(one.passed for one in same)),
            failed=(failed := sum(one.failed for one in same)),
            status=_decided(passed, failed),
            evidence=_shortened([item for one in same for item in one.evidence]),
        )
        for same in zip(*parts, strict=True)
    ]


def _evidence(control: str, tenant: str, subject: str, text: str, *, passed: bool, at: int | None = None) -> Evidence:
    return control, EvidenceItem(tenant=tenant, subject=subject, passed=passed, text=text, at=at)


def _control(name: str, threshold: str, items: list[EvidenceItem]) -> ControlItem:
    passed = sum(one.passed for one in items)
    failed = len(items) - passed
    return projected(
        ControlItem, CONTROLS[name], control=name, threshold=threshold, status=_decided(passed, failed),
        passed=passed, failed=failed, evidence=_shortened(items),
    )  # fmt: skip


def _shortened(items: list[EvidenceItem]) -> list[EvidenceItem]:
    return sorted(items, key=lambda one: one.passed)[:EVIDENCE_MAX]


def _decided(passed: int, failed: int) -> ControlStatus:
    return "fail" if failed else "pass" if passed else "not_applicable"


def _status(controls: Sequence[ControlItem]) -> ControlStatus:
    found = {one.status for one in controls}
    return next((status for status in ("fail", "pass") if status in found), "not_applicable")


def _shown(control: ControlItem) -> dict[str, Any]:
    """Return what the journal keeps of a control: its counts and its first evidence."""
    first = f"{control.evidence[0].subject}: {control.evidence[0].text}" if control.evidence else ""
    return {
        "status": control.status, "passed": control.passed, "failed": control.failed,
        "threshold": control.threshold, "text": first[:_TEXT_CHARS_MAX],
    }  # fmt: skip
