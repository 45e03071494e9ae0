"""API keys and audit trail, which a tenant and the platform both have."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Literal
from urllib.parse import quote

from tenantq.client.session import ClientSession, query
from tenantq.wire.access import CreatedKey, CreateKeyRequest, KeyItem, KeysReply
from tenantq.wire.cluster import ClusterReply, DrainRequest
from tenantq.wire.tenants import AuditReply


class AsyncAdminScope:
    """The API keys and the audit trail at the given paths."""

    def __init__(self, session: ClientSession, *, keys: str, audit: str) -> None:
        self._session = session
        self._keys_path = keys
        self._audit_path = audit

    async def audit(
        self,
        *,
        action: str | Sequence[str] | None = None,
        result: Literal["SUCCESS", "DENIED", "ERROR"] | None = None,
        principal: str | None = None,
        start: int | None = None,
        end: int | None = None,
        queue: str | None = None,
        message: str | None = None,
        order: Literal["oldest", "newest"] | None = None,
        tenant: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditReply:
        """Return a page of the audit trail. Its ``cursor`` leads to the next page.

        A page may have fewer rows than ``limit``, or none, and still a cursor. Continue until the cursor is None.
        ``tenant`` is for the platform's audit trail only.
        """
        actions = action if action is None or isinstance(action, str) else ",".join(action)
        parameters = query(
            action=actions, result=result, principal=principal, start=start, end=end, queue=queue, message=message,
            order=order, tenant=tenant, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._session.request("GET", self._audit_path + parameters, AuditReply, gzip=True)

    async def create_key(
        self,
        name: str,
        *,
        role: str | None = None,
        actions: Sequence[str] = (),
        queues: Sequence[str] = ("*",),
        expires_at: int | None = None,
    ) -> CreatedKey:
        """Create an API key with a role or a list of actions, for queues that match a pattern.

        Only this reply contains its token.
        """
        body = CreateKeyRequest(
            name=name, role=role, actions=tuple(actions), queues=tuple(queues), expires_at=expires_at
        )
        return await self._session.request("POST", self._keys_path, CreatedKey, body, repeatable=False)

    async def keys(self) -> list[KeyItem]:
        """Return the API keys, without their secrets."""
        return (await self._session.request("GET", self._keys_path, KeysReply)).keys

    async def revoke_key(self, key_id: str) -> None:
        """Revoke an API key."""
        target = f"{self._keys_path}/{quote(key_id, safe='')}"
        await self._session.request("DELETE", target, NoneType, repeatable=False)


class AsyncPlatform(AsyncAdminScope):
    """The platform itself, for its administrators."""

    def __init__(self, session: ClientSession) -> None:
        super().__init__(session, keys="/v1/platform/keys", audit="/v1/audit")

    async def cluster(self) -> ClusterReply:
        """Return the members and shards of the cluster. Raises Conflict if the server is not part of one."""
        return await self._session.request("GET", "/v1/cluster", ClusterReply)

    async def drain_member(self, member_id: str, *, drain: bool = True) -> ClusterReply:
        """Have a member hand its shards over to others, or let it have shards again."""
        target = f"/v1/cluster/members/{quote(member_id, safe='')}/drain"
        return await self._session.request("POST", target, ClusterReply, DrainRequest(drain=drain))
