"""The isolation probe: one tenant of the server's own tries to access another one's data and must be refused."""

from collections.abc import Awaitable
from typing import Any, Final

from tenantq.domain.access import Grant, StoredKey
from tenantq.domain.message import SYSTEM, NewMessage
from tenantq.domain.names import PROBE_TENANTS
from tenantq.engine.ops.access import PutKey, RevokeKey
from tenantq.engine.ops.lifecycle import Purge, PutTenant
from tenantq.engine.shard import Shard
from tenantq.errors import Forbidden, NotFound, TenantqError
from tenantq.service.audit_trail import AuditQuery
from tenantq.service.call import Call
from tenantq.service.self_checks.check import CheckResult
from tenantq.service.service import Service

_QUEUE: Final = "probe"
_VALID_MS: Final = 600_000
_QUOTAS: Final = {"backlog": 100, "stored_bytes": 1 << 20, "queues": 4}


class IsolationProbe:
    """Calls the service with real credentials, like every request."""

    name = "isolation"

    def __init__(self, service: Service, shard: Shard) -> None:
        self._service = service
        self._shard = shard

    async def run(self) -> CheckResult:
        """Try all calls once, with credentials that are created for this run and revoked after it."""
        mine, other = PROBE_TENANTS
        keys: list[tuple[str, str]] = []
        try:
            calls = []
            for tenant in PROBE_TENANTS:
                call, key_id = await self._enter(tenant)
                calls.append(call)
                keys.append((tenant, key_id))
            through = await self._try(calls[0], calls[1], mine, other, f"key:{keys[1][1]}")
        finally:
            for tenant, key_id in keys:
                await self._shard.submit(RevokeKey(self._shard.tenant(tenant), SYSTEM, key_id))
        if through:
            return CheckResult(ok=False, text=f"another tenant's credential was accepted: {', '.join(through)}")
        return CheckResult(ok=True, text="another tenant's credential was refused everywhere")

    async def _enter(self, tenant: str) -> tuple[Call, str]:
        """Return a call with a new key of one of the probe's tenants, which is created if missing."""
        if tenant not in self._shard.state.catalog.tenants:
            await self._shard.submit(PutTenant(self._shard.state.platform, SYSTEM, tenant, {"quotas": _QUOTAS}))
        new = self._service.admission.keys.new_key()
        now = self._shard.state.wall_ms()
        key = StoredKey(
            id=new.id, tenant=tenant, name="isolation probe", created_at=now, created_by=SYSTEM.principal,
            grant=Grant(role="tenant-admin", expires_at=now + _VALID_MS), token_hash=new.token_hash,
        )  # fmt: skip
        await self._shard.submit(PutKey(self._shard.tenant(tenant), SYSTEM, key))
        return Call(bearer=new.token, request_id="self-check", user_agent="tenantq self-check"), new.id

    async def _try(self, owner: Call, thief: Call, mine: str, theirs: str, principal: str) -> list[str]:
        """Return the calls in which the thief was not refused."""
        service = self._service
        state = self._shard.tenant(mine)
        if _QUEUE in state.queues:
            await self._shard.submit(Purge(state, SYSTEM, _QUEUE))  # left by an interrupted run
        (added,) = await service.messages.add(owner, None, _QUEUE, [NewMessage(body=b"probe")])
        (held,) = await service.messages.poll(owner, None, _QUEUE, lease_ms=60_000)
        await service.queues.put(thief, None, _QUEUE, {})
        through = [name for name, act in self._crossings(thief, mine, held.id, held.receipt) if not await _refused(act)]
        for name, act in (
            ("get by id in its own queue", service.message_reads.get(thief, theirs, _QUEUE, added.id)),
            ("trace by id in its own queue", service.message_reads.trace(thief, theirs, _QUEUE, added.id)),
        ):
            if not await _refused(act):
                through.append(name)
        for name, outcomes in (
            ("ack of its receipt", await service.settlement.ack(thief, theirs, _QUEUE, [held.receipt])),
            ("remove of its id", await service.settlement.remove(thief, theirs, _QUEUE, [held.id])),
        ):
            if any(one.ok for one in outcomes):
                through.append(name)
        rows = (await service.audit.query(thief, None, AuditQuery(limit=100, message=held.id))).rows
        if any(row.principal != principal for row in rows) or await service.messages.poll(thief, None, _QUEUE):
            through.append("its own tenant shows another tenant's data")
        (settled,) = await service.settlement.ack(owner, None, _QUEUE, [held.receipt])
        return through if settled.ok else [*through, "the owner's lease was taken away"]

    def _crossings(self, thief: Call, mine: str, id: str, receipt: str) -> list[tuple[str, Awaitable[Any]]]:
        """Return calls that name the other tenant."""
        service = self._service
        return [
            ("add", service.messages.add(thief, mine, _QUEUE, [NewMessage(body=b"probe")])),
            ("poll", service.messages.poll(thief, mine, _QUEUE)),
            ("peek", service.message_reads.peek(thief, mine, _QUEUE)),
            ("get", service.message_reads.get(thief, mine, _QUEUE, id)),
            ("result", service.message_reads.result(thief, mine, _QUEUE, id)),
            ("ack", service.settlement.ack(thief, mine, _QUEUE, [receipt])),
            ("remove", service.settlement.remove(thief, mine, _QUEUE, [id])),
            ("list_queues", service.queues.list(thief, mine)),
            ("usage", service.tenants.usage(thief, mine)),
            ("audit", service.audit.query(thief, mine)),
            ("create_key", service.access.create_key(thief, mine, "probe", Grant(role="viewer"))),
        ]


async def _refused(act: Awaitable[Any]) -> bool:
    """Return whether a call was refused as expected. Other errors prove nothing."""
    try:
        await act
    except (Forbidden, NotFound):
        return True
    except TenantqError:
        return False
    return False
