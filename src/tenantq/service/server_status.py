"""Status of the server: readiness, metrics and topology."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from tenantq.domain.formatting import plural
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict
from tenantq.journal.signing import SigningKey
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption
from tenantq.service.metrics.metrics import Metrics, reader_of
from tenantq.service.other_shards import OtherShards
from tenantq.service.placement import one_shard
from tenantq.service.problems import detail_of
from tenantq.service.self_checks.runner import SelfChecks
from tenantq.store.crash_recovery import FORMAT
from tenantq.wire.cluster import ClusterReply
from tenantq.wire.topology import ShardItem, TopologyReply

if TYPE_CHECKING:
    from tenantq.journal.exporter import Exporter

VERSION: Final = version("tenantq")


class ServerStatus:
    """Answers operators and their tools."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        metrics: Metrics,
        encryption: MessageEncryption,
        exporter: Exporter | None,
        signing_key: SigningKey | None,
        other_shards: OtherShards,
    ) -> None:
        self._shard, self._admission, self._metrics = shard, admission, metrics
        self._encryption, self._exporter, self._signing_key = encryption, exporter, signing_key
        self._other_shards = other_shards
        self.checks: SelfChecks | None = None  # set once the server has started them

    @property
    def durability(self) -> str:
        """What a reply guarantees: "fsync" or "os"."""
        return self._shard.settings.durability

    @property
    def server_id(self) -> str:
        """The id of the key that signs the journal of all shards of this server."""
        return self._signing_key.public.id if self._signing_key is not None else ""

    async def metrics(self, call: Call) -> bytes:
        """Return the metrics of all shards in the text format of Prometheus."""
        caller = await self._admission.admit_platform(call, "metrics")
        return await self._other_shards.metrics(reader_of(caller), self._metrics.text)

    async def metrics_local(self, reader: str, shard: str, share: int) -> bytes:
        """Return this shard's metrics, for a caller that was authorized; see ``Metrics.text``."""
        return await self._metrics.text(reader, shard, share)

    async def tenant_metrics(self, call: Call, tenant: str | None) -> bytes:
        """Return the metrics of one tenant in the text format of Prometheus."""
        with await self._admission.admit(call, tenant, "get_metrics", rate="read") as admitted:
            allowed, principal, name = self._admission.authorizer.allowed, admitted.principal, admitted.tenant
            return await self._metrics.tenant_text(
                admitted.state, lambda queue: allowed(principal, name, "get_queue", queue), reader_of(admitted.caller)
            )

    async def topology(self, call: Call) -> TopologyReply:
        """Return the shards of this server, to every valid credential."""
        await self._admission.admit_any(call, "topology")
        settings = self._shard.settings
        name, region = settings.name or self._shard.name, settings.region or ""
        return TopologyReply(
            shards=self._other_shards.shards(ShardItem(name=name, region=region, address=settings.address or "")),
            server=self.server_id,
            version=VERSION,
            format=FORMAT,
            now=self._shard.state.wall_ms(),
            encryption=True,
        )

    async def cluster(self, call: Call) -> ClusterReply:
        """Raise Conflict: this server has one shard."""
        await self._admission.admit_platform(call, "get_cluster")
        raise one_shard()

    async def drain_member(self, call: Call, member_id: str, *, drain: bool) -> ClusterReply:  # noqa: ARG002  # as above
        """Raise Conflict: only members of a cluster hand their shards over."""
        await self._admission.admit_platform(call, "drain_member")
        raise Conflict(
            "shards of the embedded store stay in their processes. Only members of a cluster can be drained."
        )

    def readiness(self) -> dict[str, Any]:
        """Return whether requests can be served, and if not, why. No credential is needed."""
        shard, exporter = self._shard, self._exporter
        reason = detail_of(shard.failure) if shard.failure is not None else ""
        if shard.failure is None and shard.loop.is_doubtful:
            reason = "the store does not respond, and another server may own it now"
        reason = reason or shard.state.space.problem()
        first, last = shard.journal.span
        is_behind = exporter is not None and exporter.is_behind
        return {
            "status": "failed" if reason else "ready",
            "ready": not reason,
            "reason": reason,
            "durability": self.durability,
            "version": VERSION,
            "journal_records": last - first + 1,
            "journal_lag": exporter.lag_records if exporter is not None else None,
            "journal_lag_bytes": exporter.lag_bytes if exporter is not None else None,
            "keys": self._encryption.summary,
            "queues": f"{plural(len(shard.state.damaged), 'queue')} damaged" if shard.state.damaged else "ok",
            "adds": "refused: too much of the journal is not exported yet" if is_behind else "accepted",
            "journal_export": exporter.failure or "ok" if exporter is not None else "off",
            "checks": self.checks.shown() if self.checks is not None else {},
        }
