"""Families of metrics with one sample for each value of their labels."""

from collections.abc import Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def counters_by(labels: tuple[str, ...], name: str, meaning: str, values: Mapping[Any, float]) -> Metric:
    """Return a family of counters. The keys of ``values`` are the values of the label, or tuples for several labels."""
    return _by(CounterMetricFamily, labels, name, meaning, values)


def gauges_by(labels: tuple[str, ...], name: str, meaning: str, values: Mapping[Any, float]) -> Metric:
    """Return a family of gauges, as ``counters_by``."""
    return _by(GaugeMetricFamily, labels, name, meaning, values)


def _by(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    labels: tuple[str, ...],
    name: str,
    meaning: str,
    values: Mapping[Any, float],
) -> Metric:
    family = kind(name, meaning, labels=labels)
    for key, value in values.items():
        family.add_metric([str(part) for part in key] if isinstance(key, tuple) else [str(key)], value)
    return family
