"""A harness whose alerts go to a target that records them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest

from tenantq.service.alerts.alerts import Alerts
from tenantq.service.alerts.journaled_alerts import alert_rows
from tenantq.service.alerts.settings import AlertSettings
from tenantq.service.alerts.targets import DeliveryFailed, Target
from tenantq.service.alerts.watch import AlertWatch
from tenantq.service.audit_trail import AuditTrail
from tenantq.service.other_shards import OtherShards
from tenantq.service.tenants import Tenants
from tests.contract.gates.conftest import open_harness
from tests.contract.gates.harness import ServiceHarness

if TYPE_CHECKING:
    from tenantq.gates.signals import Alert
    from tenantq.runtime.clock import ManualClock
    from tenantq.service.alerts.active_alerts import Notification
    from tests.conftest import OpenShard

__all__ = ["open_harness"]


class RecordingTarget:
    """Accepts notifications, unless it is set to fail."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Notification]] = []
        self.attempts: list[str] = []
        self.failures_left = 0

    async def send(self, id: str, notification: Notification) -> None:
        """Record a notification."""
        self.attempts.append(id)
        if self.failures_left:
            self.failures_left -= 1
            raise DeliveryFailed("out of order")
        self.received.append((id, notification))

    @property
    def seen(self) -> list[tuple[str, str, str, str]]:
        """The received notifications: status, kind, tenant, queue."""
        return [(one.status, one.kind, one.tenant, one.queue) for _, one in self.received]


class Watch:
    """A harness, its alerts, and their target."""

    def __init__(self, harness: ServiceHarness) -> None:
        self.harness = harness
        self.pager, self.mail = RecordingTarget(), RecordingTarget()
        self.use(AlertSettings())

    def use(self, settings: AlertSettings, react: Callable[[Alert], None] = lambda _: None) -> None:
        """Replace the settings. By default every tenant uses the target ``pager``."""
        harness = self.harness
        targets: dict[str, Target] = {"pager": self.pager, "mail": self.mail}
        others = OtherShards()
        self.watch = AlertWatch(
            harness.shard, harness.admission, harness.clock, None, settings,
            other_shards=others, targets=targets, react=react, journaled=lambda: alert_rows(AuditTrail(harness.shard)),
        )  # fmt: skip
        self.alerts = Alerts(harness.admission, harness.clock, others, self.watch)
        harness.service.tenants = Tenants(
            harness.shard, harness.admission, harness.encryption, others, alert_targets=self.watch.notifications.targets
        )

    async def evaluate(self, after_ms: int = 10_000) -> None:
        """Advance the clock, evaluate the alerts, and deliver notifications."""
        await self.harness.pass_time(after_ms)
        await self.watch.evaluate()
        await self.harness.wait_until_idle()


@pytest.fixture
async def watch(open_shard: OpenShard, clock: ManualClock) -> AsyncIterator[Watch]:
    """Open a harness with alerts."""
    harness = await ServiceHarness(await open_shard("data"), clock).open()
    watch = Watch(harness)
    yield watch
    await watch.watch.close()
    await harness.close()
