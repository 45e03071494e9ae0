"""Alerts for operators and tenants: lists active alerts, and tests targets."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tenantq.domain.names import TargetName
from tenantq.domain.validation import check_field
from tenantq.errors import NotFound
from tenantq.runtime.clock import Clock
from tenantq.service.admission import Admission
from tenantq.service.alerts.active_alerts import Notification
from tenantq.service.alerts.targets import DeliveryFailed
from tenantq.service.alerts.watch import AlertWatch
from tenantq.service.call import Call
from tenantq.service.other_shards import OtherShards
from tenantq.wire.alerts import AlertItem, AlertsReply, AlertTestReply


class Alerts:
    """Lists active alerts, and tests targets."""

    def __init__(self, admission: Admission, clock: Clock, other_shards: OtherShards, watch: AlertWatch) -> None:
        self._admission, self._clock, self._other_shards, self._watch = admission, clock, other_shards, watch

    async def list(self, call: Call) -> AlertsReply:
        """Return the active alerts of all shards, and the targets."""
        await self._admission.admit_platform(call, "metrics")
        found = await self._other_shards.gather("alerts.list_local", self.list_local())
        alerts = sorted(found, key=lambda one: one.since)
        return AlertsReply(alerts=alerts, targets=list(self._watch.notifications.targets))

    def list_local(self) -> Sequence[AlertItem]:
        """Return the active alerts of this shard, for a caller that was authorized."""
        return self._items("")

    async def list_tenant(self, call: Call, tenant: str | None) -> AlertsReply:
        """Return the active alerts about a tenant."""
        with await self._admission.admit(call, tenant, "usage") as admitted:
            return AlertsReply(alerts=list(self._items(admitted.tenant)), targets=[])

    async def test(self, call: Call, target: str) -> AlertTestReply:
        """Send a notification to a target now, and return whether it was accepted. Raises NotFound."""
        await self._admission.admit_platform(call, "put_tenant")
        check_field("target", target, TargetName)
        targets = self._watch.notifications.targets
        if target not in targets:
            known = ", ".join(targets) or "none"
            raise NotFound(
                f"target: unknown target ({target!r}, defined: {known}). Define it in the server's settings."
            )
        now = self._clock.wall_ms()
        text = "This is a test. The server can reach this target."
        notification = Notification(status="test", kind="test", text=text, since=now, at=now, server=self._watch.server)
        try:
            await self._watch.notifications.send_now(notification, target)
        except DeliveryFailed as error:
            return AlertTestReply(target=target, delivered=False, error=str(error))
        return AlertTestReply(target=target, delivered=True)

    def _items(self, tenant: str) -> Sequence[AlertItem]:
        now = self._clock.wall_ms()
        return [
            AlertItem(
                **msgspec.structs.asdict(one.subject), severity=one.finding.severity, text=one.finding.text,
                since=one.since, silenced=now < one.finding.silenced_until,
            )
            for one in self._watch.alerts.active
            if not tenant or one.subject.tenant == tenant
        ]  # fmt: skip
