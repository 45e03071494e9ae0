"""A tenant, and what administers it, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from tenantq import wire
from tenantq.client.async_administered import AsyncAdministered
from tenantq.client.async_queue import AsyncQueue, nothing, query
from tenantq.client.core import Core, Request, encode
from tenantq.names import check_tenant_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.client.queue_calls import QueueBook

_tenant_reply = msgspec.json.Decoder(wire.TenantReply).decode
_queues_reply = msgspec.json.Decoder(wire.QueuesReply).decode
_grants_reply = msgspec.json.Decoder(wire.GrantsReply).decode
_usage_reply = msgspec.json.Decoder(wire.UsageReply).decode
_encryption_reply = msgspec.json.Decoder(wire.EncryptionReply).decode

PAGE = 1_000


class AsyncTenant(AsyncAdministered):
    """One tenant by name, where the credential is granted. Times are milliseconds."""

    def __init__(self, book: QueueBook, name: str) -> None:
        self.name = check_tenant_name(name)
        self._book = book
        self._path = f"/v1/tenants/{self.name}"
        super().__init__(book.core, keys=f"{self._path}/keys", audit=f"{self._path}/audit")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def queue(self, name: str) -> AsyncQueue:
        """Return one of its queues; nothing is sent."""
        return AsyncQueue(self._book, self.name, name)

    # ---- the tenant itself ----

    async def get(self) -> wire.TenantReply:
        """Return how it is configured."""
        return await self._core.call(Request(method="GET", target=self._path, decode=_tenant_reply))

    async def configure(self, /, **changes: Any) -> wire.TenantReply:
        """Make the tenant or change it: ``weight``, ``quotas``, ``limits``, ``regions`` and so on."""
        return await self._core.call(
            Request(method="PUT", target=self._path, decode=_tenant_reply, body=encode(changes))
        )

    async def suspend(self, reason: str = "") -> wire.TenantReply:
        """Take no new work of it and hand none out; what is leased may finish."""
        body = encode(wire.SuspendRequest(reason=reason))
        return await self._core.call(
            Request(method="POST", target=f"{self._path}/suspend", decode=_tenant_reply, body=body)
        )

    async def resume(self) -> wire.TenantReply:
        """Let it work again."""
        return await self._core.call(Request(method="POST", target=f"{self._path}/resume", decode=_tenant_reply))

    async def delete(self, *, confirm: str, reason: str) -> None:
        """Delete it and everything it has. ``confirm`` is its name, ``reason`` ten characters or more."""
        body = encode(wire.DestroyRequest(confirm=confirm, reason=reason))
        await self._core.call(Request(method="DELETE", target=self._path, decode=nothing, body=body, repeatable=False))

    async def queues(self) -> list[wire.QueueReply]:
        """Return all its queues, with configuration and figures."""
        return await all_queues(self._core, f"{self._path}/queues")

    async def usage(self) -> wire.UsageReply:
        """Return its quotas against its usage."""
        return await self._core.call(Request(method="GET", target=f"{self._path}/usage", decode=_usage_reply))

    # ---- encryption ----

    async def encryption(self) -> wire.EncryptionReply:
        """Return how it is encrypted, its data keys, and how the key does that wraps them."""
        return await self._core.call(Request(method="GET", target=f"{self._path}/encryption", decode=_encryption_reply))

    async def rotate_keys(self) -> wire.EncryptionReply:
        """Make a new data key, which encrypts from now on. What is stored stays readable, and nothing is drained."""
        target = f"{self._path}/encryption/rotate"
        return await self._core.call(Request(method="POST", target=target, decode=_encryption_reply, repeatable=False))

    async def rewrap_keys(self) -> wire.EncryptionReply:
        """Wrap all data keys anew by the tenant's key as it is configured now. No message is touched."""
        target = f"{self._path}/encryption/rewrap"
        return await self._core.call(Request(method="POST", target=target, decode=_encryption_reply))

    # ---- grants; keys are as the platform has them ----

    async def grant(
        self,
        principal: str,
        *,
        role: str | None = None,
        actions: Sequence[str] = (),
        queues: Sequence[str] = ("*",),
        expires_at: int | None = None,
    ) -> None:
        """Let a principal do something here; replaces what was granted to it before."""
        body = wire.GrantRequest(role=role, actions=tuple(actions), queues=tuple(queues), expires_at=expires_at)
        target = self._grant_path(principal)
        await self._core.call(Request(method="PUT", target=target, decode=nothing, body=encode(body)))

    async def revoke_grant(self, principal: str) -> None:
        """Take back what was granted to a principal."""
        await self._core.call(
            Request(method="DELETE", target=self._grant_path(principal), decode=nothing, repeatable=False)
        )

    async def grants(self) -> list[wire.GrantItem]:
        """Return what is granted here, and to whom."""
        reply = await self._core.call(Request(method="GET", target=f"{self._path}/grants", decode=_grants_reply))
        return reply.grants

    async def revoke_token(self, *, until: int, token_id: str | None = None, principal: str | None = None) -> None:
        """Refuse a JSON web token by its id, or all of a principal's, before they expire; ``until``: when they do."""
        body = wire.RevokeTokenRequest(token_id=token_id, principal=principal, until=until)
        await self._core.call(
            Request(method="POST", target=f"{self._path}/revocations", decode=nothing, body=encode(body))
        )

    def _grant_path(self, principal: str) -> str:
        return f"{self._path}/grants/{quote(principal, safe='')}"


async def all_queues(core: Core, path: str) -> list[wire.QueueReply]:
    """Return every page of a list of queues."""
    queues: list[wire.QueueReply] = []
    cursor: str | None = None
    while True:
        target = path + query(limit=PAGE, cursor=cursor)
        reply = await core.call(Request(method="GET", target=target, decode=_queues_reply, gzip=True))
        queues += reply.queues
        cursor = reply.cursor
        if cursor is None:
            return queues
