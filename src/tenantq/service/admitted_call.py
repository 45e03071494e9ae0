"""A call that passed the gates."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tenantq.domain.access import Principal
from tenantq.engine.queue_state import TenantState
from tenantq.gates.ticket import Ticket
from tenantq.runtime.clock import Clock
from tenantq.runtime.histogram import Histogram
from tenantq.runtime.log_context import served_request
from tenantq.service.call import Call
from tenantq.service.request_log import RequestLog

if TYPE_CHECKING:
    from tenantq.service.call_tracing import CallSpan, CallTracing


class AdmittedCall:
    """The caller, its tenant and its slot. ``with admitted:`` releases the slot when the call ends."""

    __slots__ = (
        "_call", "_clock", "_durations", "_log", "_since_us", "action", "caller", "principal", "queue", "span",
        "state", "tenant", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        principal: Principal,
        state: TenantState,
        ticket: Ticket,
        clock: Clock,
        durations: Histogram | None,
        since_us: int,
        action: str,
        queue: str | None,
        log: RequestLog,
    ) -> None:
        self._call = call
        self.principal = principal
        self.state = state  # of the tenant
        self.tenant = state.name
        self.caller = call.caller(principal.id)
        self.ticket = ticket
        self._clock = clock
        self._durations = durations  # None: the call is not measured, or was measured already
        self._since_us = since_us
        self.action, self.queue = action, queue
        self._log = log if log.is_on else None
        self.span: CallSpan | None = None  # None: the call is not traced
        served_request.set(self)

    def start_span(self, tracing: CallTracing, since_us: int) -> None:
        """Trace the call, which started at ``since_us`` of the monotonic clock."""
        passed_us = self._clock.monotonic_us() - since_us
        self.span = tracing.start_span(self._call, self.action, self.tenant, self.queue, passed_us)

    def log_fields(self) -> dict[str, Any]:
        """Return the fields of log records about this call."""
        state, caller = self.state, self.caller
        fields = {"tenant": state.name, "tenant_id": state.id}
        if self.queue is not None:
            fields["queue"] = self.queue
            if (queue := state.queues.get(self.queue)) is not None:
                fields["queue_id"] = queue.id
        trace_id = self._call.trace_id if self.span is None else self.span.trace_id
        fields |= {"request_id": caller.request_id, "principal": caller.principal, "trace_id": trace_id}
        if self.span is not None:
            fields["span_id"] = self.span.span_id
        return {name: value for name, value in fields.items() if value != ""}

    def park(self) -> None:
        """Release the slot while the call waits for messages. The waiting time is not measured."""
        self._measure()
        self.ticket.park()

    def _measure(self) -> None:
        durations, self._durations = self._durations, None
        if durations is not None:
            durations.count(self._clock.monotonic_us() - self._since_us)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._measure()
        self.ticket.release()
        if self.span is not None:
            self.span.end(error)
        if self._log is not None:
            outcome = "ok" if kind is None else getattr(error, "code", "internal")
            self._log.write(self.action, outcome, self._clock.monotonic_us() - self._since_us, self.log_fields())
