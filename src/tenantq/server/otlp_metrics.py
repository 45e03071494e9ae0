"""Metrics in the data model of OpenTelemetry, from the text that Prometheus scrapes: each metric is defined once."""

from collections.abc import Iterator
from itertools import pairwise

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

_CUMULATIVE = AggregationTemporality.CUMULATIVE


def to_otlp(text: str, resource: Resource, started_ns: int, now_ns: int) -> MetricsData:
    """Return all metrics of a text in the format of Prometheus. Names and labels stay the same."""
    families = text_string_to_metric_families(text)
    metrics = [_metric(family, started_ns, now_ns) for family in families if family.samples]
    scope = ScopeMetrics(InstrumentationScope("tenantq"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, started_ns: int, now_ns: int) -> Metric:
    data: Gauge | Histogram | Sum
    name = family.name
    if family.type == "histogram":
        data = Histogram(list(_histograms(family, started_ns, now_ns)), _CUMULATIVE)
    else:
        points = [NumberDataPoint(one.labels, started_ns, now_ns, float(one.value)) for one in family.samples]
        data = Gauge(points)
        if family.type == "counter":
            name, data = f"{name}_total", Sum(points, _CUMULATIVE, is_monotonic=True)
    unit = "s" if "_seconds" in name else "By" if "_bytes" in name else ""
    return Metric(name, family.documentation, unit, data)


def _histograms(family: Family, started_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    """Yield a point per set of labels. Its samples follow each other: buckets in order, their sum, their count."""
    bins: list[tuple[float, int]] = []
    total = 0.0
    for one in family.samples:
        kind = one.name.removeprefix(family.name)
        if kind == "_bucket":
            bins.append((float(one.labels["le"]), int(one.value)))
        elif kind == "_sum":
            total = one.value
        else:
            counts = [count - before for (_, before), (_, count) in pairwise([(0.0, 0), *bins])]
            unknown: float = None  # type: ignore[assignment]  # the exporter leaves out a minimum and maximum of None
            yield HistogramDataPoint(
                one.labels, started_ns, now_ns, int(one.value), total, counts, [end for end, _ in bins[:-1]],
                min=unknown, max=unknown,
            )  # fmt: skip
            bins, total = [], 0.0
