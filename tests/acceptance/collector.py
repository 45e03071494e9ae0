"""An OpenTelemetry collector for tests: receives OTLP over HTTP and decodes what arrives."""

from __future__ import annotations

import gzip
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

KINDS: dict[str, type[Any]] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Samples by name and labels, as Prometheus names them."""


class Collector:
    """Everything received so far."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.requests: list[tuple[str, Any]] = []

    def _all(self, path: str, *parts: str) -> list[Any]:
        found = [request for kind, request in list(self.requests) if kind == path]
        for part in parts:
            found = [one for outer in found for one in getattr(outer, part)]
        return found

    @property
    def spans(self) -> list[Span]:
        """All spans, of applications and servers."""
        return self._all("/v1/traces", "resource_spans", "scope_spans", "spans")

    @property
    def records(self) -> list[Any]:
        """All log records."""
        return self._all("/v1/logs", "resource_logs", "scope_logs", "log_records")

    def last_series(self, back: int = 1) -> Series:
        """Return the metrics of the last export, or of an earlier one."""
        series: Series = {}
        last = self._all("/v1/metrics")[-back]
        metrics = [one for outer in last.resource_metrics for scope in outer.scope_metrics for one in scope.metrics]
        for metric in metrics:
            data = getattr(metric, metric.WhichOneof("data"))
            for point in data.data_points:
                labels = attributes(point.attributes)
                if metric.WhichOneof("data") != "histogram":
                    series[metric.name, frozenset(labels.items())] = point.as_double
                    continue
                total = 0
                for end, count in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
                    total += count
                    series[f"{metric.name}_bucket", frozenset({**labels, "le": str(float(end))}.items())] = total
                series[f"{metric.name}_sum", frozenset(labels.items())] = point.sum
                series[f"{metric.name}_count", frozenset(labels.items())] = point.count
        return series


def attributes(found: Iterable[KeyValue]) -> dict[str, Any]:
    """Return attributes by name."""
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in found}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.requests.append((self.path, KINDS[self.path].FromString(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
