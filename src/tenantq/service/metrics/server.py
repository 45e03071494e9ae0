"""The metrics of a shard as a whole: its gates, rounds, store, journal, keys and self-checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tenantq.engine.queue_state import is_home
from tenantq.engine.shard import Shard
from tenantq.runtime.histogram import BINS, Histogram
from tenantq.service.admission import Admission
from tenantq.service.encryption import MessageEncryption
from tenantq.service.self_checks.runner import SelfChecks
from tenantq.store.interface import StoreFigure

if TYPE_CHECKING:
    from tenantq.journal.exporter import Exporter


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
        admission, counters = self._admission, self._admission.counters
        admitted = CounterMetricFamily("tenantq_calls", "Admitted calls.", labels=["action"])
        for action, count in counters.admitted.items():
            admitted.add_metric([action], count)
        yield admitted
        refused = CounterMetricFamily("tenantq_calls_refused", "Calls refused by a gate.", labels=["action", "code"])
        for (action, code), count in counters.refused.items():
            refused.add_metric([action, code], count)
        yield refused
        alerts = CounterMetricFamily("tenantq_alerts", "Alerts raised.", labels=["kind"])
        for kind, count in counters.alerts.items():
            alerts.add_metric([kind], count)
        yield alerts
        yield _times(
            "tenantq_gate_wait_seconds",
            "Time that calls waited for a slot or a rate limit, if they had to.",
            counters.waits,
        )
        yield GaugeMetricFamily("tenantq_requests_in_flight", "Requests in flight.", value=admission.slots.in_flight)
        yield GaugeMetricFamily(
            "tenantq_requests_waiting", "Requests that wait for a slot.", value=admission.slots.waiting
        )

    def _of_keys(self) -> Iterable[Metric]:
        encryption = self._encryption
        health = encryption.health()
        keys = GaugeMetricFamily(
            "tenantq_kms_keys", "Keys that wrap data keys, used since the start.", labels=["provider", "state"]
        )
        for (provider, state), count in Counter((one.provider, one.state) for one in health.keys).items():
            keys.add_metric([provider, state], count)
        yield keys
        took = HistogramMetricFamily("tenantq_kms_call_seconds", "Duration of calls to a KMS.", labels=["provider"])
        failed = CounterMetricFamily("tenantq_kms_calls_failed", "Calls to a KMS that failed.", labels=["provider"])
        for provider, kms in encryption.providers.items():
            took.add_metric([provider], kms.took.cumulative(), kms.took.sum_us / 1_000_000)
            failed.add_metric([provider], kms.failed)
        yield from (took, failed)
        yield GaugeMetricFamily(
            "tenantq_encrypted_tenants", "Tenants that have data keys.", value=len(encryption.encrypted_tenants)
        )
        yield GaugeMetricFamily("tenantq_data_keys_cached", "Data keys in memory.", value=health.cached_keys)
        yield GaugeMetricFamily(
            "tenantq_tenants_without_data_keys",
            "Tenants with encrypted messages whose data keys are missing.",
            value=len(encryption.keyless),
        )
        yield CounterMetricFamily(
            "tenantq_seals_broken", "Messages that could not be decrypted.", value=encryption.broken
        )

    def _of_checks(self) -> Iterable[Metric]:
        checks = self._checks()
        if checks is None:
            return
        good = GaugeMetricFamily(
            "tenantq_self_check_ok", "Whether the last run of a self-check succeeded.", labels=["check"]
        )
        last = GaugeMetricFamily(
            "tenantq_self_check_time_seconds", "Time of the last run of a self-check.", labels=["check"]
        )
        took = GaugeMetricFamily("tenantq_self_check_ms", "Duration of the last run of a self-check.", labels=["check"])
        runs = CounterMetricFamily("tenantq_self_checks", "Runs of self-checks.", labels=["check", "status"])
        for name, state in checks.states.items():
            if state.at is not None:
                good.add_metric([name], state.status == "ok")
                last.add_metric([name], state.at / 1_000)
                took.add_metric([name], state.took_ms)
            for status, count in state.runs.items():
                runs.add_metric([name, status], count)
        yield from (good, last, took, runs)

    def _of_shard(self) -> Iterable[Metric]:
        shard = self._shard
        first, last = shard.journal.span
        yield GaugeMetricFamily(
            "tenantq_tenants", "Tenants.", value=sum(map(is_home, shard.state.catalog.tenants.values()))
        )
        damaged = len(shard.state.damaged)
        yield GaugeMetricFamily("tenantq_damaged_queues", "Queues quarantined for damaged rows.", value=damaged)
        yield CounterMetricFamily("tenantq_rounds", "Rounds run since the start.", value=shard.loop.figures.rounds)
        yield _times("tenantq_round_seconds", "How long rounds took, up to their write.", shard.loop.figures.took)
        sizes = HistogramMetricFamily("tenantq_round_size", "Operations of a round.")
        bounds = (*(f"{1 << power}.0" for power in range(BINS)), "+Inf")
        counts = (count for _, count in shard.loop.figures.sizes.cumulative())
        sizes.add_metric([], list(zip(bounds, counts, strict=True)), shard.loop.figures.operations)
        yield sizes
        yield CounterMetricFamily(
            "tenantq_round_operations", "Operations run in rounds.", value=shard.loop.figures.operations
        )
        yield _times("tenantq_write_seconds", "How long the writes of rounds took.", shard.loop.figures.writes_took)
        yield _times("tenantq_sync_seconds", "How long syncs took.", shard.loop.figures.syncs_took)
        yield from _figures(shard.state.store.figures())
        yield GaugeMetricFamily("tenantq_journal_records", "Journal records not yet trimmed.", value=last - first + 1)
        if self._exporter is not None:
            lag, rows = self._exporter.lag_records, self._exporter.rows_total
            yield GaugeMetricFamily(
                "tenantq_journal_lag_records", "Journal records that wait for their export.", value=lag
            )
            yield CounterMetricFamily("tenantq_journal_rows_exported", "Journal rows exported.", value=rows)
            waiting, failures = self._exporter.lag_bytes, self._exporter.failures_total
            yield GaugeMetricFamily("tenantq_journal_lag_bytes", "Bytes of those records.", value=waiting)
            yield CounterMetricFamily(
                "tenantq_journal_export_failures", "Attempts to export that failed.", value=failures
            )


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
