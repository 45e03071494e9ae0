"""OpenTelemetry spans of producers and workers, linked by the W3C trace context in message attributes.

Imported only by applications that use OpenTelemetry; see ``find_tracing``. Names and attributes follow the semantic
conventions for messaging.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version

import msgspec
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode

from tenantq.client.outgoing_message import OutgoingMessage
from tenantq.domain import limits
from tenantq.runtime.trace_context import LINKS_MAX, NO_SPAN, PROPAGATOR, context_of, header_of
from tenantq.wire.messages import DeliveredItem


class ClientTracing:
    """Spans of one client, created with the application's tracer."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("tenantq", version("tenantq"))

    def current(self) -> SpanContext | None:
        """Return the context of the application's current span, if it has one."""
        context = trace.get_current_span().get_span_context()
        return context if context.is_valid else None

    def current_header(self) -> str:
        """Return the context of the current span as a ``traceparent`` header, empty without a span."""
        return header_of(trace.get_current_span().get_span_context())

    @contextmanager
    def sending(self, queue: str, batch: Sequence[OutgoingMessage]) -> Iterator[list[OutgoingMessage]]:
        """Yield messages with the context of a new producer span. Those with their own context keep it and are linked."""
        found = [context_of(one.message.attributes) for one in batch]
        attributes = {**_about("send", "send", queue), "messaging.batch.message_count": len(batch)}
        with self._tracer.start_as_current_span(
            f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes, links=_links_to(found)
        ) as span:
            context, carrier = span.get_span_context(), dict[str, str]()
            PROPAGATOR.inject(carrier)
            yield [
                _with_context(one, context, carrier if theirs is None else {})
                for one, theirs in zip(batch, found, strict=True)
            ]

    @contextmanager
    def requesting(self, operation: str, queue: str, contexts: Iterable[SpanContext | None]) -> Iterator[str]:
        """Yield the ``traceparent`` of a request for calls with these contexts.

        If there are several, the request gets its own span with links to them.
        """
        distinct = _distinct(contexts)
        if len(distinct) <= 1:
            yield header_of(distinct[0]) if distinct else ""
            return
        kind = "send" if operation == "send" else "settle"
        name, attributes = f"{operation} {queue}", _about(operation, kind, queue)
        with self._tracer.start_as_current_span(
            name, context=NO_SPAN, kind=SpanKind.CLIENT, attributes=attributes, links=_links_to(distinct)
        ) as span:
            yield header_of(span.get_span_context())

    @contextmanager
    def processing(self, message: DeliveredItem) -> Iterator[Span]:
        """Run the block in a consumer span that continues the trace of the message."""
        attributes = {
            **_about("process", "process", message.queue),
            "tenantq.tenant": message.tenant,
            "tenantq.attempt": message.attempt,
            "messaging.message.id": message.id,
        }
        with self._tracer.start_as_current_span(
            f"process {message.queue}",
            context=PROPAGATOR.extract(message.attributes, NO_SPAN),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links_to([context_of(message.attributes)]),
        ) as span:
            yield span

    @staticmethod
    def finish(span: Span, outcome: str, error: BaseException | None) -> None:
        """Note on the span of a message how it was settled, and the error of its handler."""
        span.set_attribute("tenantq.outcome", outcome)
        if error is not None:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(StatusCode.ERROR)


def _links_to(contexts: Iterable[SpanContext | None]) -> list[Link]:
    """Return links to different contexts."""
    return [Link(one) for one in _distinct(contexts)[:LINKS_MAX]]


def _distinct(contexts: Iterable[SpanContext | None]) -> list[SpanContext]:
    return list({(one.trace_id, one.span_id): one for one in contexts if one is not None}.values())


def _about(operation: str, kind: str, queue: str) -> dict[str, str | int]:
    return {
        "messaging.system": "tenantq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }


def _with_context(one: OutgoingMessage, context: SpanContext, carrier: Mapping[str, str]) -> OutgoingMessage:
    """Return a message with more attributes, unless that would exceed the limits on them."""
    attributes = {**one.message.attributes, **carrier}
    size = sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
    if len(attributes) > limits.ATTRIBUTES_MAX or size > limits.ATTRIBUTES_BYTES_MAX:
        attributes = one.message.attributes
    message = msgspec.structs.replace(one.message, attributes=attributes)
    return msgspec.structs.replace(one, message=message, size=one.size + len(carrier) * 80, trace=context)
