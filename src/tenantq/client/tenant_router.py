"""Routes requests of a tenant directly to the shard that owns it, once a reply has named its address.

Several shards can be behind one address. Each forwards requests of other shards and names the owner in ``Tenantq-Shard``. The
credential is never sent to another host, nor from https to http.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tenantq.client.connection_pool import ApiRequest, ConnectionPool
from tenantq.client.http_connection import HttpReply
from tenantq.client.settings import Settings
from tenantq.errors import Closed, Unavailable

SHARD_HEADER: Final = "tenantq-shard"
CONNECT_MS_MAX: Final = 1_000
"""A shard's own address may be behind a firewall, so it gets little time. The client's address always works."""
AVOID_MS: Final = 60_000
"""How long an unreachable address is avoided."""
TENANTS_MAX: Final = 10_000
_TENANT: Final = "/v1/tenants/"
_OWN: Final = ("/v1/queues/", "/v1/queues?", "/v1/tenant?")
_OWN_WHOLE: Final = frozenset({"/v1/queues", "/v1/tenant"})


class TenantRouter:
    """A transport that uses the client's address, or the address of the shard that owns the tenant."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._base = ConnectionPool(settings)
        self._follows = settings.follow and not settings.prefix and settings.connect is None
        self._pools: dict[int, ConnectionPool] = {}  # by port: all on the same host
        self._ports: dict[str | None, int] = {}  # by tenant; "": the credential's own
        self._avoided: dict[int, int] = {}  # until when, on the monotonic clock
        self._closed = False

    async def send(self, request: ApiRequest[Any]) -> HttpReply:
        """Return the reply. Raises BadAnswer, Closed, ConnectionFailed or TimedOut."""
        port = self._ports.get(_tenant_of(request.target)) if self._ports else None
        if port is None:
            reply = await self._base.send(request)
        else:
            reply = await self._send_directly(request, port)
        address = reply.headers.get(SHARD_HEADER)
        if address is not None and self._follows:
            self._learn(request, address)
        return reply

    async def _send_directly(self, request: ApiRequest[Any], port: int) -> HttpReply:
        try:
            return await self._pools[port].send(request)
        except Closed:
            raise
        except Unavailable as error:
            self._ports = {tenant: known for tenant, known in self._ports.items() if known != port}
            if error.maybe_done:
                raise
            self._avoided[port] = self._settings.clock.monotonic_ms() + AVOID_MS
        return await self._base.send(request)  # nothing was sent: the address is unreachable from here

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for pool in (self._base, *self._pools.values()):
            await pool.close()

    def _learn(self, request: ApiRequest[Any], address: str) -> None:
        """Remember the address of a tenant's shard if it is on the same host."""
        tenant, settings = _tenant_of(request.target), self._settings
        if tenant is None or self._closed:
            return
        if address.startswith(":"):  # a port of the same host
            address = settings.origin + address
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError:
            return
        if port is None or parts.hostname != settings.host or (parts.scheme == "https") != settings.secure:
            return
        if self._avoided.get(port, 0) > settings.clock.monotonic_ms():
            return
        if port not in self._pools:
            connect_ms = min(settings.connect_timeout_ms, CONNECT_MS_MAX)
            self._pools[port] = ConnectionPool(
                msgspec.structs.replace(settings, port=port, connect_timeout_ms=connect_ms)
            )
        if len(self._ports) >= TENANTS_MAX:
            self._ports.clear()
        self._ports[tenant] = port


def _tenant_of(target: str) -> str | None:
    """Return the tenant of a request; "": the credential's own, None: the request is for the whole server."""
    if target.startswith(_TENANT):
        end = target.find("/", len(_TENANT))
        return target[len(_TENANT) : end] if end > 0 else target[len(_TENANT) :].partition("?")[0]
    return "" if target.startswith(_OWN) or target in _OWN_WHOLE else None
