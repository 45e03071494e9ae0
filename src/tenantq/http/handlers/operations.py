"""Operations: health, readiness, metrics, and the description of the API."""

from typing import Any, Final

import msgspec

from tenantq.http.reply import HTML, PROMETHEUS, JsonReply, Reply, json_reply
from tenantq.http.request import Request
from tenantq.service.service import Service
from tenantq.wire.cluster import ClusterReply, DrainRequest, GrowRequest, PlacementReply, PlacementRequest
from tenantq.wire.topology import TopologyReply

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


async def healthz(_: Service, __: Request, ___: object) -> Health:
    """Check that the process is alive."""
    return Health("ok")


async def readyz(service: Service, request: Request, _: object) -> JsonReply[Readiness]:
    """Check whether the server accepts work."""
    details = service.status.readiness()
    if shards := service.other_shards.readiness():
        details["shards"] = shards
    if request.context.is_closing or not request.context.is_ready:
        return json_reply(Readiness("closing", details), 503, b"Retry-After: 1\r\n")
    if not details.get("ready"):
        return json_reply(Readiness("not_ready", details), 503, b"Retry-After: 1\r\n")
    return json_reply(Readiness("ready", details))


async def metrics(service: Service, request: Request, _: object) -> Reply:
    """Get metrics in the Prometheus format."""
    return Reply(await service.status.metrics(request.call), 200, PROMETHEUS)


async def topology(service: Service, request: Request, _: object) -> TopologyReply:
    """List the shards that this server knows, and describe the server."""
    return await service.status.topology(request.call)


async def cluster(service: Service, request: Request, _: object) -> ClusterReply:
    """Return the members and shards of the cluster."""
    return await service.status.cluster(request.call)


async def drain_member(service: Service, request: Request, body: DrainRequest) -> ClusterReply:
    """Drain a member, or undo a drain."""
    return await service.status.drain_member(request.call, request.name, drain=body.drain)


async def placement(service: Service, request: Request, _: object) -> PlacementReply:
    """Return the shard of a tenant, and its move in progress."""
    return await service.placement.get(request.call, request.name)


async def place_tenant(service: Service, request: Request, body: PlacementRequest) -> PlacementReply:
    """Pin a tenant to a shard, give it its own shard, spread its queues over shards, or unpin it."""
    return await service.placement.place(request.call, request.name, body)


async def grow_cluster(service: Service, request: Request, body: GrowRequest) -> ClusterReply:
    """Raise the number of shards."""
    await service.placement.grow(request.call, body)
    return await service.status.cluster(request.call)


async def openapi(_: Service, request: Request, __: object) -> JsonReply[dict[str, Any]]:
    """Get the OpenAPI document."""
    return request.context.description.openapi


async def docs(_: Service, request: Request, __: object) -> Reply:
    """Get this API as a page."""
    page = request.context.description.page
    return Reply(page.body, 200, HTML, _PAGE_POLICY)
