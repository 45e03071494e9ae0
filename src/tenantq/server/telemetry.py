"""Export of traces, metrics and logs to an OpenTelemetry collector. Imported only if the settings name one."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from opentelemetry import trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from tenantq.errors import TenantqError
from tenantq.runtime.log_context import add_request_fields, extra_fields
from tenantq.server.otlp_metrics import to_otlp
from tenantq.service.call_tracing import CallTracing
from tenantq.service.metrics.settings import TelemetrySettings
from tenantq.service.server_status import VERSION

log: Final = logging.getLogger("tenantq.telemetry")

CLOSE_S: Final = 2.0
"""How long a stop waits for the last exports."""
PROBLEM_EVERY_S: Final = 3_600
_QUEUED_MAX: Final = 16_384  # spans or log records in memory; the oldest are dropped beyond
_READER: Final = "otlp"  # of the metrics; see Metrics.text
_EXPORT_S: Final = 10
_DELAY_MS: Final = 1_000  # between two exports of spans or log records
_NOT_EXPORTED: Final = ("opentelemetry", "urllib3", "requests")
"""Loggers of the export itself, which would feed itself."""


class Telemetry:
    """Exports what a process measures and logs, in background threads. A dead collector delays nothing."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._interval_s = settings.metrics_interval_ms / 1_000
        base, started_ns = (settings.otlp_endpoint or "").rstrip("/"), time.time_ns()
        name, instance = os.environ.get("OTEL_SERVICE_NAME", "tenantq"), f"{socket.gethostname()}-{os.getpid()}"
        resource = Resource.create({"service.name": name, "service.version": VERSION, "service.instance.id": instance})
        self._closers: list[Callable[[], None]] = []
        self._problems = _ExporterProblems.install()
        self.calls: CallTracing | None = None
        self._texts: queue.Queue[bytes | None] = queue.Queue(maxsize=2)
        self._reading: asyncio.Task[None] | None = None
        self._read: Callable[[str], Awaitable[bytes]] | None = None
        self._exports_metrics = settings.metrics
        self._handler: _LogExport | None = None
        if settings.metrics:
            metrics = OTLPMetricExporter(f"{base}/v1/metrics", timeout=_EXPORT_S, compression=Compression.Gzip)

            def export() -> None:
                while (text := self._texts.get()) is not None:
                    try:
                        metrics.export(to_otlp(text.decode(), resource, started_ns, time.time_ns()))
                    except Exception:
                        log.exception("metrics are not exported this time")

            thread = threading.Thread(target=export, name="tenantq-otlp-metrics", daemon=True)
            thread.start()
            self._closers.append(thread.join)
        if settings.traces:
            spans = OTLPSpanExporter(f"{base}/v1/traces", timeout=_EXPORT_S, compression=Compression.Gzip)
            sampler = ParentBased(TraceIdRatioBased(settings.sample_ratio))
            tracers = TracerProvider(sampler, resource, shutdown_on_exit=False)
            tracers.add_span_processor(BatchSpanProcessor(spans, _QUEUED_MAX, _DELAY_MS))
            self._closers.append(tracers.shutdown)
            self.calls = CallTracing(tracers.get_tracer("tenantq", VERSION))
        if settings.logs:
            records = OTLPLogExporter(f"{base}/v1/logs", timeout=_EXPORT_S, compression=Compression.Gzip)
            loggers = LoggerProvider(resource, shutdown_on_exit=False)
            loggers.add_log_record_processor(
                BatchLogRecordProcessor(records, schedule_delay_millis=_DELAY_MS, max_queue_size=_QUEUED_MAX)
            )
            self._closers.append(loggers.shutdown)
            self._handler = _LogExport(loggers)
            logging.getLogger().addHandler(self._handler)

    def start_metrics(self, read: Callable[[str], Awaitable[bytes]]) -> None:
        """Export at intervals what ``read`` returns for a reader: metrics in the text format of Prometheus."""
        if self._exports_metrics:
            self._read = read
            self._reading = asyncio.create_task(self._keep_reading())

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._read_once()

    async def _read_once(self) -> None:
        assert self._read is not None
        try:
            text = await self._read(_READER)
        except TenantqError as error:
            log.warning("metrics are not exported this time: %s", error.message)
        except Exception:
            log.exception("metrics are not exported this time")
        else:
            with suppress(queue.Full):  # the collector is slow; counters are in the next export too
                self._texts.put_nowait(text)

    async def stop_metrics(self) -> None:
        """Export the metrics for the last time, while they can still be read."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
            await self._read_once()

    async def close(self) -> None:
        """Export the rest, for at most CLOSE_S. The threads are daemons: a dead collector does not keep the process alive."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            self._texts.put(None)
            for close in self._closers:
                close()
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=end, name="tenantq-otlp-end", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), CLOSE_S)
        self._problems.uninstall()


class _LogExport(logging.Handler):
    """Exports log records with their fields. Those of a call carry its trace."""

    def __init__(self, loggers: LoggerProvider) -> None:
        super().__init__()
        self._logger = loggers.get_logger("tenantq", VERSION)
        self.addFilter(add_request_fields)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_NOT_EXPORTED):
            return
        fields = {"logger": record.name, **extra_fields(record)}
        context = trace.SpanContext(_id(fields.get("trace_id")), _id(fields.get("span_id")), is_remote=False)
        error = record.exc_info[1] if record.exc_info else None
        self._logger.emit(
            timestamp=int(record.created * 1e9),
            context=trace.set_span_in_context(trace.NonRecordingSpan(context)),
            severity_text=record.levelname,
            severity_number=_severity(record.levelno),
            body=record.getMessage(),
            attributes={
                name: value if isinstance(value, bool | int | float | str) else str(value)
                for name, value in fields.items()
            },
            exception=error,
        )


def _id(text: object) -> int:
    try:
        return int(str(text or "0"), 16)
    except ValueError:
        return 0


def _severity(level: int) -> SeverityNumber:
    """Return the severity of a standard level: DEBUG is 5, INFO 9, WARNING 13, ERROR 17, CRITICAL 21."""
    return SeverityNumber(max(1, min(21, 1 + 4 * (level // 10))))


class _ExporterProblems(logging.Handler):
    """Logs the problems of each exporter once an hour, instead of at every export."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logged_s: dict[str, float] = {}

    @classmethod
    def install(cls) -> _ExporterProblems:
        """Return the handler of all loggers of OpenTelemetry."""
        logger, handler = logging.getLogger("opentelemetry"), cls()
        logger.addHandler(handler)
        logger.propagate = False
        return handler

    def uninstall(self) -> None:
        logging.getLogger("opentelemetry").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s.get(record.name, -PROBLEM_EVERY_S) >= PROBLEM_EVERY_S:
            self._logged_s[record.name] = now_s
            log.warning("telemetry is not exported: %s", record.getMessage())
