"""The service: all operations that transports offer, grouped into facets.

Each facet passes a call through admission and then asks the shard. Facet methods take and return plain values: the call, the
tenant, keyword options, frozen structs. Whatever a caller can cause is raised as a TenantqError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenantq.backup.backups import Backups
from tenantq.domain.compliance import ComplianceSettings
from tenantq.domain.containment import ContainmentRule
from tenantq.domain.plans import PLANS, PlanSettings
from tenantq.domain.signup import SignupSettings
from tenantq.engine.shard import Shard
from tenantq.journal.segment_index import SegmentIndex
from tenantq.journal.signing import SigningKey
from tenantq.runtime.clock import Clock
from tenantq.service.access import Access
from tenantq.service.admission import Admission
from tenantq.service.alerts.alerts import Alerts
from tenantq.service.alerts.containment import Containments
from tenantq.service.alerts.journaled_alerts import alert_rows
from tenantq.service.alerts.settings import AlertSettings
from tenantq.service.alerts.watch import NO_ALERTS, AlertWatch
from tenantq.service.audit import Audit, TenantJournal
from tenantq.service.audit_trail import AuditTrail
from tenantq.service.backups import ServerBackups
from tenantq.service.compliance import COMPLIANCE, Compliance
from tenantq.service.deliveries import Deliveries
from tenantq.service.encryption import MessageEncryption
from tenantq.service.encryption_keys import EncryptionKeys
from tenantq.service.erasure import Erasures
from tenantq.service.export_import import Exports
from tenantq.service.fleet_poll import FleetPolls
from tenantq.service.legal_hold import LegalHolds
from tenantq.service.message_reads import MessageReads
from tenantq.service.messages import Messages
from tenantq.service.metrics.metrics import Metrics
from tenantq.service.metrics.settings import MetricsSettings
from tenantq.service.other_shards import OtherShards
from tenantq.service.placement import NoPlacement
from tenantq.service.queues import Queues
from tenantq.service.redrives import Redrives
from tenantq.service.server_status import ServerStatus
from tenantq.service.settlement import Settlement
from tenantq.service.signups import Signups
from tenantq.service.sqs_lookup import SqsLookup
from tenantq.service.templates import Templates
from tenantq.service.tenants import Tenants

if TYPE_CHECKING:
    from tenantq.journal.exporter import Exporter


class Service:
    """The facets of one shard."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        clock: Clock,
        encryption: MessageEncryption,
        *,
        exporter: Exporter | None = None,  # None: the journal is not exported
        segments: SegmentIndex | None = None,
        backups: Backups | None = None,
        signing_key: SigningKey | None = None,
        other_shards: OtherShards | None = None,
        plans: PlanSettings = PLANS,
        alerts: AlertSettings = NO_ALERTS,
        containment: Sequence[ContainmentRule] = (),
        signups: SignupSettings | None = None,
        metrics: MetricsSettings | None = None,
        compliance: ComplianceSettings = COMPLIANCE,
    ) -> None:
        others = other_shards if other_shards is not None else OtherShards()
        deliveries = Deliveries(shard, admission, encryption)
        self._audit_trail = AuditTrail(shard, segments)
        journal = TenantJournal(self._audit_trail, others)
        self.shard = shard
        self.admission = admission
        self.other_shards: OtherShards = others
        self.messages = Messages(shard, admission, clock, deliveries, encryption, exporter, others)
        self.fleet = FleetPolls(shard, admission, clock, deliveries, encryption)
        self.settlement = Settlement(shard, admission, encryption)
        self.message_reads = MessageReads(shard, admission, encryption, journal)
        self.queues = Queues(shard, admission, others)
        self.redrives = Redrives(shard, admission)
        self.containment = Containments(shard, admission, others, containment)
        self.watch = AlertWatch(
            shard, admission, clock, exporter, alerts, other_shards=others,
            react=self.containment.react, journaled=lambda: alert_rows(self._audit_trail),
        )  # fmt: skip
        self.alerts = Alerts(admission, clock, others, self.watch)
        self.tenants = Tenants(shard, admission, encryption, others, plans, self.watch.notifications.targets)
        self.legal_holds = LegalHolds(shard, admission, others)
        self.templates = Templates(shard, admission, others, self.queues, self.tenants, plans)
        self.signups = Signups(shard, admission, clock, signups or SignupSettings())
        self.erasures = Erasures(shard, admission, clock, encryption, others, backups, signing_key)
        self.encryption = EncryptionKeys(shard, admission, encryption)
        self.access = Access(shard, admission)
        self.audit = Audit(admission, journal, self._audit_trail, others)
        self.backups = ServerBackups(shard, admission, others, backups)
        self.compliance = Compliance(
            shard, admission, clock, encryption, others, self._audit_trail, self.watch, lambda: self.status.checks,
            backups, compliance,
        )  # fmt: skip
        self.exports = Exports(shard, admission, encryption, self._audit_trail, others)
        self.sqs_lookup = SqsLookup(shard, admission, others)
        self.placement = NoPlacement(admission)
        self.metrics = Metrics(
            shard, admission, clock, exporter, encryption, lambda: self.status.checks, metrics or MetricsSettings()
        )
        self.metrics.include(self.watch)
        self.status = ServerStatus(shard, admission, self.metrics, encryption, exporter, signing_key, others)

    async def close(self) -> None:
        """Stop retrying erasures and sending alerts, and wait for audit queries in progress."""
        self.erasures.close()
        self.compliance.journaling.close()
        await self.watch.close()
        await self._audit_trail.close()
