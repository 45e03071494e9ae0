"""Every method of the service as callers reach it, with the action that a grant must allow."""

# ruff: noqa: ARG005, S106  # all functions take the same arguments; a token's id is not a secret

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenantq.domain.access import Grant
from tenantq.domain.config import QueueConfig
from tenantq.domain.template import Template
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.wire.cluster import GrowRequest, PlacementRequest
from tests.contract.gates.harness import REASON
from tests.shards import message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.service.call import Call
    from tenantq.service.service import Service

    ServiceCall = Callable[[Service, Call, str], Awaitable[Any]]

NO_ID = "00000000-0000-7000-8000-000000000000"
NO_RECEIPT = "0" * 31 + "1" + "f" * 16
UNTIL = 253_402_300_799_999


async def _export(service: Service, call: Call, tenant: str) -> None:
    exporting = await service.exports.export(call, tenant)
    exporting.close()


def _number(service: Service, tenant: str) -> int:
    return service.shard.tenant(tenant).id


# method: (action, function of (service, call, tenant)); each uses the queue 'work' of an existing tenant
SERVICE_CALLS: dict[str, tuple[str, ServiceCall]] = {
    "messages.add": ("add", lambda s, c, t: s.messages.add(c, t, "work", [message()])),
    "messages.poll": ("poll", lambda s, c, t: s.messages.poll(c, t, "work")),
    "fleet.poll": ("poll", lambda s, c, t: s.fleet.poll(c, "work", tenants=[t])),
    "settlement.ack": ("ack", lambda s, c, t: s.settlement.ack(c, t, "work", [NO_RECEIPT])),
    "settlement.ack_any": ("ack", lambda s, c, t: s.settlement.ack_any(c, t, "work", [NO_RECEIPT])),
    "settlement.nack": ("nack", lambda s, c, t: s.settlement.nack(c, t, "work", [NO_RECEIPT])),
    "settlement.release": ("release", lambda s, c, t: s.settlement.release(c, t, "work", [NO_RECEIPT])),
    "settlement.extend": ("extend", lambda s, c, t: s.settlement.extend(c, t, "work", [NO_RECEIPT], lease_ms=9)),
    "settlement.change_leases": ("extend", lambda s, c, t: s.settlement.change_leases(c, t, "work", [NO_RECEIPT], lease_ms=9, held_ms_max=9)),
    "settlement.remove": ("remove", lambda s, c, t: s.settlement.remove(c, t, "work", [NO_ID])),
    "message_reads.peek": ("peek", lambda s, c, t: s.message_reads.peek(c, t, "work")),
    "message_reads.open_snapshot": ("peek", lambda s, c, t: s.message_reads.open_snapshot(c, t, "work")),
    "message_reads.read_snapshot": ("peek", lambda s, c, t: s.message_reads.read_snapshot(c, t, "work", "0" * 32)),
    "message_reads.close_snapshot": ("peek", lambda s, c, t: s.message_reads.close_snapshot(c, t, "work", "0" * 32)),
    "message_reads.get": ("get", lambda s, c, t: s.message_reads.get(c, t, "work", NO_ID)),
    "message_reads.result": ("result", lambda s, c, t: s.message_reads.result(c, t, "work", NO_ID)),
    "message_reads.trace": ("trace", lambda s, c, t: s.message_reads.trace(c, t, "work", NO_ID)),
    "queues.purge": ("purge", lambda s, c, t: s.queues.purge(c, t, "work", confirm="work", reason=REASON)),
    "redrives.start": ("redrive", lambda s, c, t: s.redrives.start(c, t, "work", filter=RedriveFilter())),
    "redrives.get": ("redrive", lambda s, c, t: s.redrives.get(c, t, "work", "0" * 16)),
    "redrives.cancel": ("redrive", lambda s, c, t: s.redrives.cancel(c, t, "work", "0" * 16)),
    "redrives.list": ("redrive", lambda s, c, t: s.redrives.list(c, t, "work")),
    "sqs_lookup.find_tenant": ("get_queue", lambda s, c, t: s.sqs_lookup.find_tenant(c, _number(s, t), "get_queue", "work")),
    "sqs_lookup.find_queue": ("get_queue", lambda s, c, t: s.sqs_lookup.find_queue(c, _number(s, t), "get_queue", "work")),
    "sqs_lookup.find_queues": ("list_queues", lambda s, c, t: s.sqs_lookup.find_queues(c, _number(s, t))),
    "queues.workers": ("list_queues", lambda s, c, t: s.queues.workers(c, t)),
    "queues.list": ("list_queues", lambda s, c, t: s.queues.list(c, t)),
    "queues.get": ("get_queue", lambda s, c, t: s.queues.get(c, t, "work")),
    "queues.put": ("put_queue", lambda s, c, t: s.queues.put(c, t, "work", {"lease_ms": 5_000})),
    "queues.create": ("put_queue", lambda s, c, t: s.queues.create(c, t, "work", {"lease_ms": 5_000})),
    "queues.change": ("put_queue", lambda s, c, t: s.queues.change(c, t, "work", {"lease_ms": 5_000}, expected=QueueConfig())),
    "queues.pause": ("pause_queue", lambda s, c, t: s.queues.pause(c, t, "work")),
    "queues.unpause": ("resume_queue", lambda s, c, t: s.queues.unpause(c, t, "work")),
    "queues.delete": ("delete_queue", lambda s, c, t: s.queues.delete(c, t, "work", confirm="work", reason=REASON)),
    "tenants.get": ("get_tenant", lambda s, c, t: s.tenants.get(c, t)),
    "status.tenant_metrics": ("get_metrics", lambda s, c, t: s.status.tenant_metrics(c, t)),
    "tenants.usage": ("usage", lambda s, c, t: s.tenants.usage(c, t)),
    "exports.export": ("export", _export),
    "exports.import_part": ("import", lambda s, c, t: s.exports.import_part(c, t, "work", export="0" * 32, part=1, messages=[], results=[])),
    "exports.digest": ("export", lambda s, c, t: s.exports.digest(c, t, "work")),
    "audit.query": ("audit", lambda s, c, t: s.audit.query(c, t)),
    "encryption.get": ("get_encryption", lambda s, c, t: s.encryption.get(c, t)),
    "encryption.rotate": ("rotate_keys", lambda s, c, t: s.encryption.rotate(c, t)),
    "encryption.rewrap": ("rewrap_keys", lambda s, c, t: s.encryption.rewrap(c, t)),
    "access.list_keys": ("list_keys", lambda s, c, t: s.access.list_keys(c, t)),
    "access.create_key": ("create_key", lambda s, c, t: s.access.create_key(c, t, "another", Grant(role="viewer"))),
    "access.revoke_key": ("revoke_key", lambda s, c, t: s.access.revoke_key(c, t, "no-such-key")),
    "access.list_grants": ("list_grants", lambda s, c, t: s.access.list_grants(c, t)),
    "access.put_grant": ("put_grant", lambda s, c, t: s.access.put_grant(c, t, "jwt:worker", Grant(role="viewer"))),
    "access.delete_grant": ("delete_grant", lambda s, c, t: s.access.delete_grant(c, t, "jwt:worker")),
    "access.review_grant": ("review_grant", lambda s, c, t: s.access.review_grant(c, t, "jwt:worker")),
    "access.revoke_token": ("revoke_token", lambda s, c, t: s.access.revoke_token(c, t, token_id="j-1", principal=None, until=UNTIL)),
    "alerts.list": ("metrics", lambda s, c, t: s.alerts.list(c)),
    "alerts.list_tenant": ("usage", lambda s, c, t: s.alerts.list_tenant(c, t)),
    "alerts.test": ("put_tenant", lambda s, c, t: s.alerts.test(c, "none")),
    "containment.list": ("list_containments", lambda s, c, t: s.containment.list(c)),
    "containment.release": ("release_containment", lambda s, c, t: s.containment.release(c, "1-1-0")),
    "templates.list": ("list_templates", lambda s, c, t: s.templates.list(c, t)),
    "templates.put": ("put_template", lambda s, c, t: s.templates.put(c, t, "mail", Template(queues={"work": {}}))),
    "templates.apply": ("put_queue", lambda s, c, t: s.templates.apply(c, t, "mail")),
    "templates.delete": ("delete_template", lambda s, c, t: s.templates.delete(c, t, "mail")),
    "signups.list": ("list_signups", lambda s, c, t: s.signups.list(c)),
    "signups.get": ("approve_signup", lambda s, c, t: s.signups.get(c, "1-1")),
    "signups.approve": ("approve_signup", lambda s, c, t: s.signups.approve(c, "1-1")),
    "signups.reject": ("reject_signup", lambda s, c, t: s.signups.reject(c, "1-1")),
    "tenants.plans": ("list_tenants", lambda s, c, t: s.tenants.plans(c)),
    "tenants.list": ("list_tenants", lambda s, c, t: s.tenants.list(c)),
    "tenants.put": ("put_tenant", lambda s, c, t: s.tenants.put(c, t, {"weight": 2})),
    "tenants.suspend": ("suspend_tenant", lambda s, c, t: s.tenants.suspend(c, t, REASON)),
    "tenants.resume": ("resume_tenant", lambda s, c, t: s.tenants.resume(c, t)),
    "queues.suspend": ("suspend_tenant", lambda s, c, t: s.queues.suspend(c, t, "none", REASON)),
    "queues.resume": ("resume_tenant", lambda s, c, t: s.queues.resume(c, t, "none")),
    "erasures.delete_tenant": ("delete_tenant", lambda s, c, t: s.erasures.delete_tenant(c, t, confirm=t, reason=REASON)),
    "legal_holds.place": ("hold_tenant", lambda s, c, t: s.legal_holds.place(c, t, REASON)),
    "legal_holds.release": ("release_hold", lambda s, c, t: s.legal_holds.release(c, t, REASON)),
    "erasures.list": ("list_erasures", lambda s, c, t: s.erasures.list(c)),
    "erasures.get": ("list_erasures", lambda s, c, t: s.erasures.get(c, "1-1")),
    "backups.create": ("create_backup", lambda s, c, t: s.backups.create(c)),
    "backups.list": ("list_backups", lambda s, c, t: s.backups.list(c)),
    "backups.test": ("test_backup", lambda s, c, t: s.backups.test(c, "no-such-backup")),
    "compliance.tenant": ("audit", lambda s, c, t: s.compliance.tenant(c, t)),
    "compliance.platform": ("audit_platform", lambda s, c, t: s.compliance.platform(c)),
    "status.cluster": ("get_cluster", lambda s, c, t: s.status.cluster(c)),
    "status.drain_member": ("drain_member", lambda s, c, t: s.status.drain_member(c, "m-1", drain=True)),
    "placement.get": ("get_cluster", lambda s, c, t: s.placement.get(c, t)),
    "placement.place": ("place_tenant", lambda s, c, t: s.placement.place(c, t, PlacementRequest(shard=1))),
    "placement.grow": ("grow_cluster", lambda s, c, t: s.placement.grow(c, GrowRequest(shards=99))),
    "tenants.residency": ("get_tenant", lambda s, c, t: s.tenants.residency(c, t)),
    "status.metrics": ("metrics", lambda s, c, t: s.status.metrics(c)),
    "audit.query_platform": ("audit_platform", lambda s, c, t: s.audit.query_platform(c)),
    "access.list_platform_keys": ("list_platform_keys", lambda s, c, t: s.access.list_platform_keys(c)),
    "access.create_platform_key": ("create_platform_key", lambda s, c, t: s.access.create_platform_key(c, "more", Grant(actions=("metrics",)))),
    "access.revoke_platform_key": ("revoke_platform_key", lambda s, c, t: s.access.revoke_platform_key(c, "no-such-key")),
}  # fmt: skip

ANY_CREDENTIAL = {"access.log_in", "status.topology", "sqs_lookup.note_refused"}  # allowed with any valid credential
NOT_FOR_CALLERS = {
    "access.bootstrap", "sqs_lookup.sign_in", "sqs_lookup.note_unsigned", "erasures.finish_pending", "erasures.close",
    "status.readiness", "status.durability",
    "audit.query_local", "audit.query_tenant_local", "backups.list_local", "backups.create_local", "status.metrics_local", "tenants.list_local", "alerts.list_local", "legal_holds.first_held", "legal_holds.first_held_local",
    "compliance.list_local", "compliance.journal_now", "compliance.start",
    "containment.react", "containment.contain_local", "containment.list_local", "containment.release_local",
    "signups.request",
    "templates.list_local", "templates.find_local", "erasures.forget_keys", "erasures.drop_backup_keys_local", "status.server_id", "queues.info", "tenants.places", "tenants.former_places_local", "exports.export_part",
}  # fmt: skip
"""Methods without a credential, for the server itself and its other shards."""
NOT_FACETS = {"shard", "admission", "other_shards", "metrics", "watch"}


def facet_methods(service: Service) -> set[str]:
    """Return every public method of every facet, as facet.method."""
    return {
        f"{facet}.{name}"
        for facet, value in vars(service).items()
        if facet not in NOT_FACETS and not facet.startswith("_")
        for name in dir(type(value))
        if not name.startswith("_")
    }
