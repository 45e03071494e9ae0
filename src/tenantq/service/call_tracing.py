"""OpenTelemetry spans of the calls that a server handles. Imported only if traces are exported."""

from __future__ import annotations

import time
from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from tenantq.runtime.trace_context import LINKS_MAX, NO_SPAN, PROPAGATOR, context_of
from tenantq.service.call import Call


class CallTracing:
    """Creates the spans of calls."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def start_span(self, call: Call, action: str, tenant: str, queue: str | None, passed_us: int = 0) -> CallSpan:
        """Start the span of a call that began ``passed_us`` ago, in the trace of its client, if any."""
        attributes = {
            "messaging.system": "tenantq",
            "messaging.operation.name": action,
            "tenantq.tenant": tenant,
            "tenantq.request_id": call.request_id,
        }
        if queue:
            attributes["messaging.destination.name"] = queue
        parent = PROPAGATOR.extract({"traceparent": call.traceparent}, NO_SPAN) if call.traceparent else NO_SPAN
        span = self._tracer.start_span(
            f"{action} {queue}" if queue else action, parent, SpanKind.SERVER, attributes,
            start_time=time.time_ns() - passed_us * 1_000,
        )  # fmt: skip
        return CallSpan(span, call.traceparent)

    def refuse(self, call: Call, action: str, tenant: str, queue: str | None, error: Exception) -> None:
        """Create the span of a call that a gate refused."""
        self.start_span(call, action, tenant, queue).end(error)


class CallSpan:
    """The span of one call."""

    __slots__ = ("_parent", "_span", "span_id", "trace_id")

    def __init__(self, span: trace.Span, parent: str) -> None:
        self._span, self._parent = span, parent
        context = span.get_span_context()
        self.trace_id = trace.format_trace_id(context.trace_id)
        self.span_id = trace.format_span_id(context.span_id)

    def link(self, messages: Iterable[object]) -> None:
        """Link the call to the traces of messages that it added or delivered."""
        if not self._span.is_recording():
            return
        found = dict.fromkeys(getattr(one, "attributes", {}).get("traceparent", "") for one in messages)
        for text in [one for one in found if one not in {"", self._parent}][:LINKS_MAX]:
            if (context := context_of({"traceparent": text})) is not None:
                self._span.add_link(context)

    def end(self, error: BaseException | None) -> None:
        """End the span. The code of an error becomes its type."""
        if error is not None:
            self._span.set_attribute("error.type", getattr(error, "code", type(error).__name__))
            if isinstance(error, Exception):
                self._span.set_status(StatusCode.ERROR)
        self._span.end()
