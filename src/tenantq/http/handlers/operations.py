"""Operations: health, readiness, metrics, and the description of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.http.reply import HTML, PROMETHEUS, Reply, json_reply
from tenantq.wire.cluster import DrainRequest

if TYPE_CHECKING:
    from tenantq.http.request import Request
    from tenantq.service import Service

_ALIVE: Final = Reply(b'{"status":"ok"}')
_PAGE_POLICY: Final = (
    b"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\r\n"
    b"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
)


class Health(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: str


class Readiness(msgspec.Struct, frozen=True):
    """Whether the server accepts work, and what that depends on."""

    status: str  # "ready", "not_ready" or "closing"
    details: dict[str, Any] = {}


async def healthz(_: Service, __: Request, ___: object) -> Reply:
    """Check that the process is alive."""
    return _ALIVE


async def readyz(service: Service, request: Request, _: object) -> Reply:
    """Check whether the server accepts work."""
    details = service.status.readiness()
    if shards := service.other_shards.readiness():
        details["shards"] = shards
    if request.listener.is_closing or not request.listener.is_ready:
        return json_reply(Readiness("closing", details), 503, b"Retry-After: 1\r\n")
    if not details.get("ready"):
        return json_reply(Readiness("not_ready", details), 503, b"Retry-After: 1\r\n")
    return json_reply(Readiness("ready", details))


async def metrics(service: Service, request: Request, _: object) -> Reply:
    """Get metrics in the Prometheus format."""
    return Reply(await service.status.metrics(request.call), 200, PROMETHEUS)


async def topology(service: Service, request: Request, _: object) -> Reply:
    """List the shards that this server knows, and describe the server."""
    return json_reply(await service.status.topology(request.call))


async def cluster(service: Service, request: Request, _: object) -> Reply:
    """Return the members and shards of the cluster."""
    return json_reply(await service.status.cluster(request.call))


async def drain_member(service: Service, request: Request, body: DrainRequest) -> Reply:
    """Have a member hand its shards over, or let it have shards again."""
    return json_reply(await service.status.drain_member(request.call, request.name, drain=body.drain))


async def openapi(_: Service, request: Request, __: object) -> Reply:
    """Get the OpenAPI document."""
    return request.listener.description.openapi


async def docs(_: Service, request: Request, __: object) -> Reply:
    """Get this API as a page."""
    page = request.listener.description.page
    return Reply(page.body, 200, HTML, _PAGE_POLICY)
