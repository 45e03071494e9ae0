"""An application with a tracer: a producer, and a worker that adds to another queue. Run as a process by its tests.

A tracer provider is global and cannot be replaced, so it is never set in the process of the tests.
"""

from __future__ import annotations

import asyncio
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tenantq import AsyncClient, Client, NewMessage, Worker

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The context of a message that already has one when it is added."""

tracer = trace.get_tracer("application")


def produce(url: str, token: str) -> None:
    """Add one message, a batch, and several from different traces in one request."""
    with Client(url, token=token) as tenant:
        with tracer.start_as_current_span("order"):
            tenant.queue("single").add("one")
        with tracer.start_as_current_span("orders"):
            fails = NewMessage(body=b"c", attributes={"traceparent": OWN}, max_attempts=1)
            tenant.queue("batch").add_many(["a", "b", fails])
        full = {f"attribute-{number}": "x" for number in range(32)}
        with tracer.start_as_current_span("full"):
            tenant.queue("full").add("as many attributes as allowed", attributes=full)
    asyncio.run(produce_together(url, token))


async def produce_together(url: str, token: str) -> None:
    """Add from two traces at the same time."""

    async def order(number: int) -> None:
        with tracer.start_as_current_span(f"order {number}"):
            await client.queue("shared").add(str(number))

    async with AsyncClient(url, token=token) as client:
        await asyncio.gather(order(1), order(2))


def work(url: str, token: str) -> None:
    """Handle all messages."""
    worker = Worker(url, token=token)
    with Client(url, token=token) as client:

        @worker.task("single")
        def handle_in_a_thread(body: bytes) -> None:
            with tracer.start_as_current_span("handler"):
                client.queue("next").add(body)

        @worker.task("batch")
        async def handle(body: bytes) -> None:
            if body == b"c":
                raise ValueError("no c")

        @worker.task("shared")
        async def handle_shared(body: bytes) -> None:
            pass

        assert worker.run(burst=True)


if __name__ == "__main__":
    _, part, collector_url, server_url, key = sys.argv
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector_url}/v1/traces")))
    trace.set_tracer_provider(provider)
    {"produce": produce, "work": work}[part](server_url, key)
    provider.shutdown()
