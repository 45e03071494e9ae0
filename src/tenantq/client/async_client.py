"""The client for asyncio."""

from collections.abc import Sequence
from typing import Any, Final, Self
from urllib.parse import quote

from tenantq.client.async_admin import AsyncPlatform
from tenantq.client.async_queue import AsyncFleet, AsyncQueue
from tenantq.client.async_tenant import AsyncTenant
from tenantq.client.queue_calls import QueueRegistry
from tenantq.client.session import ClientSession
from tenantq.client.settings import URL_DEFAULT, Retries, Settings, Tls, parse
from tenantq.client.tenant_router import TenantRouter
from tenantq.wire.access import WhoAmIReply
from tenantq.wire.backups import BackupReply, BackupRequest, BackupsReply, BackupTestReply
from tenantq.wire.erasures import ErasureReply, ErasuresReply
from tenantq.wire.queues import QueueReply, QueuesReply
from tenantq.wire.tenants import TenantReply, TenantsReply
from tenantq.wire.topology import TopologyReply

FIGURES_PAGE: Final = 200
"""Tenants per page if their figures are requested. A larger page would block the server for too long."""
BACKUP_MS_MAX: Final = 86_400_000
"""How long a backup may take."""


class AsyncClient:
    """A connection to a tenantq server, for asyncio: ``async with AsyncClient(url, token=...) as client``.

    It belongs to the event loop that uses it first. Many tasks may share it: their concurrent calls are sent together.

    ``timeout_ms`` limits the time for a reply once connected; a call that waits at the server gets its wait on top. ``retries`` says
    how often, and with which delays, a call is retried where that is safe. ``tls`` is for ``https`` addresses. With ``follow``,
    requests go directly to the server that owns their tenant, if it is on a host that the client was given. ``url`` may be a list
    with the addresses of several servers of one cluster: if one is unreachable, the client uses the next.
    """

    def __init__(
        self,
        url: str | Sequence[str] = URL_DEFAULT,
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
        """Create a client. Nothing is sent before the first call. ``settings`` of another client replace all other arguments."""
        self.settings = settings or parse(
            url, token, timeout_ms=timeout_ms, connect_timeout_ms=connect_timeout_ms, retries=retries,
            connections=connections, coalesce=coalesce, follow=follow, tls=tls,
        )  # fmt: skip
        self._session = ClientSession(self.settings, TenantRouter(self.settings))
        self._registry = QueueRegistry(self._session)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.settings.url}>"

    async def __aenter__(self) -> Self:
        self._session.check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls in progress end with Closed."""
        await self._session.close()

    # ---- resources; nothing is sent ----

    def queue(self, name: str) -> AsyncQueue:
        """Return a queue of the credential's own tenant."""
        return AsyncQueue(self._registry, None, name)

    def tenant(self, name: str) -> AsyncTenant:
        """Return a tenant where the credential is granted."""
        return AsyncTenant(self._registry, name)

    def platform(self) -> AsyncPlatform:
        """Return the platform: its own API keys and the audit trail of all tenants, for its administrators."""
        return AsyncPlatform(self._session)

    def fleet(self, queue: str, *, tenants: Sequence[str] | None = None) -> AsyncFleet:
        """Return one queue name in many tenants; None: in all where the credential may poll it."""
        return AsyncFleet(self._registry, queue, tenants)

    # ---- calls ----

    async def queues(self, *, limit: int | None = None) -> list[QueueReply]:
        """Return all queues of the credential's own tenant, or the first ``limit`` by name."""
        return await self._session.list_all("/v1/queues", QueuesReply, "queues", limit)

    async def whoami(self) -> WhoAmIReply:
        """Return the credential's principal, tenant, permissions and expiry."""
        return await self._session.request("GET", "/v1/whoami", WhoAmIReply)

    async def own_tenant(self) -> TenantReply:
        """Return the credential's own tenant; for a platform administrator that is ``default``."""
        return await self._session.request("GET", "/v1/tenant", TenantReply)

    async def tenants(self, *, figures: bool = False, limit: int | None = None) -> list[TenantReply]:
        """Return all tenants, or the first ``limit`` by name, for platform administrators.

        With ``figures``, each has its counts of stored and leased messages and its quotas.
        """
        options: dict[str, Any] = {"page": FIGURES_PAGE, "figures": "true"} if figures else {}
        return await self._session.list_all("/v1/tenants", TenantsReply, "tenants", limit, **options)

    async def health(self) -> dict[str, Any]:
        """Return the readiness of the server. Raises Unavailable if it accepts no work now."""
        return await self._session.request("GET", "/readyz", dict[str, Any])

    async def topology(self) -> TopologyReply:
        """Return the shards that the server knows, and its own identity."""
        return await self._session.request("GET", "/v1/topology", TopologyReply)

    async def create_backup(self, name: str | None = None, *, segments: bool = True) -> BackupReply:
        """Back up the running server and return when the backup is complete. For platform administrators."""
        body = BackupRequest(name=name, segments=segments)
        return await self._session.request(
            "POST", "/v1/backups", BackupReply, body, repeatable=False, wait_ms=BACKUP_MS_MAX
        )

    async def test_backup(self, name: str) -> BackupTestReply:
        """Restore a backup into a temporary directory, check it, and return the result. For platform administrators."""
        target = f"/v1/backups/{quote(name, safe='')}/test"
        return await self._session.request("POST", target, BackupTestReply, repeatable=False, wait_ms=BACKUP_MS_MAX)

    async def backups(self) -> list[BackupReply]:
        """Return all backups, for platform administrators."""
        return (await self._session.request("GET", "/v1/backups", BackupsReply)).backups

    async def erasures(self) -> list[ErasureReply]:
        """Return the certificates of all erased tenants, for platform administrators."""
        return (await self._session.request("GET", "/v1/erasures", ErasuresReply)).erasures

    async def metrics(self) -> str:
        """Return the server's metrics in the Prometheus text format, for platform administrators."""
        return await self._session.request("GET", "/metrics", str, gzip=True)
