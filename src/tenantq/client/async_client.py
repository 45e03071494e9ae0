"""The client, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from tenantq import wire
from tenantq.client.async_administered import AsyncPlatform
from tenantq.client.async_fleet import AsyncFleet
from tenantq.client.async_queue import AsyncQueue, query
from tenantq.client.async_tenant import PAGE, AsyncTenant, list_queues
from tenantq.client.core import Core, Request, encode
from tenantq.client.queue_calls import QueueBook
from tenantq.client.settings import URL_DEFAULT, Retries, Settings, Tls, parse
from tenantq.client.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_tenant_reply = msgspec.json.Decoder(wire.TenantReply).decode
_tenants_reply = msgspec.json.Decoder(wire.TenantsReply).decode
_backup_reply = msgspec.json.Decoder(wire.BackupReply).decode
_backups_reply = msgspec.json.Decoder(wire.BackupsReply).decode
_erasures_reply = msgspec.json.Decoder(wire.ErasuresReply).decode
_topology_reply = msgspec.json.Decoder(wire.TopologyReply).decode
_anything = msgspec.json.Decoder(dict[str, Any]).decode


FIGURES_PAGE: Final = 200
"""Tenants in a reply that has their figures: more of them would keep the server from its work for too long at a time."""

BACKUP_MS_MAX: Final = 86_400_000
"""How long a backup may take."""


class AsyncClient:
    """A connection to a tenantq server, for asyncio: ``async with AsyncClient(url, token=...) as client``.

    It belongs to the event loop that uses it first. Many tasks may share it: that is when their calls go out together.

    ``timeout_ms`` is for an answer, once a connection is there; a call that waits at the server gets that on top. ``retries`` says how
    often, and with which pauses, a call is tried again where that is safe. ``tls`` is for ``https`` addresses. With ``follow`` requests
    go straight to the shard that has their tenant, on the same host, where several are behind the address.
    """

    def __init__(
        self,
        url: str = URL_DEFAULT,
        token: str | None = None,
        *,
        timeout_ms: int = 10_000,
        connect_timeout_ms: int = 5_000,
        retries: Retries | int = Retries(),  # noqa: B008  # frozen
        connections: int = 32,
        coalesce: bool = True,
        follow: bool = True,
        tls: Tls = Tls(),  # noqa: B008  # frozen
        settings: Settings | None = None,
    ) -> None:
        """Prepare a client; nothing is sent before the first call. ``settings``, of another client, replace everything else."""
        self.settings = settings or parse(
            url,
            token,
            timeout_ms=timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            retries=retries,
            connections=connections,
            coalesce=coalesce,
            follow=follow,
            tls=tls,
        )
        self._core = Core(self.settings, Ways(self.settings))
        self._book = QueueBook(self._core)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.settings.url}>"

    async def __aenter__(self) -> Self:
        self._core.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop the connections. Calls that are under way end with Closed."""
        await self._core.close()

    # ---- where to go on; nothing is sent ----

    def queue(self, name: str) -> AsyncQueue:
        """Return a queue of the credential's own tenant."""
        return AsyncQueue(self._book, None, name)

    def tenant(self, name: str) -> AsyncTenant:
        """Return a tenant where the credential is granted."""
        return AsyncTenant(self._book, name)

    def platform(self) -> AsyncPlatform:
        """Return the platform itself: its own keys and the audit trail of everything, for its administrators."""
        return AsyncPlatform(self._core)

    def fleet(self, queue: str, *, tenants: Sequence[str] | None = None) -> AsyncFleet:
        """Return one queue name in many tenants; None: in all where the credential may poll it."""
        return AsyncFleet(self._book, queue, tenants)

    # ---- calls ----

    async def queues(self, *, limit: int | None = None) -> list[wire.QueueReply]:
        """Return all queues of the credential's own tenant, or the first ``limit`` by name."""
        return await list_queues(self._core, "/v1/queues", limit)

    async def own_tenant(self) -> wire.TenantReply:
        """Return the tenant that the credential belongs to; a platform administrator's is the default one."""
        return await self._core.call(Request(method="GET", target="/v1/tenant", decode=_tenant_reply))

    async def tenants(self, *, figures: bool = False, limit: int | None = None) -> list[wire.TenantReply]:
        """Return all tenants, or the first ``limit`` by name, for the platform's administrators.

        With ``figures`` each has ``figures``: what it stores, has leased, and how its quotas stand.
        """
        tenants: list[wire.TenantReply] = []
        cursor: str | None = None
        while True:
            page = FIGURES_PAGE if figures else PAGE
            size = page if limit is None else min(page, limit - len(tenants))
            target = f"/v1/tenants{query(limit=size, cursor=cursor, figures='true' if figures else None)}"
            reply = await self._core.call(Request(method="GET", target=target, decode=_tenants_reply, gzip=True))
            tenants += reply.tenants
            cursor = reply.cursor
            if cursor is None or len(tenants) == limit:
                return tenants

    async def health(self) -> dict[str, Any]:
        """Return what the server says of itself; raises Unavailable where it takes no work now."""
        return await self._core.call(Request(method="GET", target="/readyz", decode=_anything))

    async def topology(self) -> wire.TopologyReply:
        """Return the shards that the server knows, and what it is itself."""
        return await self._core.call(Request(method="GET", target="/v1/topology", decode=_topology_reply))

    async def create_backup(self, name: str | None = None, *, segments: bool = True) -> wire.BackupReply:
        """Have the server backed up while it works; return when that is done. For the platform's administrators."""
        body = encode(wire.BackupRequest(name=name, segments=segments))
        request = Request(
            method="POST",
            target="/v1/backups",
            decode=_backup_reply,
            body=body,
            repeatable=False,
            wait_ms=BACKUP_MS_MAX,
        )
        return await self._core.call(request)

    async def backups(self) -> list[wire.BackupReply]:
        """Return the backups that are there, for the platform's administrators."""
        return (await self._core.call(Request(method="GET", target="/v1/backups", decode=_backups_reply))).backups

    async def erasures(self) -> list[wire.ErasureReply]:
        """Return the certificates of all tenants that were erased, for the platform's administrators."""
        return (await self._core.call(Request(method="GET", target="/v1/erasures", decode=_erasures_reply))).erasures

    async def metrics(self) -> str:
        """Return the server's figures as Prometheus reads them, for the platform's administrators."""
        return await self._core.call(Request(method="GET", target="/metrics", decode=bytes.decode, gzip=True))
