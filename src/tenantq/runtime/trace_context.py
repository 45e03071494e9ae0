"""The W3C trace context in attributes and headers. Imported only where OpenTelemetry is used."""

from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

LINKS_MAX: Final = 128
"""Links of one span; SDKs drop more by default."""
NO_SPAN: Final = trace.set_span_in_context(trace.INVALID_SPAN)
"""A context in which new spans have no parent."""
PROPAGATOR: Final = TraceContextTextMapPropagator()


def context_of(carrier: Mapping[str, str]) -> SpanContext | None:
    """Return the trace context in attributes or headers; None if it is missing or malformed."""
    if "traceparent" not in carrier:
        return None
    found = trace.get_current_span(PROPAGATOR.extract(carrier, NO_SPAN)).get_span_context()
    return found if found.is_valid else None


def header_of(context: SpanContext) -> str:
    """Return a context as a ``traceparent`` header; empty if it is invalid, as with a tracer that does nothing."""
    if not context.is_valid:
        return ""
    ids = f"{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}"
    return f"00-{ids}-{context.trace_flags:02x}"
