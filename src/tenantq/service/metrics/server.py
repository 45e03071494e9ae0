"""The metrics of a shard as a whole: its gates, rounds, store, journal, keys and self-checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tenantq.engine.queue_state import is_home
from tenantq.engine.shard import Shard
from tenantq.runtime.histogram import BINS, Histogram
from tenantq.runtime.metric_families import counters_by, gauges_by
from tenantq.service.admission import Admission
from tenantq.service.encryption import MessageEncryption
from tenantq.service.self_checks.runner import CheckState, SelfChecks
from tenantq.store.interface import StoreFigure

if TYPE_CHECKING:
    from tenantq.journal.exporter import Exporter


_LAST_RUN: Final[tuple[tuple[str, str, Callable[[CheckState], float]], ...]] = (
    ("tenantq_self_check_ok", "Whether the last run of a self-check succeeded.", lambda one: one.status == "ok"),
    ("tenantq_self_check_time_seconds", "Time of the last run of a self-check.", lambda one: (one.at or 0) / 1_000),
    ("tenantq_self_check_ms", "Duration of the last run of a self-check.", lambda one: one.took_ms),
)


class ServerMetrics:
    """Collects the metrics of a shard that concern no single tenant or queue."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        exporter: Exporter | None,
        encryption: MessageEncryption,
        checks: Callable[[], SelfChecks | None],
    ) -> None:
        self._checks = checks
        self._shard = shard
        self._exporter = exporter
        self._admission = admission
        self._encryption = encryption

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._of_gates()
        yield from self._of_shard()
        yield from self._of_keys()
        yield from self._of_checks()

    def _of_gates(self) -> Iterable[Metric]:
        slots, counters = self._admission.slots, self._admission.counters
        yield counters_by(("action",), "tenantq_calls", "Admitted calls.", counters.admitted)
        yield counters_by(("action", "code"), "tenantq_calls_refused", "Calls refused by a gate.", counters.refused)
        yield counters_by(("kind",), "tenantq_alerts", "Alerts raised.", counters.alerts)
        meaning = "Time that calls waited for a slot or a rate limit, if they had to."
        yield _times("tenantq_gate_wait_seconds", meaning, counters.waits)
        yield GaugeMetricFamily("tenantq_requests_in_flight", "Requests in flight.", value=slots.in_flight)
        yield GaugeMetricFamily("tenantq_requests_waiting", "Requests that wait for a slot.", value=slots.waiting)

    def _of_keys(self) -> Iterable[Metric]:
        encryption = self._encryption
        health, providers = encryption.health(), encryption.providers
        states = Counter((one.provider, one.state) for one in health.keys)
        meaning = "Keys that wrap data keys, used since the start."
        yield gauges_by(("provider", "state"), "tenantq_kms_keys", meaning, states)
        took = HistogramMetricFamily("tenantq_kms_call_seconds", "Duration of calls to a KMS.", labels=["provider"])
        for provider, kms in providers.items():
            took.add_metric([provider], kms.took.cumulative(), kms.took.sum_us / 1_000_000)
        yield took
        failed = {provider: kms.failed for provider, kms in providers.items()}
        yield counters_by(("provider",), "tenantq_kms_calls_failed", "Calls to a KMS that failed.", failed)
        encrypted, keyless = len(encryption.encrypted_tenants), len(encryption.keyless)
        yield GaugeMetricFamily("tenantq_encrypted_tenants", "Tenants that have data keys.", value=encrypted)
        yield GaugeMetricFamily("tenantq_data_keys_cached", "Data keys in memory.", value=health.cached_keys)
        meaning = "Tenants with encrypted messages whose data keys are missing."
        yield GaugeMetricFamily("tenantq_tenants_without_data_keys", meaning, value=keyless)
        meaning = "Messages that could not be decrypted."
        yield CounterMetricFamily("tenantq_seals_broken", meaning, value=encryption.broken)

    def _of_checks(self) -> Iterable[Metric]:
        checks = self._checks()
        if checks is None:
            return
        last = {name: one for name, one in checks.states.items() if one.at is not None}
        for name, meaning, value in _LAST_RUN:
            yield gauges_by(("check",), name, meaning, {check: value(one) for check, one in last.items()})
        runs = {(name, status): count for name, one in last.items() for status, count in one.runs.items()}
        yield counters_by(("check", "status"), "tenantq_self_checks", "Runs of self-checks.", runs)

    def _of_shard(self) -> Iterable[Metric]:
        shard, state, figures = self._shard, self._shard.state, self._shard.loop.figures
        first, last = shard.journal.span
        tenants, damaged = sum(map(is_home, state.catalog.tenants.values())), len(state.damaged)
        yield GaugeMetricFamily("tenantq_tenants", "Tenants.", value=tenants)
        yield GaugeMetricFamily("tenantq_damaged_queues", "Queues quarantined for damaged rows.", value=damaged)
        yield CounterMetricFamily("tenantq_rounds", "Rounds run since the start.", value=figures.rounds)
        yield _times("tenantq_round_seconds", "How long rounds took, up to their write.", figures.took)
        sizes = HistogramMetricFamily("tenantq_round_size", "Operations of a round.")
        bounds = (*(f"{1 << power}.0" for power in range(BINS)), "+Inf")
        counts = (count for _, count in figures.sizes.cumulative())
        sizes.add_metric([], list(zip(bounds, counts, strict=True)), figures.operations)
        yield sizes
        yield CounterMetricFamily("tenantq_round_operations", "Operations run in rounds.", value=figures.operations)
        yield _times("tenantq_write_seconds", "How long the writes of rounds took.", figures.writes_took)
        yield _times("tenantq_sync_seconds", "How long syncs took.", figures.syncs_took)
        yield from _figures(state.store.figures())
        yield GaugeMetricFamily("tenantq_journal_records", "Journal records not yet trimmed.", value=last - first + 1)
        if (exporter := self._exporter) is not None:
            lag, lag_bytes, failures = exporter.lag_records, exporter.lag_bytes, exporter.failures_total
            yield GaugeMetricFamily("tenantq_journal_lag_records", "Journal records that wait for export.", value=lag)
            rows = exporter.rows_total
            yield CounterMetricFamily("tenantq_journal_rows_exported", "Journal rows exported.", value=rows)
            yield GaugeMetricFamily("tenantq_journal_lag_bytes", "Bytes of those records.", value=lag_bytes)
            meaning = "Attempts to export that failed."
            yield CounterMetricFamily("tenantq_journal_export_failures", meaning, value=failures)


def _figures(figures: Iterable[StoreFigure]) -> Iterable[Metric]:
    families: dict[str, Metric] = {}
    for one in figures:
        if isinstance(one.value, Histogram):
            families[one.name] = _times(one.name, one.meaning, one.value)
            continue
        family = families.get(one.name)
        if family is None:
            kind = "counter" if one.name.endswith("_total") else "gauge"
            family = families[one.name] = Metric(one.name.removesuffix("_total"), one.meaning, kind)
        family.add_sample(one.name, one.labels, one.value)
    return families.values()


def _times(name: str, meaning: str, times: Histogram) -> Metric:
    family = HistogramMetricFamily(name, meaning)
    family.add_metric([], times.cumulative(), times.sum_us / 1_000_000)
    return family
