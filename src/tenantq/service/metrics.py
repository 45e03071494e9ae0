"""The metrics of a server for Prometheus. Values are read on request; counting costs nothing here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tenantq.engine.queue_state import TOTALS, TenantState
from tenantq.runtime.histogram import Histogram
from tenantq.service.admission import Admission

if TYPE_CHECKING:
    from tenantq.engine.shard import Shard
    from tenantq.journal.exporter import Exporter
    from tenantq.service.encryption import MessageEncryption
    from tenantq.service.self_checks import SelfChecks

TENANTS_MAX: Final = 100
"""Tenants with their own label; the rest share the label OTHER."""

OTHER: Final = "_other"  # not a valid tenant name
_STATES: Final = ("ready", "delayed", "in_flight", "blocked")


class _TenantSums:
    """The figures of one label: one tenant, or all others together."""

    __slots__ = ("bytes", "states", "totals")

    def __init__(self) -> None:
        self.states = dict.fromkeys(_STATES, 0)
        self.bytes = 0
        self.totals = [0] * len(TOTALS)

    def add(self, tenant: TenantState) -> None:
        for queue in tenant.queues.values():
            self.states["ready"] += queue.ready
            self.states["delayed"] += queue.delayed
            self.states["in_flight"] += queue.in_flight
            self.states["blocked"] += queue.blocked
            self.bytes += queue.bytes
            for index, total in enumerate(queue.totals):
                self.totals[index] += total


class Metrics:
    """Collects metrics from the parts of a server."""

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
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._labels: dict[int, str] = {}  # by tenant ID; stable, because a counter must always count the same tenants

    def include(self, other: Collector) -> None:
        """Include the metrics of another part."""
        self._registry.register(other)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._of_tenants()
        yield from self._of_gates()
        yield from self._of_shard()
        yield from self._of_keys()
        yield from self._of_checks()

    def _of_tenants(self) -> Iterable[Metric]:
        tenants = self._shard.state.catalog.tenants.values()
        labels = self._label(tenants)
        sums: dict[str, _TenantSums] = {}
        for tenant in tenants:
            sums.setdefault(labels[tenant.id], _TenantSums()).add(tenant)
        messages = GaugeMetricFamily("tenantq_messages", "Messages stored.", labels=["tenant", "state"])
        stored = GaugeMetricFamily("tenantq_stored_bytes", "Bytes of bodies and attributes stored.", labels=["tenant"])
        for name, one in sums.items():
            stored.add_metric([name], one.bytes)
            for state, count in one.states.items():
                messages.add_metric([name, state], count)
        yield messages
        yield stored
        for index, total in enumerate(TOTALS):
            family = CounterMetricFamily(
                f"tenantq_{total}", f"Messages {total.replace('_', ' ')}, of the queues that exist.", labels=["tenant"]
            )
            for name, one in sums.items():
                family.add_metric([name], one.totals[index])
            yield family

    def _label(self, tenants: Collection[TenantState]) -> dict[int, str]:
        """Assign labels to new tenants: own labels while any are left, tenants with the most messages first."""
        known = self._labels
        self._labels = {tenant.id: known[tenant.id] for tenant in tenants if tenant.id in known}
        left = TENANTS_MAX - sum(label != OTHER for label in self._labels.values())
        new = [tenant for tenant in tenants if tenant.id not in known]
        for tenant in sorted(new, key=lambda one: -one.usage.messages):
            self._labels[tenant.id] = tenant.name if left > 0 else OTHER
            left -= 1
        return self._labels

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
        took = HistogramMetricFamily(
            "tenantq_call_seconds",
            "Duration of admitted calls, without waiting for messages.",
            labels=["action"],
        )
        for action, times in counters.durations.items():
            took.add_metric([action], times.cumulative(), times.sum_us / 1_000_000)
        yield took
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
        yield GaugeMetricFamily(
            "tenantq_encrypted_tenants", "Tenants that have data keys.", value=len(encryption.sealed_tenants)
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
        yield GaugeMetricFamily("tenantq_tenants", "Tenants.", value=len(shard.state.catalog.tenants))
        damaged = len(shard.state.damaged)
        yield GaugeMetricFamily("tenantq_damaged_queues", "Queues quarantined for damaged rows.", value=damaged)
        yield CounterMetricFamily("tenantq_rounds", "Rounds run since the start.", value=shard.loop.rounds)
        yield _times("tenantq_round_seconds", "How long rounds took, up to their write.", shard.loop.rounds_took)
        yield _times("tenantq_sync_seconds", "How long syncs took.", shard.loop.syncs_took)
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


def _times(name: str, meaning: str, times: Histogram) -> Metric:
    family = HistogramMetricFamily(name, meaning)
    family.add_metric([], times.cumulative(), times.sum_us / 1_000_000)
    return family
