"""Settings of the metrics, and of their export with traces and logs."""

from typing import Annotated

import msgspec

from tenantq.domain.validation import about, between, matching

_Labels = Annotated[int, between(1, 100_000)]


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many series a scrape returns at most. The shards of a process share these numbers."""

    tenants: Annotated[_Labels, about("Most active tenants with their own label; the others share `_other`.")] = 100
    queues: Annotated[_Labels, about("Most active queues with their own label; the others share `_other`.")] = 500


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a server exports to an OpenTelemetry collector, besides the metrics that Prometheus scrapes.

    Needs the extra `otel`. Headers, such as a credential, come from `OTEL_EXPORTER_OTLP_HEADERS`.
    """

    otlp_endpoint: (
        Annotated[
            str,
            matching(r"https?://[!-~]+", "an http or https URL"),
            about("OTLP/HTTP collector, such as `http://127.0.0.1:4318`. Default: none."),
        ]
        | None
    ) = None
    traces: Annotated[bool, about("Export spans of calls on tenants and queues.")] = True
    metrics: Annotated[bool, about("Export the metrics of `/metrics`.")] = True
    logs: Annotated[bool, about("Export the log.")] = True
    sample_ratio: Annotated[
        float, msgspec.Meta(ge=0, le=1), about("Share of traces to keep unless the client decides.")
    ] = 1.0
    metrics_interval_ms: Annotated[int, between(100, 3_600_000, "Time between two exports of metrics.")] = 60_000
