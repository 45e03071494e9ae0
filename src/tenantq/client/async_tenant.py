"""A tenant and its administration, for asyncio."""

import builtins
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, Final, Literal
from urllib.parse import quote

from tenantq.client.async_admin import AsyncAdminScope
from tenantq.client.async_queue import AsyncQueue
from tenantq.client.queue_calls import QueueRegistry
from tenantq.client.session import ClientSession, query
from tenantq.domain.names import check_queue_name, check_tenant_name
from tenantq.wire.access import GrantItem, GrantRequest, GrantsReply, RevokeTokenRequest
from tenantq.wire.alerts import AlertItem, AlertsReply
from tenantq.wire.compliance import ComplianceReply
from tenantq.wire.erasures import ErasureReply
from tenantq.wire.exports import ImportReply, ImportRequest
from tenantq.wire.lifecycle import DestroyRequest, ReasonRequest, SuspendRequest
from tenantq.wire.queues import QueueReply, QueuesReply, WorkerItem, WorkersReply
from tenantq.wire.tenants import EncryptionReply, ResidencyReply, TenantReply, UsageReply

ERASURE_MS_MAX: Final = 3_600_000
"""How long the erasure of a tenant may take."""
EXPORT_MS_MAX: Final = 86_400_000
"""How long an export may take."""


class AsyncTenant(AsyncAdminScope):
    """One tenant by name, where the credential is granted. Times are milliseconds."""

    def __init__(self, registry: QueueRegistry, name: str) -> None:
        self.name = check_tenant_name(name)
        self._registry = registry
        self._path = f"/v1/tenants/{self.name}"
        path = self._path
        super().__init__(registry.session, keys=f"{path}/keys", audit=f"{path}/audit", templates=f"{path}/templates")
        self.key_rotation, self.access = AsyncKeyRotation(registry.session, path), AsyncGrants(registry.session, path)
        self.encryption, self.rotate_keys = self.key_rotation.get, self.key_rotation.rotate
        self.rewrap_keys = self.key_rotation.rewrap
        self.grants, self.grant, self.revoke_grant = self.access.list, self.access.put, self.access.delete
        self.review_grant, self.revoke_token = self.access.review, self.access.revoke_token

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def queue(self, name: str) -> AsyncQueue:
        """Return one of its queues. Sends nothing."""
        return AsyncQueue(self._registry, self.name, name)

    # ---- the tenant itself ----

    async def get(self) -> TenantReply:
        """Return its configuration."""
        return await self._session.request("GET", self._path, TenantReply)

    async def configure(self, /, **changes: Any) -> TenantReply:
        """Create the tenant or change it: ``weight``, ``quotas``, ``limits``, ``regions`` and so on."""
        return await self._session.request("PUT", self._path, TenantReply, changes)

    async def suspend(self, reason: str = "", mode: Literal["settle", "freeze", "fill"] = "settle") -> TenantReply:
        """Refuse adds and polls. Leased messages can still be settled.

        Mode ``freeze`` stops all changes, and leases are lost. Mode ``fill`` allows imports of export parts.
        """
        body = SuspendRequest(reason=reason, mode=mode)
        return await self._session.request("POST", f"{self._path}/suspend", TenantReply, body)

    async def resume(self) -> TenantReply:
        """End a suspension."""
        return await self._session.request("POST", f"{self._path}/resume", TenantReply)

    async def hold(self, reason: str) -> TenantReply:
        """Put it under legal hold: nothing is deleted until the hold is released. ``reason``: at least ten characters."""
        return await self._change_hold("PUT", reason)

    async def release_hold(self, reason: str) -> TenantReply:
        """Release the legal hold. ``reason``: at least ten characters."""
        return await self._change_hold("DELETE", reason)

    async def _change_hold(self, method: str, reason: str) -> TenantReply:
        body = ReasonRequest(reason=reason)
        return await self._session.request(method, f"{self._path}/hold", TenantReply, body, repeatable=False)

    async def delete(self, *, confirm: str, reason: str) -> ErasureReply:
        """Erase the tenant with all its data and return the certificate.

        ``confirm`` is its name, ``reason`` has at least ten characters.
        """
        body = DestroyRequest(confirm=confirm, reason=reason)
        return await self._session.request(
            "DELETE", self._path, ErasureReply, body, repeatable=False, wait_ms=ERASURE_MS_MAX
        )

    async def queues(self, *, limit: int | None = None) -> list[QueueReply]:
        """Return all its queues, or the first ``limit`` by name, with configuration and figures."""
        return await self._session.list_all(f"{self._path}/queues", QueuesReply, "queues", limit)

    async def workers(self) -> list[WorkerItem]:
        """Return the workers that poll its queues, by queue."""
        return (await self._session.request("GET", f"{self._path}/workers", WorkersReply)).workers

    async def metrics(self) -> str:
        """Return its metrics in the Prometheus text format."""
        return await self._session.request("GET", f"{self._path}/metrics", str, gzip=True)

    async def usage(self) -> UsageReply:
        """Return its quotas and its usage."""
        return await self._session.request("GET", f"{self._path}/usage", UsageReply)

    async def alerts(self) -> list[AlertItem]:
        """Return its active alerts."""
        return (await self._session.request("GET", f"{self._path}/alerts", AlertsReply)).alerts

    async def compliance(self) -> ComplianceReply:
        """Return its compliance controls."""
        return await self._session.request("GET", f"{self._path}/compliance", ComplianceReply)

    async def residency(self) -> ResidencyReply:
        """Return every location of its data, and whether its regions allow each."""
        return await self._session.request("GET", f"{self._path}/residency", ResidencyReply)

    async def export(self, sink: Callable[[bytes], None], *, queue: str | None = None) -> None:
        """Stream all current data of the tenant to ``sink``, as a tar file (see docs/reference/export-format.md).

        With ``queue``, only that queue, without keys, grants and audit trail. If this raises, what ``sink`` got is incomplete.
        """
        target = f"{self._path}/export{query(queue=queue)}"
        await self._session.request("GET", target, NoneType, repeatable=False, wait_ms=EXPORT_MS_MAX, sink=sink)

    async def import_part(self, queue: str, part: ImportRequest) -> ImportReply:
        """Import one part of an export into one of its queues. Importing a part again changes nothing."""
        target = f"{self._path}/queues/{check_queue_name(queue)}/import"
        return await self._session.request("POST", target, ImportReply, part)


class AsyncKeyRotation:
    """The encryption of one tenant, and its data keys."""

    def __init__(self, session: ClientSession, tenant_path: str) -> None:
        self._session, self._path = session, f"{tenant_path}/encryption"

    async def get(self) -> EncryptionReply:
        """Return its encryption settings, its data keys and the health of the key that wraps them."""
        return await self._session.request("GET", self._path, EncryptionReply)

    async def rotate(self) -> EncryptionReply:
        """Create a new data key for new messages. Stored messages stay readable."""
        target = f"{self._path}/rotate"
        return await self._session.request("POST", target, EncryptionReply, repeatable=False)

    async def rewrap(self) -> EncryptionReply:
        """Rewrap all data keys with the currently configured key. Messages do not change."""
        return await self._session.request("POST", f"{self._path}/rewrap", EncryptionReply)


class AsyncGrants:
    """The grants of one tenant, and its revoked tokens."""

    def __init__(self, session: ClientSession, tenant_path: str) -> None:
        self._session, self._path = session, tenant_path

    async def put(
        self,
        principal: str,
        *,
        role: str | None = None,
        actions: Sequence[str] = (),
        queues: Sequence[str] = ("*",),
        expires_at: int | None = None,
    ) -> None:
        """Grant a principal access to this tenant. Replaces an earlier grant."""
        body = GrantRequest(role=role, actions=tuple(actions), queues=tuple(queues), expires_at=expires_at)
        await self._session.request("PUT", self._grant_path(principal), NoneType, body)

    async def delete(self, principal: str) -> None:
        """Revoke the grant of a principal."""
        await self._session.request("DELETE", self._grant_path(principal), NoneType, repeatable=False)

    async def review(self, principal: str) -> GrantItem:
        """Record that the grant of a principal was reviewed and is still needed."""
        return await self._session.request("POST", f"{self._grant_path(principal)}/review", GrantItem)

    async def list(self) -> builtins.list[GrantItem]:
        """Return all grants of this tenant."""
        return (await self._session.request("GET", f"{self._path}/grants", GrantsReply)).grants

    async def revoke_token(self, *, until: int, token_id: str | None = None, principal: str | None = None) -> None:
        """Revoke a JSON web token by its id, or all tokens of a principal, until they expire at ``until``."""
        body = RevokeTokenRequest(token_id=token_id, principal=principal, until=until)
        await self._session.request("POST", f"{self._path}/revocations", NoneType, body)

    def _grant_path(self, principal: str) -> str:
        return f"{self._path}/grants/{quote(principal, safe='')}"
