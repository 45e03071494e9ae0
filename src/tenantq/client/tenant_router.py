"""Routes requests of a tenant or queue directly to the server that owns it, once a reply has named its address.

Each server forwards requests for other shards and names the owner in ``Tenantq-Shard``. The credential is never sent to a host
that the client was not given, nor from https to http. If an address is unreachable, the client uses its next one.
"""

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
UNAVAILABLE: Final = 503
"""A server replies with it if it cannot reach the owner of a tenant. Another server may."""
MISDIRECTED: Final = 421
"""A server replies with it if the tenant does not allow its region. It has changed nothing, and names the owner.

The client may not be allowed to use that address, or may be unable to reach it. Then it tries its other addresses.
"""
OWNERS_MAX: Final = 10_000
_TENANT: Final = "/v1/tenants/"
_QUEUES: Final = "queues"
_OWN_QUEUE: Final = "/v1/queues/"
_OWN: Final = frozenset({"/v1/queues", "/v1/tenant"})

Address = tuple[str, int]
RouteKey = tuple[str, str]
"""A tenant, empty for the credential's own, and a queue, or empty."""


class TenantRouter:
    """A transport that uses one of the client's addresses, or the address of the server that owns the tenant or queue."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._bases: list[Address] = [(settings.host, settings.port), *settings.others]
        self._hosts = {host for host, _ in self._bases}
        self._base = 0  # which of them is in use
        self._follows = settings.follow and not settings.prefix and settings.connect is None
        self._pools: dict[Address, ConnectionPool] = {self._bases[0]: ConnectionPool(settings)}
        self._owners: dict[RouteKey, Address] = {}  # of tenants, and of queues that other servers own
        self._avoided: dict[Address, int] = {}  # until when, on the monotonic clock
        self._closed = False

    async def send(self, request: ApiRequest[Any]) -> HttpReply:
        """Return the reply. Raises BadAnswer, Closed, ConnectionFailed or TimedOut."""
        owner = self._owner(request.target) if self._owners else None
        reply = await self._send_to_owner(request, owner) if owner is not None else None
        asked = owner
        if reply is None:
            reply, asked = await self._send_to_any(request)
        address = reply.headers.get(SHARD_HEADER)
        if address is not None and self._follows:
            self._learn(request, address)
        return reply if reply.status != MISDIRECTED else await self._send_to_others(request, reply, asked)

    async def _send_to_others(self, request: ApiRequest[Any], refusal: HttpReply, asked: Address | None) -> HttpReply:
        """Return the reply of the owner or of the first base address in a region of the tenant, or else ``refusal``.

        If a base address does not answer, it may be the one: returns its 503, or raises what a retry can help against.
        """
        named = self._owner(request.target)
        unreachable: Unavailable | None = None
        for address in dict.fromkeys((named, *self._bases)):
            if address is None or address == asked:
                continue
            try:
                reply = await self._pool(address).send(request)
            except Closed:
                raise
            except Unavailable as error:
                self._avoid(address, error)
                if address in self._bases:
                    unreachable = error
                continue
            if reply.status == UNAVAILABLE:
                refusal = reply
            elif reply.status != MISDIRECTED:
                if address != named:
                    self._prefer(request, address)
                return reply
        if unreachable is not None and refusal.status == MISDIRECTED:
            raise unreachable
        return refusal

    def _prefer(self, request: ApiRequest[Any], base: Address) -> None:
        """Send further requests for the tenant to a base address, because others are not in its regions."""
        place = _place_of(request.target)
        if place is not None and not self._closed:
            self._owners.pop(place, None)
            self._keep((place[0], ""), base)

    def _owner(self, target: str) -> Address | None:
        place = _place_of(target)
        return (self._owners.get(place) or self._owners.get((place[0], ""))) if place is not None else None

    async def _send_to_owner(self, request: ApiRequest[Any], owner: Address) -> HttpReply | None:
        """Return the reply of the owner; None if it is unreachable from here."""
        try:
            reply = await self._pool(owner).send(request)
        except Closed:
            raise
        except Unavailable as error:
            self._avoid(owner, error)
            return None
        if reply.status == UNAVAILABLE:
            self._forget(owner)
        return reply

    async def _send_to_any(self, request: ApiRequest[Any]) -> tuple[HttpReply, Address]:
        """Return the reply of the address in use, or of the next one that can be reached, and that address."""
        for left in reversed(range(len(self._bases))):
            base = self._bases[self._base]
            try:
                reply = await self._pool(base).send(request)
            except Closed:
                raise
            except Unavailable as error:
                self._forget(base)
                if error.maybe_done or not left:
                    raise
            else:
                if reply.status == UNAVAILABLE:
                    self._forget(base)
                return reply, base
        raise AssertionError  # the last address returns or raises

    def _avoid(self, address: Address, error: Unavailable) -> None:
        """Avoid an unreachable address for a while. Raises the error if the request may have been executed."""
        self._forget(address)
        if error.maybe_done:
            raise error
        self._avoided[address] = self._settings.clock.monotonic_ms() + AVOID_MS

    def _forget(self, address: Address) -> None:
        """Avoid an address for the next attempt, unless it is the only one."""
        self._owners = {place: known for place, known in self._owners.items() if known != address}
        if self._bases[self._base] == address:
            self._base = (self._base + 1) % len(self._bases)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for pool in self._pools.values():
            await pool.close()

    def _pool(self, address: Address) -> ConnectionPool:
        pool = self._pools.get(address)
        if pool is None:
            host, port = address
            connect_ms = min(self._settings.connect_timeout_ms, CONNECT_MS_MAX)
            pool = self._pools[address] = ConnectionPool(
                msgspec.structs.replace(self._settings, host=host, port=port, connect_timeout_ms=connect_ms)
            )
        return pool

    def _learn(self, request: ApiRequest[Any], address: str) -> None:
        """Remember the address of an owner if it is on a host that the client was given."""
        place, settings = _place_of(request.target), self._settings
        if place is None or self._closed:
            return
        if address.startswith(":"):  # a port of the same host
            host = self._bases[self._base][0]
            address = f"{'https' if settings.secure else 'http'}://{_in_url(host)}{address}"
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError:
            return
        if port is None or parts.hostname not in self._hosts or (parts.scheme == "https") != settings.secure:
            return
        owner = (parts.hostname, port)
        if self._avoided.get(owner, 0) > settings.clock.monotonic_ms():
            return
        of_tenant = (place[0], "")
        if self._owners.get(of_tenant, owner) == owner:
            self._owners.pop(place, None)
            place = of_tenant
        self._keep(place, owner)

    def _keep(self, place: RouteKey, address: Address) -> None:
        if len(self._owners) >= OWNERS_MAX:
            self._owners.clear()
        self._owners[place] = address


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _place_of(target: str) -> RouteKey | None:
    """Return the tenant and queue of a request; None if the request is for the whole server."""
    if target.startswith(_TENANT):
        tenant, _, rest = target[len(_TENANT) :].partition("?")[0].partition("/")
        kind, _, rest = rest.partition("/")
        return tenant, rest.partition("/")[0] if kind == _QUEUES else ""
    if target.startswith(_OWN_QUEUE):
        return "", target[len(_OWN_QUEUE) :].partition("?")[0].partition("/")[0]
    return ("", "") if target.partition("?")[0] in _OWN else None
