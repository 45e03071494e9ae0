"""The traces that calls leave in the journal without the engine: who was refused, who looked, what a person should see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tenantq.domain.names import PROBE_TENANTS
from tenantq.errors import Forbidden, Limited, TenantqError, Unauthenticated, Unavailable
from tenantq.gates.refusals import CountedRefusal, Refusal, Refusals
from tenantq.gates.signals import Alert, Signals
from tenantq.journal.record import JournalEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tenantq.domain.access import Principal
    from tenantq.domain.message import Caller
    from tenantq.engine.shard import Shard
    from tenantq.runtime.clock import Clock
    from tenantq.service.call import Call
    from tenantq.service.entered import Entered
    from tenantq.service.gate_settings import GateSettings
    from tenantq.service.tally import Tally

_NAME_SHOWN_CHARS = 40


class AuditNotes:
    """Counts, journals and watches them; those that come in floods with a count, so that nobody can fill the disk."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        settings: GateSettings,
        background: Callable[[Coroutine[Any, Any, None]], None],
        tally: Tally,
    ) -> None:
        self._shard = shard
        self._in_background = background
        self._tally = tally
        self.note_entries: Callable[[list[JournalEntry]], Coroutine[Any, Any, None]] = shard.note_entries
        self.refusals = Refusals(clock, self._write, rows_per_second=settings.refusal_rows_per_second)
        self._looks = Refusals(clock, self._write, rows_per_second=settings.refusal_rows_per_second)
        self.signals = Signals(clock, settings.signals, self.raise_alert)
        self.signals.import_places({f"key:{id}": use.places for id, use in shard.access.uses().items()})

    def flush(self) -> None:
        """Journal what was held back."""
        self.refusals.flush()
        self._looks.flush()

    def refuse(
        self,
        call: Call,
        principal: Principal | None,
        tenant: str | None,
        action: str,
        queue: str | None,
        error: TenantqError,
    ) -> None:
        """Count, journal and watch a call that was refused before the engine."""
        who = principal.id if principal is not None else "unknown"
        home = principal.tenant if principal is not None else None
        tenant = tenant if type(tenant) is str else None
        known = tenant if tenant is not None and tenant in self._shard.tenants_served() else home or ""
        self.refusals.note(
            Refusal(
                tenant=known,
                queue=queue or "",
                action=action,
                principal=who,
                remote=call.remote,
                request_id=call.request_id,
                user_agent=call.user_agent,
                outcome=_outcome(error),
                error_code=error.code,
                details=_whose(principal, tenant),
            )
        )
        self._tally.turn_away(action, error.code)
        if known and isinstance(error, Limited):
            self._tally.throttled[known] += 1
        if isinstance(error, Unauthenticated | Forbidden) and home not in PROBE_TENANTS:  # whose business that is
            self.signals.denied(who, known)
            if principal is not None and tenant is not None and tenant != home:
                self.signals.crossed(who, home or "", tenant)

    def note_look(self, call: Call, entered: Entered, action: str, queue: str, details: str) -> None:
        """Journal that somebody was shown contents without leasing them; what was leased is journaled by the engine."""
        self._looks.note(
            Refusal(
                tenant=entered.tenant,
                queue=queue,
                action=action,
                principal=entered.caller.principal,
                remote=call.remote,
                request_id=call.request_id,
                user_agent=call.user_agent,
                outcome="ok",
                error_code="",
                details=details,
            )
        )

    def note_failure(
        self, call: Call, caller: Caller, tenant: str, act: str, queue: str | None, error: TenantqError
    ) -> None:
        """Count and journal an act of somebody who was let in, that failed before it reached the engine."""
        self.refusals.note(
            Refusal(
                tenant=tenant,
                queue=queue or "",
                action=act,
                principal=caller.principal,
                remote=caller.remote,
                request_id=caller.request_id,
                user_agent=call.user_agent,
                outcome=_outcome(error),
                error_code=error.code,
            )
        )
        self._tally.turn_away(act, error.code)

    def raise_alert(self, alert: Alert) -> None:
        """Count and journal something that a person should look at."""
        self._tally.alerts[alert.kind] += 1
        details = f"{alert.severity}: {alert.details}"
        entry = JournalEntry("alert", alert.tenant, "", alert.principal, outcome=alert.kind, details=details)
        self._in_background(self.note_entries([entry]))

    def _write(self, refusals: list[CountedRefusal]) -> None:
        entries = [
            JournalEntry(
                one.action, one.tenant, one.queue, one.principal, one.remote, one.request_id, outcome=one.outcome,
                error_code=one.error_code, details=one.details, count=one.count, user_agent=one.user_agent,
            )
            for one in refusals
        ]  # fmt: skip
        self._in_background(self.note_entries(entries))


def _whose(principal: Principal | None, tenant: str | None) -> str:
    """Return what the journal notes of a call that was not about the caller's own tenant."""
    if principal is None or tenant is None or principal.tenant == tenant:
        return ""
    home = principal.tenant if principal.tenant is not None else "the platform"
    return f"a credential of {home} asked for tenant {tenant[:_NAME_SHOWN_CHARS]!r}"


def _outcome(error: TenantqError) -> Literal["denied", "throttled", "refused"]:
    if isinstance(error, Unauthenticated | Forbidden):
        return "denied"
    if isinstance(error, Limited | Unavailable):
        return "throttled"
    return "refused"
