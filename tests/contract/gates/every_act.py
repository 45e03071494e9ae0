"""Every method of the service as a caller reaches it, with the action that a grant has to allow for it."""

# ruff: noqa: ARG005, S106  # all acts take the same arguments, whatever each needs; a token's id is no secret

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenantq.domain.access import Grant
from tenantq.engine.ops.redrive import RedriveFilter
from tests.contract.gates.house import REASON
from tests.shards import message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.service import Call, Service

    Act = Callable[[Service, Call, str], Awaitable[Any]]

NO_ID = "00000000-0000-7000-8000-000000000000"
NO_RECEIPT = "0" * 31 + "1" + "f" * 16
UNTIL = 253_402_300_799_999


async def _export(service: Service, call: Call, tenant: str) -> None:
    exporting = await service.export(call, tenant)
    exporting.close()


def _number(service: Service, tenant: str) -> int:
    return service.shard.tenant_state(tenant).id


# method: (action, act on (service, call, tenant)); each works on the queue 'work' of a tenant that has it
ACTS: dict[str, tuple[str, Act]] = {
    "add": ("add", lambda s, c, t: s.add(c, t, "work", [message()])),
    "poll": ("poll", lambda s, c, t: s.poll(c, t, "work")),
    "fleet_poll": ("poll", lambda s, c, t: s.fleet_poll(c, "work", tenants=[t])),
    "ack": ("ack", lambda s, c, t: s.ack(c, t, "work", [NO_RECEIPT])),
    "ack_any": ("ack", lambda s, c, t: s.ack_any(c, t, "work", [NO_RECEIPT])),
    "nack": ("nack", lambda s, c, t: s.nack(c, t, "work", [NO_RECEIPT])),
    "release": ("release", lambda s, c, t: s.release(c, t, "work", [NO_RECEIPT])),
    "extend": ("extend", lambda s, c, t: s.extend(c, t, "work", [NO_RECEIPT], lease_ms=9)),
    "change_leases": ("extend", lambda s, c, t: s.change_leases(c, t, "work", [NO_RECEIPT], lease_ms=9, held_ms_max=9)),
    "remove": ("remove", lambda s, c, t: s.remove(c, t, "work", [NO_ID])),
    "peek": ("peek", lambda s, c, t: s.peek(c, t, "work")),
    "open_snapshot": ("peek", lambda s, c, t: s.open_snapshot(c, t, "work")),
    "read_snapshot": ("peek", lambda s, c, t: s.read_snapshot(c, t, "work", "0" * 32)),
    "close_snapshot": ("peek", lambda s, c, t: s.close_snapshot(c, t, "work", "0" * 32)),
    "get": ("get", lambda s, c, t: s.get(c, t, "work", NO_ID)),
    "result": ("result", lambda s, c, t: s.result(c, t, "work", NO_ID)),
    "trace": ("trace", lambda s, c, t: s.trace(c, t, "work", NO_ID)),
    "purge": ("purge", lambda s, c, t: s.purge(c, t, "work", confirm="work", reason=REASON)),
    "redrive": ("redrive", lambda s, c, t: s.redrive(c, t, "work", filter=RedriveFilter())),
    "redrive_status": ("redrive", lambda s, c, t: s.redrive_status(c, t, "work", "0" * 16)),
    "cancel_redrive": ("redrive", lambda s, c, t: s.cancel_redrive(c, t, "work", "0" * 16)),
    "redrives": ("redrive", lambda s, c, t: s.redrives(c, t, "work")),
    "find_tenant": ("get_queue", lambda s, c, t: s.find_tenant(c, _number(s, t), "get_queue", "work")),
    "find_queue": ("get_queue", lambda s, c, t: s.find_queue(c, _number(s, t), "get_queue", "work")),
    "find_queues": ("list_queues", lambda s, c, t: s.find_queues(c, _number(s, t))),
    "list_queues": ("list_queues", lambda s, c, t: s.list_queues(c, t)),
    "get_queue": ("get_queue", lambda s, c, t: s.get_queue(c, t, "work")),
    "put_queue": ("put_queue", lambda s, c, t: s.put_queue(c, t, "work", {"lease_ms": 5_000})),
    "make_queue": ("put_queue", lambda s, c, t: s.make_queue(c, t, "work", {"lease_ms": 5_000})),
    "edit_queue": ("put_queue", lambda s, c, t: s.edit_queue(c, t, "work", lambda _: {"lease_ms": 5_000})),
    "pause_queue": ("pause_queue", lambda s, c, t: s.pause_queue(c, t, "work")),
    "resume_queue": ("resume_queue", lambda s, c, t: s.resume_queue(c, t, "work")),
    "delete_queue": ("delete_queue", lambda s, c, t: s.delete_queue(c, t, "work", confirm="work", reason=REASON)),
    "get_tenant": ("get_tenant", lambda s, c, t: s.get_tenant(c, t)),
    "usage": ("usage", lambda s, c, t: s.usage(c, t)),
    "export": ("export", _export),
    "import_part": ("import", lambda s, c, t: s.import_part(c, t, "work", export="0" * 32, part=1, messages=[], results=[])),
    "digest": ("export", lambda s, c, t: s.digest(c, t, "work")),
    "audit": ("audit", lambda s, c, t: s.audit(c, t)),
    "get_encryption": ("get_encryption", lambda s, c, t: s.get_encryption(c, t)),
    "rotate_keys": ("rotate_keys", lambda s, c, t: s.rotate_keys(c, t)),
    "rewrap_keys": ("rewrap_keys", lambda s, c, t: s.rewrap_keys(c, t)),
    "list_keys": ("list_keys", lambda s, c, t: s.list_keys(c, t)),
    "create_key": ("create_key", lambda s, c, t: s.create_key(c, t, "another", Grant(role="viewer"))),
    "revoke_key": ("revoke_key", lambda s, c, t: s.revoke_key(c, t, "no-such-key")),
    "list_grants": ("list_grants", lambda s, c, t: s.list_grants(c, t)),
    "put_grant": ("put_grant", lambda s, c, t: s.put_grant(c, t, "jwt:worker", Grant(role="viewer"))),
    "delete_grant": ("delete_grant", lambda s, c, t: s.delete_grant(c, t, "jwt:worker")),
    "revoke_token": ("revoke_token", lambda s, c, t: s.revoke_token(c, t, token_id="j-1", principal=None, until=UNTIL)),
    "list_tenants": ("list_tenants", lambda s, c, t: s.list_tenants(c)),
    "put_tenant": ("put_tenant", lambda s, c, t: s.put_tenant(c, t, {"weight": 2})),
    "suspend_tenant": ("suspend_tenant", lambda s, c, t: s.suspend_tenant(c, t, REASON)),
    "resume_tenant": ("resume_tenant", lambda s, c, t: s.resume_tenant(c, t)),
    "suspend_queue": ("suspend_tenant", lambda s, c, t: s.suspend_queue(c, t, "none", REASON)),
    "reopen_queue": ("resume_tenant", lambda s, c, t: s.reopen_queue(c, t, "none")),
    "delete_tenant": ("delete_tenant", lambda s, c, t: s.delete_tenant(c, t, confirm=t, reason=REASON)),
    "hold_tenant": ("hold_tenant", lambda s, c, t: s.hold_tenant(c, t, REASON)),
    "release_hold": ("release_hold", lambda s, c, t: s.release_hold(c, t, REASON)),
    "list_erasures": ("list_erasures", lambda s, c, t: s.list_erasures(c)),
    "get_erasure": ("list_erasures", lambda s, c, t: s.get_erasure(c, "1-1")),
    "create_backup": ("create_backup", lambda s, c, t: s.create_backup(c)),
    "list_backups": ("list_backups", lambda s, c, t: s.list_backups(c)),
    "metrics": ("metrics", lambda s, c, t: s.metrics(c)),
    "audit_platform": ("audit_platform", lambda s, c, t: s.audit_platform(c)),
    "list_platform_keys": ("list_platform_keys", lambda s, c, t: s.list_platform_keys(c)),
    "create_platform_key": ("create_platform_key", lambda s, c, t: s.create_platform_key(c, "more", Grant(actions=("metrics",)))),
    "revoke_platform_key": ("revoke_platform_key", lambda s, c, t: s.revoke_platform_key(c, "no-such-key")),
}  # fmt: skip

ANY_CREDENTIAL = {"log_in", "topology", "note_refused"}  # what everybody may with a valid credential
NOT_FOR_CALLERS = {
    "bootstrap", "sign_in", "finish_erasures", "readiness", "durability", "close",
    "audit_page", "backups_here", "make_backup", "metrics_here", "tenant_page",  # what one shard asks another
}  # fmt: skip
"""What needs no credential."""
