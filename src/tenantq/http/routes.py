"""The route table: every call of the HTTP interface, once."""

from __future__ import annotations

from functools import partial
from typing import Final

from tenantq.domain.config import QueueConfig, TenantChanges
from tenantq.http.handlers import (
    access,
    audit,
    backups,
    messages,
    operations,
    queues,
    signups,
    snapshots,
    templates,
    tenants,
)
from tenantq.http.handlers.messages import NO_MESSAGES, STILL_PENDING
from tenantq.http.route import BATCH_BODY_BYTES_MAX, IMPORT_ITEMS_MAX, LIST_BODY_BYTES_MAX, LIST_ITEMS_MAX, Route

_access, _messages, _queues, _templates, _tenants = (
    partial(Route, scope="tenant", tag=tag) for tag in ("access", "messages", "queues", "templates", "tenants")
)
_operations, _platform_access, _platform_templates, _platform_tenants = (
    partial(Route, scope="platform", tag=tag) for tag in ("operations", "access", "templates", "tenants")
)
_any_access, _any_messages, _any_operations = (
    partial(Route, scope="any", tag=tag) for tag in ("access", "messages", "operations")
)
_TENANT: Final = "/v1/tenants/{tenant}"
_QUEUE: Final = "/v1/tenants/{tenant}/queues/{queue}"
_MESSAGE: Final = "/v1/tenants/{tenant}/queues/{queue}/messages/{id}"

_AUDIT_KINDS: Final = ("application/x-ndjson", "text/csv", "application/vnd.apache.parquet")

_MESSAGES: Final = (
    _messages("POST", f"{_QUEUE}/messages", messages.add, action="add", conflicts=True, batch=True,
              body_bytes_max=BATCH_BODY_BYTES_MAX),
    _messages("POST", f"{_QUEUE}/poll", messages.poll, action="poll", conflicts=True, interrupted=NO_MESSAGES),
    _messages("POST", f"{_QUEUE}/ack", messages.ack, action="ack", batch=True, body_bytes_max=BATCH_BODY_BYTES_MAX),
    _messages("POST", f"{_QUEUE}/nack", messages.nack, action="nack", batch=True),
    _messages("POST", f"{_QUEUE}/release", messages.release, action="release", batch=True),
    _messages("POST", f"{_QUEUE}/extend", messages.extend, action="extend", batch=True),
    _messages("POST", f"{_QUEUE}/remove", messages.remove, action="remove", batch=True, conflicts=True),
    _messages("POST", f"{_QUEUE}/peek", messages.peek, action="peek"),
    _messages("POST", f"{_QUEUE}/snapshots", snapshots.open_snapshot, action="peek", statuses=(201,)),
    _messages("GET", f"{_QUEUE}/snapshots/{{snapshot}}", snapshots.read_snapshot, action="peek"),
    _messages("DELETE", f"{_QUEUE}/snapshots/{{snapshot}}", snapshots.close_snapshot, action="peek"),
    _messages("GET", _MESSAGE, messages.get, action="get"),
    _messages("GET", f"{_MESSAGE}/result", messages.result, action="result", interrupted=STILL_PENDING),
    _messages("GET", f"{_MESSAGE}/trace", messages.trace, action="trace"),
)  # fmt: skip

_QUEUES: Final = (
    _queues("GET", f"{_TENANT}/workers", queues.list_workers, action="list_queues"),
    _queues("GET", f"{_TENANT}/queues", queues.list_queues, action="list_queues"),
    _queues("PUT", _QUEUE, queues.put_queue, action="put_queue", describes=QueueConfig, statuses=(200, 201),
            conflicts=True),
    _queues("GET", _QUEUE, queues.get_queue, action="get_queue"),
    _queues("DELETE", _QUEUE, queues.delete_queue, action="delete_queue", statuses=(202,), conflicts=True),
    _queues("POST", f"{_QUEUE}/pause", queues.pause_queue, action="pause_queue", conflicts=True),
    _queues("POST", f"{_QUEUE}/resume", queues.resume_queue, action="resume_queue", conflicts=True),
    _queues("POST", f"{_QUEUE}/purge", queues.purge, action="purge", conflicts=True),
    _queues("POST", f"{_QUEUE}/import", queues.import_part, action="import", conflicts=True,
            body_bytes_max=BATCH_BODY_BYTES_MAX, items_max=IMPORT_ITEMS_MAX),
    _queues("GET", f"{_QUEUE}/digest", queues.digest, action="export"),
    _queues("POST", f"{_QUEUE}/redrive", queues.redrive, action="redrive", conflicts=True,
            body_bytes_max=LIST_BODY_BYTES_MAX, items_max=LIST_ITEMS_MAX),
    _queues("GET", f"{_QUEUE}/redrive/{{task}}", queues.redrive_status, action="redrive"),
    _queues("DELETE", f"{_QUEUE}/redrive/{{task}}", queues.cancel_redrive, action="redrive"),
)  # fmt: skip

_TENANTS: Final = (
    _platform_tenants("GET", "/v1/tenants", tenants.list_tenants, action="list_tenants"),
    _platform_tenants("GET", "/v1/alerts", tenants.list_alerts, action="metrics"),
    _platform_tenants("POST", "/v1/alerts/test", tenants.test_alert_target, action="put_tenant"),
    _tenants("GET", f"{_TENANT}/alerts", tenants.list_tenant_alerts, action="usage"),
    _platform_tenants("GET", "/v1/containments", tenants.list_containments, action="list_containments"),
    _platform_tenants("DELETE", "/v1/containments/{id}", tenants.release_containment, action="release_containment"),
    _platform_tenants("GET", "/v1/plans", tenants.list_plans, action="list_tenants"),
    _tenants("PUT", _TENANT, tenants.put_tenant, action="put_tenant", describes=TenantChanges, statuses=(200, 201),
             conflicts=True),
    _tenants("GET", _TENANT, tenants.get_tenant, action="get_tenant"),
    _tenants("GET", "/v1/tenant", tenants.get_tenant, action="get_tenant", summary="Get the credential's own tenant"),
    _tenants("DELETE", _TENANT, tenants.delete_tenant, action="delete_tenant", conflicts=True),
    _platform_tenants("GET", "/v1/erasures", tenants.list_erasures, action="list_erasures"),
    _platform_tenants("GET", "/v1/erasures/{id}", tenants.get_erasure, action="list_erasures"),
    _tenants("POST", f"{_TENANT}/suspend", tenants.suspend_tenant, action="suspend_tenant", conflicts=True),
    _tenants("PUT", f"{_QUEUE}/suspension", queues.suspend_queue, action="suspend_tenant", conflicts=True),
    _tenants("DELETE", f"{_QUEUE}/suspension", queues.reopen_queue, action="resume_tenant", conflicts=True),
    _tenants("POST", f"{_TENANT}/resume", tenants.resume_tenant, action="resume_tenant", conflicts=True),
    _tenants("PUT", f"{_TENANT}/hold", tenants.hold_tenant, action="hold_tenant", conflicts=True),
    _tenants("DELETE", f"{_TENANT}/hold", tenants.release_hold, action="release_hold", conflicts=True),
    _tenants("GET", f"{_TENANT}/residency", tenants.residency, action="get_tenant"),
    _tenants("GET", f"{_TENANT}/usage", tenants.usage, action="usage"),
    _tenants("GET", f"{_TENANT}/metrics", tenants.metrics, action="get_metrics", reply_kind="text/plain"),
    _tenants("GET", f"{_TENANT}/export", tenants.export, action="export", reply_kind="application/octet-stream"),
    _tenants("GET", f"{_TENANT}/audit", audit.audit, action="audit", kinds=_AUDIT_KINDS),
    _platform_tenants("GET", "/v1/audit", audit.audit_platform, action="audit_platform", kinds=_AUDIT_KINDS),
    _tenants("GET", f"{_TENANT}/compliance", audit.compliance, action="audit"),
    _platform_tenants("GET", "/v1/compliance", audit.compliance_platform, action="audit_platform"),
    _tenants("GET", f"{_TENANT}/encryption", tenants.get_encryption, action="get_encryption"),
    _tenants("POST", f"{_TENANT}/encryption/rotate", tenants.rotate_keys, action="rotate_keys", conflicts=True),
    _tenants("POST", f"{_TENANT}/encryption/rewrap", tenants.rewrap_keys, action="rewrap_keys", conflicts=True),
)  # fmt: skip

_ACCESS: Final = (
    _access("GET", f"{_TENANT}/keys", access.list_keys, action="list_keys"),
    _access("POST", f"{_TENANT}/keys", access.create_key, action="create_key", statuses=(201,), conflicts=True),
    _access("DELETE", f"{_TENANT}/keys/{{key_id}}", access.revoke_key, action="revoke_key", conflicts=True),
    _platform_access("GET", "/v1/platform/keys", access.list_platform_keys, action="list_platform_keys"),
    _platform_access("POST", "/v1/platform/keys", access.create_platform_key, action="create_platform_key",
                     statuses=(201,), conflicts=True),
    _platform_access("DELETE", "/v1/platform/keys/{key_id}", access.revoke_platform_key, action="revoke_platform_key",
                     conflicts=True),
    _any_access("GET", "/v1/whoami", access.whoami),
    _access("GET", f"{_TENANT}/grants", access.list_grants, action="list_grants"),
    _access("PUT", f"{_TENANT}/grants/{{principal}}", access.put_grant, action="put_grant", conflicts=True),
    _access("DELETE", f"{_TENANT}/grants/{{principal}}", access.delete_grant, action="delete_grant", conflicts=True),
    _access("POST", f"{_TENANT}/grants/{{principal}}/review", access.review_grant, action="review_grant",
            conflicts=True),
    _access("POST", f"{_TENANT}/revocations", access.revoke_token, action="revoke_token", conflicts=True),
)  # fmt: skip

_SIGNUPS: Final = (
    _platform_tenants("POST", "/v1/signups", signups.request_signup, statuses=(202,), secured=False,
                      body_bytes_max=16_384),
    _platform_tenants("GET", "/v1/signups", signups.list_signups, action="list_signups"),
    _platform_tenants("POST", "/v1/signups/{id}/approve", signups.approve_signup, action="approve_signup",
                      statuses=(201,), conflicts=True),
    _platform_tenants("POST", "/v1/signups/{id}/reject", signups.reject_signup, action="reject_signup"),
)  # fmt: skip

_TEMPLATES: Final = (
    _platform_templates("GET", "/v1/templates", templates.list_platform_templates, action="list_templates"),
    _platform_templates("PUT", "/v1/templates/{template}", templates.put_platform_template, action="put_template",
                        statuses=(200, 201), conflicts=True),
    _platform_templates("DELETE", "/v1/templates/{template}", templates.delete_platform_template,
                        action="delete_template", conflicts=True),
    _templates("GET", f"{_TENANT}/templates", templates.list_templates, action="list_templates"),
    _templates("PUT", f"{_TENANT}/templates/{{template}}", templates.put_template, action="put_template",
               statuses=(200, 201), conflicts=True),
    _templates("DELETE", f"{_TENANT}/templates/{{template}}", templates.delete_template, action="delete_template",
               conflicts=True),
    _templates("POST", f"{_TENANT}/templates/{{template}}/apply", templates.apply_template, action="put_queue",
               conflicts=True),
)  # fmt: skip

_BACKUPS: Final = (
    _operations("POST", "/v1/backups", backups.create_backup, action="create_backup", statuses=(201,), conflicts=True),
    _operations("POST", "/v1/backups/{backup}/test", backups.run_restore_test, action="test_backup", conflicts=True),
    _operations("GET", "/v1/backups", backups.list_backups, action="list_backups"),
)  # fmt: skip

_FLEET: Final = (
    _any_messages("POST", "/v1/poll", messages.fleet_poll, action="poll", interrupted=NO_MESSAGES,
                  body_bytes_max=LIST_BODY_BYTES_MAX, items_max=LIST_ITEMS_MAX),
)  # fmt: skip

_OPERATIONS: Final = (
    _any_operations("GET", "/healthz", operations.healthz, secured=False),
    _any_operations("GET", "/readyz", operations.readyz, statuses=(200, 503), secured=False),
    _operations("GET", "/metrics", operations.metrics, action="metrics", reply_kind="text/plain"),
    _any_operations("GET", "/v1/topology", operations.topology),
    _operations("GET", "/v1/cluster", operations.cluster, action="get_cluster", conflicts=True),
    _operations("POST", "/v1/cluster/members/{id}/drain", operations.drain_member, action="drain_member",
                conflicts=True),
    _operations("GET", "/v1/cluster/tenants/{id}", operations.placement, action="get_cluster", conflicts=True),
    _operations("PUT", "/v1/cluster/tenants/{id}", operations.place_tenant, action="place_tenant", conflicts=True),
    _operations("PUT", "/v1/cluster/shards", operations.grow_cluster, action="grow_cluster", conflicts=True),
    _any_operations("GET", "/openapi.json", operations.openapi, secured=False),
    _any_operations("GET", "/docs", operations.docs, reply_kind="text/html", secured=False),
)  # fmt: skip

ROUTES: Final[tuple[Route, ...]] = (
    *_MESSAGES,
    *_FLEET,
    *_QUEUES,
    *_TENANTS,
    *_ACCESS,
    *_SIGNUPS,
    *_TEMPLATES,
    *_BACKUPS,
    *_OPERATIONS,
    *(route.in_own_tenant() for route in (*_MESSAGES, *_QUEUES)),
)
