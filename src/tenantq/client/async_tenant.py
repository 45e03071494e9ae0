"""A tenant, and what administers it, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

from tenantq import wire
from tenantq.client.async_administered import AsyncAdministered
from tenantq.client.async_queue import AsyncQueue, nothing, query
from tenantq.client.core import Core, Request, encode
from tenantq.domain.names import check_queue_name, check_tenant_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenantq.client.queue_calls import QueueBook

_tenant_reply = msgspec.json.Decoder(wire.TenantReply).decode
_queues_reply = msgspec.json.Decoder(wire.QueuesReply).decode
_grants_reply = msgspec.json.Decoder(wire.GrantsReply).decode
_usage_reply = msgspec.json.Decoder(wire.UsageReply).decode
_encryption_reply = msgspec.json.Decoder(wire.EncryptionReply).decode
_erasure_reply = msgspec.json.Decoder(wire.ErasureReply).decode
_import_reply = msgspec.json.Decoder(wire.ImportReply).decode

PAGE = 1_000
ERASURE_MS_MAX = 3_600_000
"""How long it may take until the last byte of a tenant is gone."""

EXPORT_MS_MAX = 86_400_000
"""How long an export may take."""


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

    async def suspend(self, reason: str = "", mode: Literal["settle", "freeze", "fill"] = "settle") -> wire.TenantReply:
        """Take no new work of it and hand none out. What is leased may finish.

        With the mode ``freeze`` nothing of it changes and its leases are lost; with ``fill`` parts of exports are taken in.
        """
        body = encode(wire.SuspendRequest(reason=reason, mode=mode))
        return await self._core.call(
            Request(method="POST", target=f"{self._path}/suspend", decode=_tenant_reply, body=body)
        )

    async def resume(self) -> wire.TenantReply:
        """Let it work again."""
        return await self._core.call(Request(method="POST", target=f"{self._path}/resume", decode=_tenant_reply))

    async def hold(self, reason: str) -> wire.TenantReply:
        """Put it under legal hold: nothing of it is deleted until that is released. ``reason``: ten characters or more."""
        return await self._hold("PUT", reason)

    async def release_hold(self, reason: str) -> wire.TenantReply:
        """Take it out of legal hold. ``reason``: ten characters or more."""
        return await self._hold("DELETE", reason)

    async def _hold(self, method: str, reason: str) -> wire.TenantReply:
        body = encode(wire.ReasonRequest(reason=reason))
        request = Request(method=method, target=f"{self._path}/hold", decode=_tenant_reply, body=body, repeatable=False)
        return await self._core.call(request)

    async def delete(self, *, confirm: str, reason: str) -> wire.ErasureReply:
        """Erase it and everything it has; return the certificate. ``confirm`` is its name, ``reason`` ten characters or more."""
        body = encode(wire.DestroyRequest(confirm=confirm, reason=reason))
        request = Request(
            method="DELETE",
            target=self._path,
            decode=_erasure_reply,
            body=body,
            repeatable=False,
            wait_ms=ERASURE_MS_MAX,
        )
        return await self._core.call(request)

    async def queues(self, *, limit: int | None = None) -> list[wire.QueueReply]:
        """Return all its queues, or the first ``limit`` by name, with configuration and figures."""
        return await list_queues(self._core, f"{self._path}/queues", limit)

    async def usage(self) -> wire.UsageReply:
        """Return its quotas against its usage."""
        return await self._core.call(Request(method="GET", target=f"{self._path}/usage", decode=_usage_reply))

    async def export(self, sink: Callable[[bytes], None], *, queue: str | None = None) -> None:
        """Have everything that it has, as it is now, sent to ``sink`` piece by piece: a tar, see docs/portability.md.

        With ``queue``, that queue alone, without keys, grants and audit trail. Where this raises, what ``sink`` has got is not whole.
        """
        request = Request(
            method="GET",
            target=f"{self._path}/export{query(queue=queue)}",
            decode=nothing,
            repeatable=False,
            wait_ms=EXPORT_MS_MAX,
            sink=sink,
        )
        await self._core.call(request)

    async def import_part(self, queue: str, part: wire.ImportRequest) -> wire.ImportReply:
        """Put one part of an export into one of its queues; the same part again does nothing."""
        target = f"{self._path}/queues/{check_queue_name(queue)}/import"
        return await self._core.call(Request(method="POST", target=target, decode=_import_reply, body=encode(part)))

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


async def list_queues(core: Core, path: str, limit: int | None) -> list[wire.QueueReply]:
    """Return a list of queues, page by page, to its end or to ``limit``."""
    queues: list[wire.QueueReply] = []
    cursor: str | None = None
    while True:
        size = PAGE if limit is None else min(PAGE, limit - len(queues))
        target = path + query(limit=size, cursor=cursor)
        reply = await core.call(Request(method="GET", target=target, decode=_queues_reply, gzip=True))
        queues += reply.queues
        cursor = reply.cursor
        if cursor is None or len(queues) == limit:
            return queues
