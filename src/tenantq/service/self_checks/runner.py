"""Runs the self-checks periodically and reports them in readiness, metrics, journal and alerts."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tenantq.domain.validation import validated
from tenantq.engine.shard import Shard
from tenantq.errors import TenantqError
from tenantq.gates.signals import Alert
from tenantq.journal.record import JournalEntry
from tenantq.runtime.clock import Clock
from tenantq.runtime.periodic import Periodic
from tenantq.service.admission import Admission
from tenantq.service.self_checks.check import CheckResult, CheckSettings, SelfCheck

log = logging.getLogger("tenantq")

_TEXT_CHARS_MAX = 1_000


class CheckState(msgspec.Struct):
    """The state of one check."""

    status: Literal["not_run", "ok", "failed"] = "not_run"
    at: int | None = None  # wall clock of the last run
    text: str = ""
    took_ms: int = 0
    runs: dict[str, int] = {}  # by "ok" and "failed"


class SelfChecks:
    """The checks of one server. A check raises an alert when it starts to fail; the server continues."""

    def __init__(
        self, checks: Sequence[SelfCheck], shard: Shard, admission: Admission, clock: Clock, settings: CheckSettings
    ) -> None:
        self._checks = checks
        self._shard = shard
        self._admission = admission
        self._clock = clock
        self._enabled = validated(settings, "checks.").enabled
        self._runs = Periodic(clock, settings.every_ms, admission.in_background, self.run_now)
        self.states: Mapping[str, CheckState] = {check.name: CheckState(runs={}) for check in checks}

    def start(self) -> None:
        """Start running the checks periodically, unless they are disabled."""
        if self._enabled:
            self._runs.start()

    def close(self) -> None:
        """Start no more runs. The current run ends after its current check."""
        self._runs.close()

    def shown(self) -> dict[str, dict[str, Any]]:
        """Return status and time of each check. Its details are only in the journal."""
        return {name: {"status": state.status, "at": state.at} for name, state in self.states.items()}

    async def run_now(self) -> None:
        """Run every check once and journal the results."""
        entries: list[JournalEntry] = []
        for check in self._checks:
            if self._runs.is_closed():
                return
            started_ms = self._clock.monotonic_ms()
            result = await self._result(check)
            if self._runs.is_closed():
                return  # its resources may be closed already
            self._note(check.name, result, self._clock.monotonic_ms() - started_ms)
            outcome = "ok" if result.ok else "failed"
            details = f"{check.name}: {result.text}"[:_TEXT_CHARS_MAX]
            entries.append(JournalEntry("self_check", "", "", "system", outcome=outcome, details=details))
        await self._shard.journal.note(entries)

    async def _result(self, check: SelfCheck) -> CheckResult:
        try:
            return await check.run()
        except TenantqError as error:
            return CheckResult(ok=False, text=f"the check could not run: {error.message}")
        except Exception as error:
            log.exception("self-check %s raised an exception", check.name)
            return CheckResult(ok=False, text=f"the check failed with an exception: {error!r}")

    def _note(self, name: str, result: CheckResult, took_ms: int) -> None:
        state, now = self.states[name], self._clock.wall_ms()
        if not result.ok:
            log.error("self-check %s failed: %s", name, result.text)
            if state.status != "failed":
                details = f"{name}: {result.text}"[:_TEXT_CHARS_MAX]
                alert = Alert(kind="self_check", tenant="", principal="", details=details, severity="critical", at=now)
                self._admission.notes.raise_alert(alert)
        state.status = "ok" if result.ok else "failed"
        state.at, state.text, state.took_ms = now, result.text, took_ms
        state.runs[state.status] = state.runs.get(state.status, 0) + 1
