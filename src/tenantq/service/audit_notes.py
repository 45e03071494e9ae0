"""Audit notes: journal rows that the service writes itself, for refused calls, reads of contents and alerts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tenantq.domain.access import Principal
from tenantq.domain.message import Caller
from tenantq.domain.names import PROBE_TENANTS
from tenantq.engine.shard import Shard
from tenantq.errors import Forbidden, Limited, TenantMoved, TenantqError, Unauthenticated, Unavailable
from tenantq.gates.call_notes import CallNote, CallNotes, CallOutcome, CountedCallNote
from tenantq.gates.signals import Alert, Signals
from tenantq.journal.record import JournalEntry
from tenantq.runtime.clock import Clock
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.call import Call
from tenantq.service.gate_counters import GateCounters
from tenantq.service.gate_settings import GateSettings
from tenantq.service.request_log import RequestLog

if TYPE_CHECKING:
    from tenantq.service.call_tracing import CallTracing

_NAME_SHOWN_CHARS = 40
_VIEWS_MAX = 10_000  # callers and what they read, of which repeats are counted


class AuditNotes:
    """Counts, journals and watches refused calls and reads. A flood is merged into rows with a count, so it cannot fill the disk."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        settings: GateSettings,
        background: Callable[[Coroutine[Any, Any, None]], None],
        counters: GateCounters,
        request_log: RequestLog,
        tracing: CallTracing | None,
    ) -> None:
        self._shard = shard
        self._in_background = background
        self._counters = counters
        self._request_log = request_log
        self._tracing = tracing
        self.note_entries: Callable[[list[JournalEntry]], Coroutine[Any, Any, None]] = shard.journal.note
        self._refusals = CallNotes(clock, self._write, rows_per_second=settings.refusal_rows_per_second)
        self._reads = CallNotes(clock, self._write, rows_per_second=settings.refusal_rows_per_second)
        self._views = CallNotes(
            clock, self._write, settings.refusal_rows_per_second, _VIEWS_MAX, settings.view_window_ms,
            merges_repeats=True,
        )  # fmt: skip
        self.on_alert: Callable[[Alert], None] = lambda _: None
        self.signals = Signals(clock, settings.signals, self.raise_alert)
        self.signals.import_places({f"key:{id}": use.places for id, use in shard.state.access.uses().items()})

    def flush(self) -> None:
        """Write pending notes to the journal."""
        self._refusals.flush()
        self._reads.flush()
        self._views.flush()

    def note_refusal(
        self,
        call: Call,
        principal: Principal | None,
        tenant: str | None,
        action: str,
        queue: str | None,
        error: TenantqError,
    ) -> None:
        """Count, journal and watch a call that a gate refused."""
        name = principal.id if principal is not None else "unknown"
        home = principal.tenant if principal is not None else None
        tenant = tenant if type(tenant) is str else None
        known = tenant if tenant is not None and tenant in self._shard.state.catalog.tenants else home or ""
        caller = call.caller(name)
        self._note_error(caller, known, action, queue, error, _foreign_tenant(principal, tenant))
        if self._request_log.is_on:
            fields = {"tenant": known, "queue": queue, **call.log_fields(), "principal": name}
            self._request_log.write(action, error.code, 0, {name: value for name, value in fields.items() if value})
        if self._tracing is not None and not isinstance(error, TenantMoved):
            self._tracing.refuse(call, action, known, queue, error)
        tenants = self._shard.state.catalog.tenants
        if known in tenants:
            counters = tenants[known].counters
            counters.refused[error.code] += 1
            counters.throttled += isinstance(error, Limited)
        if isinstance(error, Unauthenticated | Forbidden) and home not in PROBE_TENANTS:
            self.signals.denied(name, known, home or "")
            if principal is not None and tenant is not None and tenant != home:
                self.signals.crossed(name, home or "", tenant)
                if home in tenants:
                    tenants[home].counters.cross_tenant += 1

    @contextmanager
    def noting_refusal(
        self, call: Call, principal: Principal | None, tenant: str | None, action: str, queue: str | None = None
    ) -> Iterator[None]:
        """Note the error that a gate in the block raises."""
        try:
            yield
        except TenantqError as error:
            self.note_refusal(call, principal, tenant, action, queue, error)
            raise

    def note_failure(self, caller: Caller, tenant: str, action: str, queue: str | None, error: TenantqError) -> None:
        """Count and journal an action of an admitted caller that failed before it reached the engine."""
        self._note_error(caller, tenant, action, queue, error, "")

    @contextmanager
    def noting_failure(self, caller: Caller, tenant: str, action: str, queue: str | None = None) -> Iterator[None]:
        """Journal an error that the block raises."""
        try:
            yield
        except TenantqError as error:
            self.note_failure(caller, tenant, action, queue, error)
            raise

    def note_read(self, admitted: AdmittedCall, action: str, queue: str, details: str) -> None:
        """Journal that a caller was shown contents without leasing them. The engine journals leases itself."""
        self._reads.note(_note(admitted.caller, admitted.tenant, action, queue, "ok", "", details))

    def note_view(self, caller: Caller, tenant: str, action: str, details: str = "", *, queue: str = "") -> None:
        """Journal that a caller was shown configuration or the audit trail. Repeats, such as polls of a queue, are merged."""
        self._views.note(_note(caller, tenant, action, queue, "ok", "", details))

    def raise_alert(self, alert: Alert) -> None:
        """Count and journal an alert, and notify people of it."""
        self.journal_alert(alert)
        self.on_alert(alert)

    def journal_alert(self, alert: Alert) -> None:
        """Count and journal an alert."""
        self._counters.alerts[alert.kind] += 1
        details = f"{alert.severity}: {alert.details}"
        entry = JournalEntry("alert", alert.tenant, "", alert.principal, outcome=alert.kind, details=details)
        self._in_background(self.note_entries([entry]))

    def journal_resolved(self, kind: str, tenant: str, principal: str, details: str) -> None:
        """Journal that an alert has ended."""
        entry = JournalEntry("resolve_alert", tenant, "", principal, outcome=kind, details=details)
        self._in_background(self.note_entries([entry]))

    def _note_error(
        self, caller: Caller, tenant: str, action: str, queue: str | None, error: TenantqError, details: str
    ) -> None:
        if isinstance(error, TenantMoved):
            return  # the call is repeated at the other shard, which notes its outcome
        self._refusals.note(_note(caller, tenant, action, queue or "", _outcome(error), error.code, details))
        self._counters.refused[action, error.code] += 1

    def _write(self, refusals: list[CountedCallNote]) -> None:
        entries = [
            JournalEntry(
                one.action, one.tenant, one.queue, one.principal, one.remote, one.request_id, outcome=one.outcome,
                error_code=one.error_code, details=one.details, count=one.count, user_agent=one.user_agent,
            )
            for one in refusals
        ]  # fmt: skip
        self._in_background(self.note_entries(entries))


def _note(
    caller: Caller, tenant: str, action: str, queue: str, outcome: CallOutcome, error_code: str, details: str
) -> CallNote:
    return CallNote(
        tenant=tenant, queue=queue, action=action, principal=caller.principal, remote=caller.remote,
        request_id=caller.request_id, user_agent=caller.user_agent, outcome=outcome, error_code=error_code,
        details=details,
    )  # fmt: skip


def _foreign_tenant(principal: Principal | None, tenant: str | None) -> str:
    """Return the details of a call that named another tenant than the caller's own."""
    if principal is None or tenant is None or principal.tenant == tenant:
        return ""
    home = principal.tenant if principal.tenant is not None else "the platform"
    return f"a credential of {home} asked for tenant {tenant[:_NAME_SHOWN_CHARS]!r}"


def _outcome(error: TenantqError) -> CallOutcome:
    if isinstance(error, Unauthenticated | Forbidden):
        return "denied"
    if isinstance(error, Limited | Unavailable):
        return "throttled"
    return "refused"
