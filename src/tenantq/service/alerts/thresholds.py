"""Compares the tenants of a shard with the thresholds of their alerts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tenantq.domain.alert_rules import AlertRules
from tenantq.domain.formatting import plural, show_age, show_duration
from tenantq.domain.names import PROBE_TENANTS
from tenantq.engine.queue_state import QueueState, TenantState, is_home
from tenantq.engine.shard import Shard
from tenantq.errors import TenantqError
from tenantq.runtime.loop_slices import next_slice
from tenantq.service.alerts.active_alerts import Excess, Subject
from tenantq.service.alerts.settings import AlertSettings
from tenantq.service.metrics.slice_counter import SliceCounter
from tenantq.service.other_shards import OtherShards
from tenantq.service.tenant_figures import OtherPartUsage, usage_items
from tenantq.wire.tenants import UsageItem

if TYPE_CHECKING:
    from tenantq.journal.exporter import Exporter  # needs pyarrow

MINUTE_MS: Final = 60_000


class _ThrottledMinute(NamedTuple):
    """The refused calls of a tenant in the minute that began at ``since_ms``, and in the one before."""

    since_ms: int
    before: int  # all calls refused until then
    in_last: int = 0  # an alert ends after a minute below its threshold, not with the minute that it began in


class Thresholds:
    """Finds the thresholds that are exceeded on a shard."""

    def __init__(
        self, shard: Shard, other_shards: OtherShards, settings: AlertSettings, exporter: Exporter | None
    ) -> None:
        self._shard, self._other_shards, self._settings, self._exporter = shard, other_shards, settings, exporter
        self._parts_usage: dict[str, tuple[OtherPartUsage, ...]] = {}  # of spread tenants, as last known
        self._throttled: dict[str, _ThrottledMinute] = {}  # by tenant

    def rules_of(self, tenant: str) -> AlertRules:
        """Return the rules that apply to a tenant; those of the platform if it is unknown."""
        state = self._shard.state.catalog.tenants.get(tenant)
        return self._settings.tenants if state is None else state.config.alerts.with_defaults(self._settings.tenants)

    def finding(self, tenant: str, text: str, *, is_critical: bool = False) -> Excess:
        """Return a finding about a tenant, or about the platform if ``tenant`` is empty, with its targets."""
        rules = self.rules_of(tenant)
        return Excess(
            text,
            "critical" if is_critical else "warning",
            rules.targets or self._settings.targets,
            (rules.silenced_until or 0) if tenant else 0,
        )

    async def exceeded(self, now_ms: int) -> dict[Subject, Excess]:
        """Return everything that exceeds its threshold. Other work runs between slices."""
        found = dict(self._journal())
        slices = SliceCounter()
        for tenant in list(self._shard.state.catalog.tenants.values()):
            if tenant.gone or tenant.name in PROBE_TENANTS:
                continue
            rules = self.rules_of(tenant.name)
            if rules.watches_quotas and is_home(tenant):
                found.update(self._quotas(tenant, rules, await self._usage(tenant)))
            found.update(self._throttling(tenant, rules, now_ms))
            queues, letters = list(tenant.queues.values()) if rules.watches_queues else [], set[str]()
            for queue in queues:
                if (name := self._shard.state.catalog.dead_letter_name(queue)) != queue.name:
                    letters.add(name)
                if slices.is_full():
                    await next_slice()
            for queue in queues:
                if queue.messages and not tenant.gone:
                    is_letters = queue.system_made or queue.name in letters
                    found.update(self._queue(queue, rules, is_dead_letter_queue=is_letters))
                if slices.is_full():
                    await next_slice()
            if slices.is_full():
                await next_slice()
        self._forget_deleted()
        return found

    def _journal(self) -> Iterator[tuple[Subject, Excess]]:
        most = self._settings.journal_lag_records
        if most is not None and self._exporter is not None and self._exporter.lag_records > most:
            text = f"{self._exporter.lag_records:,} journal records of shard {self._shard.name} wait for export (threshold {most:,})"
            yield Subject("journal_lag", detail=self._shard.name), self.finding("", text, is_critical=True)

    async def _usage(self, tenant: TenantState) -> dict[str, UsageItem]:
        """Return the usage of a tenant on all shards. A part that does not answer counts with what it used before."""
        if tenant.part is not None:
            with suppress(TenantqError):
                parts = await self._other_shards.ask_parts(tenant, "usage", tenant.id)
                self._parts_usage[tenant.name] = tuple(parts.values())
        return usage_items(self._shard, tenant, self._parts_usage.get(tenant.name, ()))

    def _quotas(
        self, tenant: TenantState, rules: AlertRules, usage: dict[str, UsageItem]
    ) -> Iterator[tuple[Subject, Excess]]:
        for name, item in usage.items():
            percent = rules.percent_of(name)
            if percent is not None and item.limit and item.used * 100 >= item.limit * percent:
                text = f"quota {name}: {item.used:,} of {item.limit:,} in use (threshold {percent} %)"
                subject = Subject("quota", tenant.name, detail=name)
                yield subject, self.finding(tenant.name, text, is_critical=item.used >= item.limit)

    def _throttling(self, tenant: TenantState, rules: AlertRules, now_ms: int) -> Iterator[tuple[Subject, Excess]]:
        if rules.throttled_per_minute is None:
            return
        total = tenant.counters.throttled if tenant.has_counters else 0
        minute = self._throttled.setdefault(tenant.name, _ThrottledMinute(now_ms, total))
        passed_ms = max(MINUTE_MS, now_ms - minute.since_ms)
        in_this = (total - minute.before) * MINUTE_MS // passed_ms
        refused = max(in_this, minute.in_last)
        if now_ms - minute.since_ms >= MINUTE_MS:
            self._throttled[tenant.name] = _ThrottledMinute(now_ms, total, in_this)
        if refused >= rules.throttled_per_minute:
            text = f"{refused:,} calls per minute refused by limits (threshold {rules.throttled_per_minute:,})"
            yield Subject("throttled", tenant.name), self.finding(tenant.name, text)

    def _queue(
        self, queue: QueueState, rules: AlertRules, *, is_dead_letter_queue: bool
    ) -> Iterator[tuple[Subject, Excess]]:
        tenant = queue.tenant.name
        figures = self._shard.reads.stats(tenant, queue.name)
        if rules.oldest_ms is not None and figures.oldest_age_ms >= rules.oldest_ms and not is_dead_letter_queue:
            age, limit = show_age(figures.oldest_age_ms), show_duration(rules.oldest_ms)
            finding = self.finding(tenant, f"the oldest ready message has waited {age} (threshold {limit})")
            yield Subject("oldest", tenant, queue.name), finding
        if rules.dead_letters is not None and is_dead_letter_queue and queue.messages >= rules.dead_letters:
            text = f"{plural(queue.messages, 'dead letter')} (threshold {rules.dead_letters:,})"
            yield Subject("dead_letters", tenant, queue.name), self.finding(tenant, text)

    def _forget_deleted(self) -> None:
        tenants = self._shard.state.catalog.tenants
        for name in [name for name in self._throttled if name not in tenants]:
            del self._throttled[name]
        for name in [name for name in self._parts_usage if name not in tenants or tenants[name].part is None]:
            del self._parts_usage[name]
