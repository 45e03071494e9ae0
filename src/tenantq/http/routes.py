"""The route table: every call of the HTTP interface, once."""

from __future__ import annotations

from typing import Any, Final

from tenantq.domain.config import QueueConfig, TenantConfig
from tenantq.http.handlers import access, audit, backups, messages, operations, queues, snapshots, tenants
from tenantq.http.handlers.audit import AuditParameters, PlatformAuditParameters
from tenantq.http.handlers.messages import NO_MESSAGES, STILL_PENDING, WaitQuery
from tenantq.http.handlers.operations import Health, Readiness
from tenantq.http.handlers.queues import DigestQuery
from tenantq.http.handlers.snapshots import SnapshotQuery
from tenantq.http.handlers.tenants import ExportQuery, TenantsQuery
from tenantq.http.query import PageQuery
from tenantq.http.route import (
    BATCH_BODY_BYTES_MAX,
    IMPORT_ITEMS_MAX,
    LIST_BODY_BYTES_MAX,
    LIST_ITEMS_MAX,
    Empty,
    Route,
)
from tenantq.wire.access import (
    CreatedKey,
    CreateKeyRequest,
    CreatePlatformKeyRequest,
    GrantItem,
    GrantRequest,
    GrantsReply,
    KeysReply,
    RevokeTokenRequest,
)
from tenantq.wire.acts import DestroyRequest, ReasonRequest, SuspendRequest
from tenantq.wire.backups import BackupReply, BackupRequest, BackupsReply
from tenantq.wire.cluster import ClusterReply, DrainRequest
from tenantq.wire.erasures import ErasureReply, ErasuresReply
from tenantq.wire.exports import ImportReply, ImportRequest
from tenantq.wire.messages import (
    AckRequest,
    AddReply,
    AddRequest,
    ExtendRequest,
    FleetPollRequest,
    MessageFacts,
    NackRequest,
    PeekReply,
    PeekRequest,
    PollReply,
    PollRequest,
    ReleaseRequest,
    RemoveReply,
    RemoveRequest,
    ResultReply,
    SettleReply,
    SnapshotReply,
    SnapshotRequest,
    TraceReply,
)
from tenantq.wire.queues import DigestReply, PurgeReply, QueueReply, QueuesReply, RedriveReply, RedriveRequest
from tenantq.wire.tenants import AuditReply, EncryptionReply, ResidencyReply, TenantReply, TenantsReply, UsageReply
from tenantq.wire.topology import TopologyReply

_TENANT: Final = "/v1/tenants/{tenant}"
_QUEUE: Final = "/v1/tenants/{tenant}/queues/{queue}"
_MESSAGE: Final = "/v1/tenants/{tenant}/queues/{queue}/messages/{id}"

_AUDIT_KINDS: Final = ("application/x-ndjson", "text/csv", "application/vnd.apache.parquet")

_MESSAGES: Final = (
    Route("POST", f"{_QUEUE}/messages", messages.add, tag="messages", action="add", request=AddRequest,
          reply=AddReply, conflicts=True, batch=True, body_bytes_max=BATCH_BODY_BYTES_MAX),
    Route("POST", f"{_QUEUE}/poll", messages.poll, tag="messages", action="poll", request=PollRequest,
          reply=PollReply, conflicts=True, interrupted=NO_MESSAGES),
    Route("POST", f"{_QUEUE}/ack", messages.ack, tag="messages", action="ack", request=AckRequest, reply=SettleReply,
          batch=True, body_bytes_max=BATCH_BODY_BYTES_MAX),
    Route("POST", f"{_QUEUE}/nack", messages.nack, tag="messages", action="nack", request=NackRequest,
          reply=SettleReply, batch=True),
    Route("POST", f"{_QUEUE}/release", messages.release, tag="messages", action="release", request=ReleaseRequest,
          reply=SettleReply, batch=True),
    Route("POST", f"{_QUEUE}/extend", messages.extend, tag="messages", action="extend", request=ExtendRequest,
          reply=SettleReply, batch=True),
    Route("POST", f"{_QUEUE}/remove", messages.remove, tag="messages", action="remove", request=RemoveRequest,
          reply=RemoveReply, batch=True, conflicts=True),
    Route("POST", f"{_QUEUE}/peek", messages.peek, tag="messages", action="peek", request=PeekRequest,
          reply=PeekReply),
    Route("POST", f"{_QUEUE}/snapshots", snapshots.open_snapshot, tag="messages", action="peek",
          request=SnapshotRequest, reply=SnapshotReply, statuses=(201,)),
    Route("GET", f"{_QUEUE}/snapshots/{{snapshot}}", snapshots.read_snapshot, tag="messages", action="peek",
          query=SnapshotQuery, reply=PeekReply),
    Route("DELETE", f"{_QUEUE}/snapshots/{{snapshot}}", snapshots.close_snapshot, tag="messages", action="peek",
          statuses=(204,)),
    Route("GET", _MESSAGE, messages.get, tag="messages", action="get", reply=MessageFacts),
    Route("GET", f"{_MESSAGE}/result", messages.result, tag="messages", action="result", query=WaitQuery,
          reply=ResultReply, interrupted=STILL_PENDING),
    Route("GET", f"{_MESSAGE}/trace", messages.trace, tag="messages", action="trace", reply=TraceReply),
)  # fmt: skip

_QUEUES: Final = (
    Route("GET", f"{_TENANT}/queues", queues.list_queues, tag="queues", action="list_queues", query=PageQuery,
          reply=QueuesReply),
    Route("PUT", _QUEUE, queues.put_queue, tag="queues", action="put_queue", request=dict[str, Any],
          describes=QueueConfig, reply=QueueReply, statuses=(200, 201), conflicts=True),
    Route("GET", _QUEUE, queues.get_queue, tag="queues", action="get_queue", reply=QueueReply),
    Route("DELETE", _QUEUE, queues.delete_queue, tag="queues", action="delete_queue", request=DestroyRequest,
          reply=Empty, statuses=(202,), conflicts=True),
    Route("POST", f"{_QUEUE}/pause", queues.pause_queue, tag="queues", action="pause_queue", reply=QueueReply,
          conflicts=True),
    Route("POST", f"{_QUEUE}/resume", queues.resume_queue, tag="queues", action="resume_queue", reply=QueueReply,
          conflicts=True),
    Route("POST", f"{_QUEUE}/purge", queues.purge, tag="queues", action="purge", request=DestroyRequest,
          reply=PurgeReply, conflicts=True),
    Route("POST", f"{_QUEUE}/import", queues.import_part, tag="queues", action="import", request=ImportRequest,
          reply=ImportReply, conflicts=True, body_bytes_max=BATCH_BODY_BYTES_MAX, items_max=IMPORT_ITEMS_MAX),
    Route("GET", f"{_QUEUE}/digest", queues.digest, tag="queues", action="export", query=DigestQuery,
          reply=DigestReply),
    Route("POST", f"{_QUEUE}/redrive", queues.redrive, tag="queues", action="redrive", request=RedriveRequest,
          reply=RedriveReply, conflicts=True, body_bytes_max=LIST_BODY_BYTES_MAX, items_max=LIST_ITEMS_MAX),
    Route("GET", f"{_QUEUE}/redrive/{{task}}", queues.redrive_status, tag="queues", action="redrive",
          reply=RedriveReply),
    Route("DELETE", f"{_QUEUE}/redrive/{{task}}", queues.cancel_redrive, tag="queues", action="redrive",
          reply=RedriveReply),
)  # fmt: skip

_TENANTS: Final = (
    Route("GET", "/v1/tenants", tenants.list_tenants, tag="tenants", action="list_tenants", query=TenantsQuery,
          reply=TenantsReply),
    Route("PUT", _TENANT, tenants.put_tenant, tag="tenants", action="put_tenant", request=dict[str, Any],
          describes=TenantConfig, reply=TenantReply, statuses=(200, 201), conflicts=True),
    Route("GET", _TENANT, tenants.get_tenant, tag="tenants", action="get_tenant", reply=TenantReply),
    Route("GET", "/v1/tenant", tenants.get_tenant, tag="tenants", action="get_tenant", reply=TenantReply,
          summary="Get the credential's own tenant"),
    Route("DELETE", _TENANT, tenants.delete_tenant, tag="tenants", action="delete_tenant", request=DestroyRequest,
          reply=ErasureReply, conflicts=True),
    Route("GET", "/v1/erasures", tenants.list_erasures, tag="tenants", action="list_erasures", reply=ErasuresReply),
    Route("GET", "/v1/erasures/{id}", tenants.get_erasure, tag="tenants", action="list_erasures", reply=ErasureReply),
    Route("POST", f"{_TENANT}/suspend", tenants.suspend_tenant, tag="tenants", action="suspend_tenant",
          request=SuspendRequest, reply=TenantReply, conflicts=True),
    Route("PUT", f"{_QUEUE}/suspension", queues.suspend_queue, tag="tenants", action="suspend_tenant",
          request=SuspendRequest, reply=QueueReply, conflicts=True),
    Route("DELETE", f"{_QUEUE}/suspension", queues.reopen_queue, tag="tenants", action="resume_tenant",
          reply=QueueReply, conflicts=True),
    Route("POST", f"{_TENANT}/resume", tenants.resume_tenant, tag="tenants", action="resume_tenant",
          reply=TenantReply, conflicts=True),
    Route("PUT", f"{_TENANT}/hold", tenants.hold_tenant, tag="tenants", action="hold_tenant", request=ReasonRequest,
          reply=TenantReply, conflicts=True),
    Route("DELETE", f"{_TENANT}/hold", tenants.release_hold, tag="tenants", action="release_hold",
          request=ReasonRequest, reply=TenantReply, conflicts=True),
    Route("GET", f"{_TENANT}/residency", tenants.residency, tag="tenants", action="get_tenant", reply=ResidencyReply),
    Route("GET", f"{_TENANT}/usage", tenants.usage, tag="tenants", action="usage", reply=UsageReply),
    Route("GET", f"{_TENANT}/export", tenants.export, tag="tenants", action="export", query=ExportQuery,
          reply_kind="application/octet-stream"),
    Route("GET", f"{_TENANT}/audit", audit.audit, tag="tenants", action="audit", query=AuditParameters,
          reply=AuditReply, kinds=_AUDIT_KINDS),
    Route("GET", "/v1/audit", audit.audit_platform, tag="tenants", action="audit_platform",
          query=PlatformAuditParameters, reply=AuditReply, kinds=_AUDIT_KINDS),
    Route("GET", f"{_TENANT}/encryption", tenants.get_encryption, tag="tenants", action="get_encryption",
          reply=EncryptionReply),
    Route("POST", f"{_TENANT}/encryption/rotate", tenants.rotate_keys, tag="tenants", action="rotate_keys",
          reply=EncryptionReply, conflicts=True),
    Route("POST", f"{_TENANT}/encryption/rewrap", tenants.rewrap_keys, tag="tenants", action="rewrap_keys",
          reply=EncryptionReply, conflicts=True),
)  # fmt: skip

_ACCESS: Final = (
    Route("GET", f"{_TENANT}/keys", access.list_keys, tag="access", action="list_keys", reply=KeysReply),
    Route("POST", f"{_TENANT}/keys", access.create_key, tag="access", action="create_key", request=CreateKeyRequest,
          reply=CreatedKey, statuses=(201,), conflicts=True),
    Route("DELETE", f"{_TENANT}/keys/{{key_id}}", access.revoke_key, tag="access", action="revoke_key",
          statuses=(204,), conflicts=True),
    Route("GET", "/v1/platform/keys", access.list_platform_keys, tag="access", action="list_platform_keys",
          reply=KeysReply),
    Route("POST", "/v1/platform/keys", access.create_platform_key, tag="access", action="create_platform_key",
          request=CreatePlatformKeyRequest, reply=CreatedKey, statuses=(201,), conflicts=True),
    Route("DELETE", "/v1/platform/keys/{key_id}", access.revoke_platform_key, tag="access",
          action="revoke_platform_key", statuses=(204,), conflicts=True),
    Route("GET", f"{_TENANT}/grants", access.list_grants, tag="access", action="list_grants", reply=GrantsReply),
    Route("PUT", f"{_TENANT}/grants/{{principal}}", access.put_grant, tag="access", action="put_grant",
          request=GrantRequest, reply=GrantItem, conflicts=True),
    Route("DELETE", f"{_TENANT}/grants/{{principal}}", access.delete_grant, tag="access", action="delete_grant",
          statuses=(204,), conflicts=True),
    Route("POST", f"{_TENANT}/revocations", access.revoke_token, tag="access", action="revoke_token",
          request=RevokeTokenRequest, statuses=(204,), conflicts=True),
)  # fmt: skip

_BACKUPS: Final = (
    Route("POST", "/v1/backups", backups.create_backup, tag="operations", action="create_backup",
          request=BackupRequest, reply=BackupReply, statuses=(201,), conflicts=True),
    Route("GET", "/v1/backups", backups.list_backups, tag="operations", action="list_backups", reply=BackupsReply),
)  # fmt: skip

_FLEET: Final = (
    Route("POST", "/v1/poll", messages.fleet_poll, tag="messages", action="poll", request=FleetPollRequest,
          reply=PollReply, interrupted=NO_MESSAGES, body_bytes_max=LIST_BODY_BYTES_MAX, items_max=LIST_ITEMS_MAX),
)  # fmt: skip

_OPERATIONS: Final = (
    Route("GET", "/healthz", operations.healthz, tag="operations", reply=Health, secured=False),
    Route("GET", "/readyz", operations.readyz, tag="operations", reply=Readiness, statuses=(200, 503), secured=False),
    Route("GET", "/metrics", operations.metrics, tag="operations", action="metrics", reply_kind="text/plain"),
    Route("GET", "/v1/topology", operations.topology, tag="operations", reply=TopologyReply),
    Route("GET", "/v1/cluster", operations.cluster, tag="operations", action="get_cluster", reply=ClusterReply,
          conflicts=True),
    Route("POST", "/v1/cluster/members/{id}/drain", operations.drain_member, tag="operations", action="drain_member",
          request=DrainRequest, reply=ClusterReply, conflicts=True),
    Route("GET", "/openapi.json", operations.openapi, tag="operations", reply=dict[str, Any], secured=False),
    Route("GET", "/docs", operations.docs, tag="operations", reply_kind="text/html", secured=False),
)  # fmt: skip

ROUTES: Final[tuple[Route, ...]] = (
    *_MESSAGES,
    *_FLEET,
    *_QUEUES,
    *_TENANTS,
    *_ACCESS,
    *_BACKUPS,
    *_OPERATIONS,
    *(route.in_own_tenant() for route in (*_MESSAGES, *_QUEUES)),
)
