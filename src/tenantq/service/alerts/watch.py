"""Watches a shard: compares it with its thresholds periodically, and sends notifications."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import Metric

from tenantq.engine.shard import Shard
from tenantq.gates.signals import Alert
from tenantq.journal.record import JournalRow
from tenantq.runtime.clock import Clock
from tenantq.runtime.loop_slices import next_slice
from tenantq.runtime.metric_families import counters_by, gauges_by
from tenantq.runtime.periodic import Periodic
from tenantq.service.admission import Admission
from tenantq.service.alerts.active_alerts import ACTIVE_MAX, EVENTS, ActiveAlerts, Notification, Subject
from tenantq.service.alerts.journaled_alerts import active_alerts
from tenantq.service.alerts.notification_queue import NotificationQueue
from tenantq.service.alerts.settings import AlertSettings
from tenantq.service.alerts.targets import Target, open_targets
from tenantq.service.alerts.thresholds import Thresholds
from tenantq.service.metrics.slice_counter import SliceCounter
from tenantq.service.other_shards import OtherShards

if TYPE_CHECKING:
    from tenantq.journal.exporter import Exporter  # needs pyarrow

log = logging.getLogger("tenantq")

NO_ALERTS: Final = AlertSettings()


class AlertWatch:
    """Watches the thresholds of this shard's tenants, and notifies people."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        clock: Clock,
        exporter: Exporter | None = None,
        settings: AlertSettings = NO_ALERTS,
        server: str = "tenantq",
        *,
        other_shards: OtherShards,
        targets: dict[str, Target] | None = None,  # None: those of the settings
        react: Callable[[Alert], None] = lambda _: None,  # to an alert that starts
        journaled: Callable[[], Awaitable[Sequence[JournalRow]]] | None = None,  # starts and ends, newest first
    ) -> None:
        self._shard, self._admission, self._clock = shard, admission, clock
        self._settings, self.server, self._react = settings, server, react
        self._thresholds = Thresholds(shard, other_shards, settings, exporter)
        self.alerts = ActiveAlerts(server, settings.repeat_ms)
        self.notifications = NotificationQueue(targets if targets is not None else open_targets(settings, clock), clock)
        self._journaled = journaled  # None: nothing to restore, or restored
        self.evaluations = Periodic(clock, settings.every_ms, admission.in_background, self.evaluate)
        admission.notes.on_alert = self._report

    async def close(self) -> None:
        """Stop evaluating and delivering."""
        self.evaluations.close()
        await self.notifications.close()

    async def evaluate(self) -> None:
        """Compare everything with its threshold now, and send what that causes. Other work runs in between."""
        await self._restore()
        found = await self._thresholds.exceeded(self._clock.monotonic_ms())
        slices, dropped = SliceCounter(), self.alerts.dropped
        for due in self.alerts.update(found, self._clock.wall_ms(), self.notifications.has_room):
            if due is not None:
                if due.is_new:
                    self._journal(due.notification)
                self.notifications.send(due.notification, due.targets)
            if slices.is_full():
                await next_slice()
        if dropped < self.alerts.dropped:
            log.warning("%d alerts are not kept: %d are active", self.alerts.dropped - dropped, ACTIVE_MAX)

    async def _restore(self) -> None:
        """Continue the alerts that were active before a restart, so that they end, and their age counts."""
        if self._journaled is None:
            return
        journaled, self._journaled = self._journaled, None
        now = self._clock.wall_ms()
        for one in active_alerts(await journaled(), self._shard.name, now):
            finding = self._thresholds.finding(one.subject.tenant, one.text, is_critical=one.severity == "critical")
            self.alerts.restore(one.subject, finding, one.since, one.last_at, now)

    def _journal(self, notification: Notification) -> None:
        """Journal the start or end of an alert, and react to its start."""
        kind = notification.kind
        if notification.status == "resolved":
            principal = notification.detail if kind in EVENTS and kind != "self_check" else ""
            self._admission.notes.journal_resolved(kind, notification.tenant, principal, _journaled(notification))
        elif kind != "test" and kind not in EVENTS:
            alert = Alert(
                kind=kind, tenant=notification.tenant, principal="", details=_journaled(notification),
                severity=notification.severity, at=notification.at,
            )  # fmt: skip
            self._admission.notes.journal_alert(alert)
            self._react(alert)

    def _report(self, alert: Alert) -> None:
        finding = self._thresholds.finding(alert.tenant, alert.details, is_critical=alert.severity == "critical")
        subject = Subject.of_event(alert.kind, alert.tenant, alert.principal, alert.details)
        self.alerts.report(subject, finding, self._clock.wall_ms())
        self._react(alert)

    def collect(self) -> Iterable[Metric]:
        """Yield active alerts by kind, and notifications by target and outcome."""
        active, sent = dict(sorted(self.alerts.counts().items())), dict(sorted(self.notifications.counts.items()))
        yield gauges_by(("kind",), "tenantq_alerts_active", "Active alerts by kind.", active)
        meaning = "Notifications by target and outcome."
        yield counters_by(("target", "outcome"), "tenantq_alert_notifications", meaning, sent)


def _journaled(notification: Notification) -> str:
    return f"{f'queue {notification.queue}: ' if notification.queue else ''}{notification.text}"
