"""The service: all operations that transports offer, grouped into facets.

Each facet passes a call through admission and then asks the shard. Facet methods take and return plain values: the call, the
tenant, keyword options, frozen structs. Whatever a caller can cause is raised as a TenantqError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.backup.backups import Backups
from tenantq.engine.shard import Shard
from tenantq.journal.segment_index import SegmentIndex
from tenantq.journal.signing import SigningKey
from tenantq.runtime.clock import Clock
from tenantq.service.access import Access
from tenantq.service.admission import Admission
from tenantq.service.audit import Audit
from tenantq.service.audit_trail import AuditTrail
from tenantq.service.backups import ServerBackups
from tenantq.service.deliveries import Deliveries
from tenantq.service.encryption import MessageEncryption
from tenantq.service.encryption_keys import EncryptionKeys
from tenantq.service.erasure import Erasures
from tenantq.service.export_import import Exports
from tenantq.service.fleet_poll import FleetPolls
from tenantq.service.legal_hold import LegalHolds
from tenantq.service.message_reads import MessageReads
from tenantq.service.messages import Messages
from tenantq.service.metrics import Metrics
from tenantq.service.other_shards import OtherShards
from tenantq.service.queues import Queues
from tenantq.service.redrives import Redrives
from tenantq.service.server_status import ServerStatus
from tenantq.service.settlement import Settlement
from tenantq.service.sqs_lookup import SqsLookup
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
    ) -> None:
        others = other_shards if other_shards is not None else OtherShards()
        deliveries = Deliveries(shard, admission, encryption)
        self._audit_trail = AuditTrail(shard, segments)
        self.shard = shard
        self.admission = admission
        self.other_shards: OtherShards = others
        self.messages = Messages(shard, admission, clock, deliveries, encryption, exporter)
        self.fleet = FleetPolls(shard, admission, clock, deliveries, encryption)
        self.settlement = Settlement(shard, admission, encryption)
        self.message_reads = MessageReads(shard, admission, encryption, self._audit_trail)
        self.queues = Queues(shard, admission)
        self.redrives = Redrives(shard, admission)
        self.tenants = Tenants(shard, admission, encryption, others)
        self.legal_holds = LegalHolds(shard, admission)
        self.erasures = Erasures(shard, admission, clock, encryption, others, backups, signing_key)
        self.encryption = EncryptionKeys(shard, admission, encryption)
        self.access = Access(shard, admission)
        self.audit = Audit(admission, self._audit_trail, others)
        self.backups = ServerBackups(shard, admission, others, backups)
        self.exports = Exports(shard, admission, encryption, self._audit_trail)
        self.sqs_lookup = SqsLookup(shard, admission)
        self.metrics = Metrics(shard, admission, exporter, encryption, lambda: self.status.checks)
        self.status = ServerStatus(shard, admission, self.metrics, encryption, exporter, signing_key, others)

    async def close(self) -> None:
        """Stop retrying erasures, and wait for audit queries in progress."""
        self.erasures.close()
        await self._audit_trail.close()
